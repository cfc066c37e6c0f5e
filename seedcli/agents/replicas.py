"""One computation on several devices: sums over all of them, and variables that every device has a copy of.

A training batch may be spread over devices, and over hosts: each then runs `observe` and `loss` on columns of its own.
What is done once for each device is called a replica (`tf.distribute`). On a single device both functions here do the
plain thing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def total(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Sums over the replicas of all hosts of what each of them gives here, in the same order; a replica must call it.

    Args:
        values: tensors of any numeric types, of the same shapes on every replica.
    """
    if not tf.distribute.has_strategy():
        return list(values)
    context = tf.distribute.get_replica_context()
    sums: list[Any] = list(values)
    for dtype in dict.fromkeys(value.dtype for value in values):  # one collective takes one type
        places = [i for i, value in enumerate(values) if value.dtype == dtype]
        # What a collective takes must be computed by the replica, not given to it.
        found = context.all_reduce(tf.distribute.ReduceOp.SUM, [tf.identity(values[i]) for i in places])
        for i, value in zip(places, found, strict=True):
            sums[i] = value
    return sums


def assign(variables: Sequence[tf.Variable], values: Sequence[Any]) -> None:
    """Assign to variables the copy of which is on every device; by a replica, or once for all of them.

    Args:
        variables: any.
        values: by a replica, tensors that are the same on all of them but for rounding: the first one's are taken. Else
            tensors, or variables, of which each device takes its own copy.
    """
    if not tf.distribute.has_strategy():
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        return

    def everywhere(strategy: Any, values: Sequence[Any]) -> None:
        for variable, value in zip(variables, values, strict=True):
            strategy.extended.update(variable, lambda copy, x: copy.assign(x), args=(value,), group=False)

    if tf.distribute.in_cross_replica_context():
        everywhere(tf.distribute.get_strategy(), values)
    else:
        tf.distribute.get_replica_context().merge_call(
            lambda strategy, values: everywhere(strategy, [strategy.experimental_local_results(x)[0] for x in values]),
            args=(list(values),),
        )
