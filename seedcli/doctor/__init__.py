"""`seed doctor`: what this machine can run, and whether an environment keeps the rules. It may import everything but
`cli`. Nothing but `cli` imports it.
"""
