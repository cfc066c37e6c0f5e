"""Rows in, actions and unrolls out: the step engine, the unroll arena, and the policy on its devices. It may import
`agents`, `telemetry` and the packages below them. It knows nothing of connections or training.
"""
