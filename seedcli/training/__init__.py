"""From unrolls to updates: sources of batches, the trainer, devices and checkpoints. It may import `inference` and
what lies below. It knows nothing of connections.
"""
