"""Names of variables in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

# Keras' own lists of a layer's contents; TensorFlow's begin with "_self_". Names come from these last.
_LISTS = ("_layers", "_trainable_variables", "_non_trainable_variables", "_seed_generators")


def named_variables(**layers: keras.layers.Layer) -> dict[str, tf.Variable]:
    """All variables of layers by their place in the structure: {"network/encoder/torsos/0/dense/kernel": ...}.

    A name is a path of attributes, indices of lists and keys of dicts, without leading underscores. Keras' own names
    and paths are not reproducible: they depend on the layers that the process built before. A variable in several
    places has the name of the first; public attributes come before private ones.

    Args:
        layers: built layers by the first part of their variables' names.

    Raises:
        ValueError: two variables have the same name, or one is not reachable through attributes, lists and dicts.
    """
    found: dict[str, tf.Variable] = {}
    seen: set[int] = set()
    for name, layer in layers.items():
        _collect(name, layer, found, seen)
        for variable in layer.variables:
            if id(variable) not in seen:
                raise ValueError(f"the variable {variable.path} must be reachable through attributes of {name}")
    return found


def _rank(attribute: str) -> int:
    if attribute in _LISTS or attribute.startswith("_self_"):
        return 2
    return int(attribute.startswith("_"))


def _collect(path: str, value: Any, found: dict[str, tf.Variable], seen: set[int]) -> None:
    """Add the variables reachable from an attribute's value to `found`, and the ids of visited objects to `seen`."""
    if isinstance(value, keras.Variable):
        if id(value) not in seen:
            if path in found:
                raise ValueError(f"two variables are named {path}: rename an attribute of their layers")
            found[path] = value.value
    elif isinstance(value, keras.layers.Layer | keras.random.SeedGenerator):
        if id(value) not in seen:
            seen.add(id(value))
            attributes = vars(value)
            for name in sorted(attributes, key=_rank):
                _collect(f"{path}/{name.lstrip('_')}", attributes[name], found, seen)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            _collect(f"{path}/{key}", part, found, seen)
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value):
            _collect(f"{path}/{i}", part, found, seen)
    seen.add(id(value))
