"""The network: frames, codecs, the handshake and its messages, and one module per transport.

It imports neither TensorFlow nor `envs`. It does not interpret rows: their shapes come from `specs`.
"""
