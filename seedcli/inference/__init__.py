"""The step engine, the unroll arena, and the policy on its devices: rows in, actions and unrolls out. It may import
`agents`, `telemetry` and the packages below them. It knows nothing of connections or training.
"""
