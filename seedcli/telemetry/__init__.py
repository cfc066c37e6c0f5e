"""What is measured, and how it is shown: metrics files, log lines, the live view, Prometheus. It imports only
`agents.base`, `config` and what lies below, so every part may note figures in it. It knows no process and no thread.
"""
