"""Model files that `seed export` has written: their descriptions, and how they are run. It may import `envs`, and
the runtime of a format only when a file of it is opened: TensorFlow only for a SavedModel. How models are made and
played is outside of it.
"""
