"""The configuration of a run: its schema, the presets, and the layers that set each value. It imports only `errors`
and `specs`: no simulator, device or network code, so every command can read it quickly.
"""
