"""From unrolls to updates: sources of batches, the trainer, devices and checkpoints. It may import `inference` and the
packages below it. It knows nothing of connections.
"""
