"""The devices of a variable's copies, and the choice of a copy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf


def short_name(device: str) -> str:
    """Return the end of a device's full name: "GPU:3" of "/job:localhost/replica:0/task:0/device:GPU:3"."""
    return device.rpartition("device:")[2] or "CPU:0"


def components(variable: Any) -> tuple[tf.Variable, ...]:
    """Return this host's `tf.Variable`s of a Keras or `tf.distribute` variable, one per device."""
    value = getattr(variable, "value", None)
    behind = value if value is not None and not callable(value) else variable
    return tuple(getattr(behind, "values", None) or (behind,))


def nearest(variable: Any, device: str) -> tf.Variable:
    """Return the copy of a trained variable on `device` ("GPU:3"), or the first copy if none is there."""
    copies = components(variable)
    return next((copy for copy in copies if short_name(copy.device) == device), copies[0])


def device_names(variables: Iterable[Any]) -> tuple[str, ...]:
    """Return the devices ("GPU:3") of the variables, in the order of their numbers."""
    names = {short_name(copy.device) for variable in variables for copy in components(variable)}
    return tuple(sorted(names, key=lambda name: (name.partition(":")[0], int(name.rpartition(":")[2]))))
