"""Fast calls of traced functions that skip TensorFlow's binding of Python arguments.

The Python overhead of calling a `tf.function` exceeds the time of a small network: about 0.5 ms for an inference batch
of CartPole. `tf.raw_ops.StatefulPartitionedCall` runs the same concrete function at a tenth of that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf


def traced(
    function: Callable[..., Any],
    *,
    input_signature: Sequence[Any] | None = None,
    reduce_retracing: bool = False,
    jit_compile: bool = False,
    direct: bool = True,
) -> Callable[..., Any]:
    """Trace a function as a TensorFlow graph and return the fastest safe way to call it.

    On CPUs that is a `DirectCall`. With accelerators (where int32 arguments belong to the host), with XLA, and inside
    the scope of a `tf.distribute` strategy it is the `tf.function` itself. Both take the arguments of `DirectCall`.

    Args:
        function: the function to trace; AutoGraph is off.
        input_signature, reduce_retracing: see `tf.function`.
        jit_compile: compile with XLA.
        direct: False: always return the `tf.function`.
    """
    graph = tf.function(
        function,
        autograph=False,
        input_signature=input_signature,
        reduce_retracing=reduce_retracing,
        jit_compile=jit_compile or None,
    )
    accelerators = tf.config.list_logical_devices("GPU") + tf.config.list_logical_devices("TPU")
    plain = jit_compile or accelerators or tf.distribute.has_strategy() or not direct
    return graph if plain else DirectCall(graph)


_SEQUENCES = (tuple, list)  # named tuples too


# TensorFlow runs an operation to convert an array to a tensor, which takes longer than copying a small array to where
# a tensor may be: 15 us instead of 4.
_SMALL = 1 << 16  # bytes
_ALIGNMENT = 64  # bytes, of the data of a tensor


class _Concrete(NamedTuple):
    """A concrete function.

    Attributes:
        function: the function; keeps its graph alive.
        captured: captured inputs, such as the handles of variables.
        unused: arguments on which no result or effect depends: index → an empty tensor to pass instead.
        small: indices of the other arguments that are small arrays.
        types: dtypes of the flattened results.
        structure: structure of the results, with True in place of each.
    """

    function: Any
    captured: list[Any]
    unused: list[tuple[int, tf.Tensor]]
    small: list[int]
    types: list[tf.DType]
    structure: Any


class DirectCall:
    """Calls the concrete functions of a `tf.function` directly.

    Arguments are NumPy arrays, eager tensors and None, nested in dicts, tuples, named tuples and lists; there are no
    keyword arguments. For each new combination of structure, shapes and types the `tf.function` finds or traces the
    concrete function, with all of its checks. Results have the same structure as those of the `tf.function`.

    There are three differences for callers. Large arrays are not copied: do not write to them before the call returns;
    a result that is one of the arguments shares its memory. No gradient flows through a call: a `tf.GradientTape`
    raises LookupError. TensorFlow's graph optimizer does not run: where it would choose other arithmetic, such as
    expm1(x) for exp(x) - 1, results may differ in their last bits.

    Args:
        function: a `tf.function`; always call it in the same `tf.device` scope.
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        self._concrete: dict[tuple[Any, ...], _Concrete] = {}

    def __call__(self, *args: Any) -> Any:
        """Run the function.

        Raises:
            TypeError: the dtype of an argument differs from the function's signature.
            tf.errors.OpError: as for the `tf.function`.
        """
        leaves: list[Any] = []
        key: list[Any] = []
        _flatten(args, leaves, key)
        concrete = self._concrete.get(tuple(key))
        if concrete is None:
            concrete = self._concrete[tuple(key)] = self._find(args, leaves)
        for i, tensor in concrete.unused:
            leaves[i] = tensor
        for i in concrete.small:
            leaves[i] = _tensor(leaves[i])
        results = tf.raw_ops.StatefulPartitionedCall(
            args=leaves + concrete.captured, Tout=concrete.types, f=concrete.function
        )
        return _pack(concrete.structure, iter(results))

    def get_concrete_function(self, *args: Any) -> Any:
        """Trace the function for arguments of these shapes and dtypes without running it, as for a `tf.function`."""
        return self._function.get_concrete_function(*args)

    def _find(self, args: Sequence[Any], leaves: Sequence[Any]) -> _Concrete:
        function = self._function.get_concrete_function(*args)
        captured = list(function.captured_inputs)
        # A tf.function would convert arguments of other dtypes; this call does not.
        expected = [tensor.dtype for tensor in function.inputs[: len(function.inputs) - len(captured)]]
        found = [tf.as_dtype(leaf.dtype) for leaf in leaves]
        if found != expected:
            raise TypeError(f"arguments of types {found} for a function of {expected}")
        types = [tensor.dtype for tensor in function.outputs]
        used = _used(function)
        unused = [
            (i, tf.zeros([size or 0 for size in tensor.shape], tensor.dtype))
            for i, tensor in enumerate(function.inputs[: len(leaves)])
            if tensor.op not in used and tensor.shape.rank is not None
        ]
        known = {i for i, _ in unused}
        small = [i for i, leaf in enumerate(leaves) if i not in known and _is_small(leaf)]
        # Without its symbolic tensors, whose types are slow to look up.
        structure = _pack(function.structured_outputs, itertools.repeat(True))
        return _Concrete(function, captured, unused, small, types, structure)


def _used(function: Any) -> set[Any]:
    """The operations on which results and effects of a concrete function depend."""
    used: set[Any] = set()
    left = [tensor.op for tensor in function.outputs] + list(function.graph.control_outputs)
    while left:
        operation = left.pop()
        if operation not in used:
            used.add(operation)
            left += [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
    return used


def _is_small(leaf: Any) -> bool:
    """Whether `_tensor` accepts an argument."""
    return (
        isinstance(leaf, np.ndarray) and 0 < leaf.nbytes <= _SMALL and leaf.dtype.kind in "biuf" and leaf.dtype.isnative
    )


def _tensor(array: npt.NDArray[Any]) -> tf.Tensor:
    """A copy of a small array, as a tensor."""
    raw = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    begin = -raw.__array_interface__["data"][0] % _ALIGNMENT
    copy: npt.NDArray[Any] = np.ndarray(array.shape, array.dtype, raw, begin)
    copy[...] = array
    return tf.experimental.dlpack.from_dlpack(copy.__dlpack__())


def _flatten(value: Any, leaves: list[Any], key: list[Any]) -> None:
    """Append the arrays of a structure, in TensorFlow's order, to `leaves` and its hashable description to `key`."""
    if isinstance(value, np.ndarray):
        leaves.append(value)
        key.append((value.dtype, value.shape))
    elif isinstance(value, _SEQUENCES):
        key.append((type(value), len(value)))
        for each in value:
            _flatten(each, leaves, key)
    elif isinstance(value, dict):
        names = tuple(sorted(value))
        key.append(names)
        for name in names:
            _flatten(value[name], leaves, key)
    elif value is None:
        key.append(None)
    else:
        leaves.append(value)
        key.append((value.dtype, tuple(value.shape)))


def _pack(structure: Any, results: Iterator[Any]) -> Any:
    """Pack flat results into a structure: the inverse of `_flatten`."""
    if isinstance(structure, _SEQUENCES):
        values = [_pack(each, results) for each in structure]
        return type(structure)(*values) if hasattr(structure, "_fields") else type(structure)(values)
    if isinstance(structure, dict):
        by_name = {name: _pack(structure[name], results) for name in sorted(structure)}
        return {name: by_name[name] for name in structure}
    return None if structure is None else next(results)
