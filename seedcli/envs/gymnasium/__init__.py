"""Any Gymnasium environment: vector environments of it, and its spaces as those of `specs`. It may import what `envs`
may, and gymnasium. No other family depends on it.
"""
