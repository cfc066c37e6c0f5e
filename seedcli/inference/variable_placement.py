"""Where TensorFlow keeps a variable, and which of its copies is the nearest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf


def short_name(device: str) -> str:
    """The end of a device's whole name: "GPU:3" of "/job:localhost/replica:0/task:0/device:GPU:3"."""
    return device.rpartition("device:")[2] or "CPU:0"


def components(variable: Any) -> tuple[tf.Variable, ...]:
    """The variables of this host that stand behind one of Keras or of `tf.distribute`: one for each of its devices."""
    value = getattr(variable, "value", None)
    behind = value if value is not None and not callable(value) else variable
    return tuple(getattr(behind, "values", None) or (behind,))


def nearest(variable: Any, device: str) -> tf.Variable:
    """The copy of a trained variable that lies on `device` ("GPU:3"); the first where none does."""
    copies = components(variable)
    return next((copy for copy in copies if short_name(copy.device) == device), copies[0])


def device_names(variables: Iterable[Any]) -> tuple[str, ...]:
    """The devices ("GPU:3") on which the variables lie, in the order of their numbers."""
    names = {short_name(copy.device) for variable in variables for copy in components(variable)}
    return tuple(sorted(names, key=lambda name: (name.partition(":")[0], int(name.rpartition(":")[2]))))
