"""The configuration of a run: its schema, the presets, and the layers that each value may come from. It imports only
`errors` and `specs`. It knows no simulator, no device and no network, so every command can read it at once.
"""
