"""The replay: compressed unrolls in memory and on disk, drawn by priority, in a bounded ratio to insertion. It may
import `config`, `specs`, `telemetry` and NumPy. It knows nothing of agents or devices.
"""
