"""Rows in, actions and unrolls out: the step engine, the unroll arena, and the policy on its devices. It may import
`agents`, `telemetry` and what lies below. It knows nothing of connections, and nothing of how unrolls are trained on.
"""
