"""Sums over replicas, and assignment to replicated variables.

A training batch may be spread over devices and hosts: each device, a replica in `tf.distribute`, then runs `observe`
and `loss` on its own columns. Without a strategy, the functions work on a single device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def total(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Sum tensors over the replicas of all hosts; every replica must call it.

    Args:
        values: tensors of any numeric dtypes, with the same shapes on every replica.

    Returns:
        The sums, in the order of `values`.
    """
    if not tf.distribute.has_strategy():
        return list(values)
    context = tf.distribute.get_replica_context()
    sums: list[Any] = list(values)
    for dtype in dict.fromkeys(value.dtype for value in values):  # one collective per dtype
        places = [i for i, value in enumerate(values) if value.dtype == dtype]
        # Inputs of a collective must be computed by the replica: use an identity operation.
        found = context.all_reduce(tf.distribute.ReduceOp.SUM, [tf.identity(values[i]) for i in places])
        for i, value in zip(places, found, strict=True):
            sums[i] = value
    return sums


def assign(variables: Sequence[tf.Variable], values: Sequence[Any]) -> None:
    """Assign to variables on all devices; called by every replica, or once outside of replicas.

    Args:
        variables: variables, replicated or not.
        values: in a replica, tensors or variables that are equal on all replicas up to rounding: those of the first
            are used. Outside of replicas, tensors or variables, of which each device uses its own copy.
    """
    change(variables, lambda copy, value: copy.assign(value), values)


def change(variables: Sequence[tf.Variable], function: Callable[[Any, Any], Any], values: Sequence[Any]) -> None:
    """Call `function(copy, value)`, which changes one copy of a variable, on all devices for each of the variables.

    Args:
        variables, values: see `assign`.
        function: must change the copy by the same amount on every device.
    """
    if not tf.distribute.has_strategy():
        for variable, value in zip(variables, values, strict=True):
            function(variable, value)
        return

    def on_all_devices(strategy: Any, values: Sequence[Any]) -> None:
        for variable, value in zip(variables, values, strict=True):
            strategy.extended.update(variable, function, args=(value,), group=False)

    if tf.distribute.in_cross_replica_context():
        on_all_devices(tf.distribute.get_strategy(), values)
    else:
        tf.distribute.get_replica_context().merge_call(
            lambda strategy, values: on_all_devices(
                strategy, [strategy.experimental_local_results(x)[0] for x in values]
            ),
            args=([tf.convert_to_tensor(value) for value in values],),
        )
