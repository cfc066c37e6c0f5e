"""Metrics and their output: metrics files, log lines, the live view, Prometheus. It imports only `agents.base`,
`config` and the packages below them, so every part may record metrics. It knows no processes and no threads.
"""
