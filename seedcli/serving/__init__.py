"""Connections to the step engine: listeners, handshakes, sessions, limits before authentication, and the serving
loop. It may import `inference`, `net` and what lies below. It knows nothing of training.
"""
