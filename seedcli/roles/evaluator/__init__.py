"""`seed eval`: plays a checkpoint, or a suite of them, and records videos. It may import `agents`, `envs`,
`inference` and the checkpoint reader. It knows nothing of training or of connections.
"""
