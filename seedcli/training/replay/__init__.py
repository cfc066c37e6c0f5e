"""The replay: unrolls in memory, plain or compressed, and on disk, drawn by priority or uniformly, in a bounded ratio
to insertion. It may import `config`, `specs`, `telemetry` and NumPy; only `unrolls` and `requirements` know of agents.
"""
