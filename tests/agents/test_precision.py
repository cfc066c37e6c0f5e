"""Precision: what is computed in 16 bits, what never is, and the differences of the outputs."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from seedcli.agents.networks.encoder import layers_computing_in
from seedcli.agents.networks.models import DuelingQNetwork, PolicyValueNetwork
from seedcli.agents.registry import create_agent
from seedcli.specs import EnvSpec
from tests.agents.helpers import (
    IMAGE,
    MIXED,
    VECTOR,
    agent_config,
    play,
    random_records,
    training_config,
    unroll_batch,
)

COMPUTES = {"mixed_bfloat16": "bfloat16", "mixed_float16": "float16"}
CASES = [(VECTOR, "mlp"), (IMAGE, "nature"), (IMAGE, "impala_deep"), (MIXED, "impala_shallow")]


def network(kind: type[Any], spec: EnvSpec, torso: str, precision: str) -> Any:
    config = agent_config(
        algorithm="r2d2" if kind is DuelingQNetwork else "vtrace",
        torso=torso,
        lstm=8,
        dueling_hidden=8,
        frame_stack=2,
        previous_action_reward=True,
        normalize_observations=True,
        channels=(4, 4),
    )
    return kind(config, spec, 3, precision)


def layers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    return [layer, *(each for inner in layer._layers for each in layers(inner))]


@pytest.mark.parametrize("precision", list(COMPUTES))
@pytest.mark.parametrize(("spec", "torso"), CASES)
def test_only_torso_and_lstm_compute_in_16_bits(spec: EnvSpec, torso: str, precision: str) -> None:
    mixed = network(PolicyValueNetwork, spec, torso, precision)
    encoder = mixed.encoder
    inner = [*layers(encoder.torsos[0]), *layers(encoder.lstms[0])]
    assert {layer.compute_dtype for layer in inner} == {COMPUTES[precision]}
    heads = [*layers(mixed.value), *layers(mixed.policy)]
    assert {layer.compute_dtype for layer in heads} == {"float32"}
    assert {v.dtype for v in mixed.trainable_variables} == {"float32"}
    records = random_records(spec, 4, 2)
    outputs, states, last = play(mixed, records)
    for leaf in [*tf.nest.flatten(outputs), *tf.nest.flatten((states, last))]:
        assert np.asarray(leaf).dtype in (np.float32, np.uint8, np.int32), "16 bits never leave the encoder"
    assert keras.config.dtype_policy().name == "float32", "other layers are not affected"


@pytest.mark.parametrize("precision", list(COMPUTES))
@pytest.mark.parametrize("kind", [PolicyValueNetwork, DuelingQNetwork])
def test_outputs_are_close_to_those_of_float32_and_not_the_same(kind: type[Any], precision: str) -> None:
    records = random_records(IMAGE, 6, 3, seed=2)
    exact, rough = (
        tf.nest.flatten(play(network(kind, IMAGE, "nature", each), records)[0]) for each in ("float32", precision)
    )
    size = 8e-3 if precision == "mixed_bfloat16" else 1e-3  # of a rounding, times a few layers
    for one, other in zip(exact, rough, strict=True):
        error = np.abs(one - other).max() / np.abs(one).max()
        assert 0.0 < error < 10 * size


@pytest.mark.parametrize("algorithm", ["vtrace", "r2d2"])
def test_gradients_and_losses_are_float32_and_close(algorithm: str) -> None:
    found = {}
    for precision in ("float32", "mixed_bfloat16"):
        config = agent_config(algorithm=algorithm, lstm=8, dueling_hidden=8, n_step=2)
        agent = create_agent(config, training_config(unroll_length=5, batch_size=4), VECTOR, 3, precision=precision)
        records = random_records(VECTOR, 6, 4)
        records |= {"q_taken": records["reward"], "q_max": records["reward"]}
        unrolls = unroll_batch(records, agent.initial_state(4), tuple(agent.algorithm.recorded))
        with tf.GradientTape() as tape:
            loss = agent.loss(unrolls).loss
        gradients = tape.gradient(loss, agent.network.trainable_variables)
        assert loss.dtype == tf.float32 and {gradient.dtype for gradient in gradients} == {tf.float32}
        found[precision] = float(loss), np.concatenate([gradient.numpy().ravel() for gradient in gradients])
        inference = agent.make_network()
        assert inference.encoder.lstms[0].compute_dtype == agent.network.encoder.lstms[0].compute_dtype
    (loss, gradient), (rough_loss, rough) = found["float32"], found["mixed_bfloat16"]
    assert rough_loss == pytest.approx(loss, rel=0.05)
    assert rough @ gradient / np.linalg.norm(rough) / np.linalg.norm(gradient) > 0.99
    assert np.linalg.norm(rough) == pytest.approx(np.linalg.norm(gradient), rel=0.05)


def test_failure_restores_the_dtype_policy() -> None:
    with pytest.raises(ZeroDivisionError), layers_computing_in("mixed_bfloat16"):
        assert keras.layers.Dense(1).compute_dtype == "bfloat16"
        raise ZeroDivisionError
    assert keras.layers.Dense(1).compute_dtype == "float32"
