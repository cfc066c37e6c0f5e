"""`seed doctor`: what this machine can run, and whether an environment conforms. It may import everything but `cli`;
only `cli` imports it.
"""
