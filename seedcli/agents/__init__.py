"""Algorithms: their protocol, networks, targets and distributions as pure functions, and one file per algorithm.
It imports TensorFlow, and of this package only `config`, `specs` and `errors`. Where records come from and how
gradients are applied is outside of it.
"""

from __future__ import annotations

import os

# The agents need TensorFlow: override the backend in the user's Keras settings.
os.environ["KERAS_BACKEND"] = "tensorflow"
