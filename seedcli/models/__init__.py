"""Model files that `seed export` has written: what each says of itself, and how it is run. It may import `envs`, and
the runtime of a format only when a file of it is opened: TensorFlow for a SavedModel alone. How models are made, and
what plays them, is outside of it.
"""
