"""Connections to the step engine: listeners, handshakes, sessions, admission control and the serving loop.

It may import `inference`, `net` and the layers below. It knows nothing of training.
"""
