"""How rows travel: frames, codecs, the handshake's messages, and one file a transport. It never imports TensorFlow,
nor `envs`. It knows nothing of what the rows mean: their shapes come from `specs`.
"""
