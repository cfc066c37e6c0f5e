"""What is learned: the protocol of an algorithm, networks, pure targets and distributions, and one file an algorithm.
Importing it imports TensorFlow; of the rest it may import `config`, `specs` and `errors`. It knows nothing of where
records come from, nor who applies its gradients.
"""

from __future__ import annotations

import os

# The agents are written in TensorFlow; a user's own Keras settings must not choose another backend.
os.environ["KERAS_BACKEND"] = "tensorflow"
