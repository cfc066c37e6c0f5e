"""Networks that follow another: copies at intervals, and averages."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from seedcli.agents.networks.models import PolicyValueNetwork
from seedcli.agents.target_networks import copy_every, copy_to, polyak
from tests.agents.helpers import VECTOR, agent_config


def _networks() -> tuple[Any, Any]:
    """Two networks with statistics of observations, all of whose variables differ."""
    target, source = (PolicyValueNetwork(agent_config(normalize_observations=True), VECTOR, 1) for _ in range(2))
    rng = np.random.default_rng(1)
    for network in (target, source):
        for variable in network.variables:
            variable.assign(rng.normal(size=variable.shape))
    return target, source


def _values(network: Any) -> list[Any]:
    return [variable.numpy() for variable in network.variables]


@pytest.mark.parametrize("in_graph", [False, True])
def test_a_copy_holds_every_variable(in_graph: bool) -> None:
    target, source = _networks()
    call = tf.function(copy_to) if in_graph else copy_to
    call(target, source)
    for mine, theirs in zip(_values(target), _values(source), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("in_graph", [False, True])
def test_copies_are_made_after_every_period(in_graph: bool) -> None:
    target, source = _networks()

    def after(update: tf.Tensor) -> None:
        copy_every(3, update, target, source)

    call = tf.function(after) if in_graph else after
    for update in range(1, 8):
        before = _values(target)
        for variable in source.variables:
            variable.assign(variable + tf.cast(1.0, variable.dtype))
        call(tf.constant(update, tf.int64))
        expected = _values(source) if update % 3 == 0 else before
        for mine, theirs in zip(_values(target), expected, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("in_graph", [False, True])
def test_an_average_follows_weights_and_copies_statistics(in_graph: bool) -> None:
    target, source = _networks()
    trained = {id(variable) for variable in source.trainable_variables}
    kept = [id(variable) in trained for variable in source.variables]
    assert any(kept) and not all(kept)
    target.trainable = False  # as in a target network: the source's trainable variables decide
    call = tf.function(polyak) if in_graph else polyak
    old, new = _values(target), _values(source)
    expected = [value.astype(np.float64) for value in old]
    for _ in range(3):
        call(target, source, 0.2)
        expected = [
            0.8 * mine + 0.2 * theirs.astype(np.float64) if averaged else theirs
            for mine, theirs, averaged in zip(expected, new, kept, strict=True)
        ]
    for mine, wanted, theirs, averaged in zip(_values(target), expected, new, kept, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-6)
        assert (mine != theirs).any() if averaged else (mine == theirs).all()


def test_networks_must_have_the_same_variables() -> None:
    one, other = keras.layers.Dense(2), keras.layers.Dense(2, use_bias=False)
    one.build([None, 3])
    other.build([None, 3])
    for function in (copy_to, lambda target, source: polyak(target, source, 0.5)):
        with pytest.raises(ValueError):
            function(one, other)
