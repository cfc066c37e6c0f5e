"""Shared by the checks of an agent: random records by specification, and unrolls that the agent has acted on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from seedcli.agents.base import ActInputs, ActOutputs, Agent, State, UnrollBatch
from seedcli.config.sections import AgentConfig, TrainingConfig
from seedcli.inference.act_outputs import outputs_and_state
from seedcli.specs import ArraySpec, EnvSpec, map_arrays

COLUMNS = 4  # of a batch; even, so that it has two halves
SEED = 1  # of the agent's variables
_ENDS = 0.2  # probability that a record ends its episode
_RELATIVE, _ABSOLUTE = 1e-3, 1e-4  # tolerances of float32 sums that are computed in another order


@dataclass
class Case:
    """An agent with what it was built from.

    Attributes:
        agent: the agent.
        config: its configuration.
        training: K, T, and batches of `COLUMNS` columns an update.
        spec: the environment.
    """

    agent: Agent
    config: AgentConfig
    training: TrainingConfig
    spec: EnvSpec

    @cached_property
    def act_traced(self) -> Callable[[ActInputs, State], tuple[ActOutputs, State]]:
        """`Agent.act` as a graph."""

        def act(inputs: ActInputs, state: State) -> tuple[ActOutputs, State]:
            outputs, after = outputs_and_state(self.agent, self.agent.act(self.agent.network, inputs, state))
            recorded, details = dict(outputs.recorded), dict(outputs.details)
            return ActOutputs(outputs.action, recorded, outputs.greedy_action, details), after

        graph: Callable[[ActInputs, State], tuple[ActOutputs, State]] = tf.function(act, autograph=False)
        return graph


@dataclass
class Played:
    """Unrolls that an agent has acted on.

    Attributes:
        unrolls: [K+T+1, B, ...], NumPy arrays.
        first: [K+T+1, B] bool, whether a record is the first of its episode.
        states: the state after each record, before any reset.
        before: the state before each record, after any reset.
    """

    unrolls: UnrollBatch
    first: npt.NDArray[np.bool_]
    states: list[State]
    before: list[State]


def random_observation(spec: EnvSpec, rng: np.random.Generator, *lead: int) -> Any:
    """Random observations [*lead, ...] within the specification."""

    def values(array: ArraySpec) -> npt.NDArray[Any]:
        shape = (*lead, *array.shape)
        drawn: npt.NDArray[Any]
        if array.categories:
            drawn = rng.integers(0, np.reshape(array.categories, array.shape), shape)
        elif array.binary:
            drawn = rng.choice(array.binary, shape)
        elif array.dtype == "bool":
            drawn = rng.random(shape) < 0.5
        elif array.dtype.startswith("float"):
            drawn = rng.normal(size=shape)
        else:
            drawn = rng.integers(0, 256 if array.dtype == "uint8" else 10, shape)
        return drawn.astype(array.dtype)

    return map_arrays(values, spec.observation)


def act_inputs(case: Case, rng: np.random.Generator, rows: int, seed: int = 5) -> ActInputs:
    """A random inference batch, none of whose records begins an episode."""
    exploration = case.agent.exploration("training", np.arange(rows), rows)
    return ActInputs(
        observation=map_arrays(tf.constant, random_observation(case.spec, rng, rows)),
        reward=tf.constant(rng.normal(size=rows), tf.float32),
        first=tf.zeros([rows], tf.bool),
        exploration=tf.constant(exploration, tf.float32),
        seed=tf.constant([seed, 7], tf.int32),
    )


def tensors(value: Any) -> Any:
    """A nested structure with every leaf as a tensor."""
    return tf.nest.map_structure(tf.convert_to_tensor, value)


def play(case: Case, rng: np.random.Generator) -> Played:
    """Let the agent act on random records, as long as a training column, with ends of episodes, no two in a row."""
    agent, length, columns = case.agent, case.agent.algorithm.batch_records, COLUMNS
    observation = random_observation(case.spec, rng, length, columns)
    final = rng.random((length, columns)) < _ENDS
    # At least one episode terminates within the transitions that are trained on.
    burn_in, sure = agent.algorithm.burn_in, length > 2
    final[burn_in, 0] = sure
    final[max(burn_in - 1, 0) : burn_in, 0] = False
    for t in range(1, length):
        final[t] &= ~final[t - 1]
    terminated = final & (rng.random((length, columns)) < 0.5)
    terminated[burn_in, 0] = sure
    first = np.zeros_like(final)
    first[1:] = final[:-1]
    reward = np.where(first, 0.0, rng.normal(size=(length, columns))).astype(np.float32)

    initial = tensors(agent.initial_state(columns))
    state = initial
    before, states, chosen = [], [], []
    for t in range(length):
        state = reset(state, initial, first[t])
        before.append(state)
        inputs = act_inputs(case, rng, columns, seed=t)._replace(
            observation=map_arrays(lambda x, now=t: tf.constant(x[now]), observation),
            reward=tf.constant(reward[t]),
            first=tf.constant(first[t]),
        )
        outputs, state = case.act_traced(inputs, state)
        states.append(state)
        chosen.append((outputs.action, outputs.recorded))
    action, recorded = tf.nest.map_structure(lambda *leaves: np.stack(leaves), *chosen)
    unrolls = UnrollBatch(
        observation=observation,
        reward=reward,
        terminated=terminated,
        truncated=final & ~terminated,
        action=action,
        recorded=recorded,
        state=tf.nest.map_structure(lambda x: x.numpy(), initial),
        weights=np.ones(columns, np.float32),
    )
    return Played(unrolls, first, states, before)


def with_other_actions(case: Case, unrolls: UnrollBatch, rng: np.random.Generator) -> UnrollBatch:
    """Unrolls with other actions on final records, where the environment ignores them."""
    action, spec = np.array(unrolls.action), case.spec.action
    if spec.size:
        other = rng.normal(size=action.shape)
    else:
        counts = np.reshape(spec.categories, spec.array.shape)
        other = (action + rng.integers(1, np.maximum(counts, 2), action.shape)) % counts
    final = np.array(unrolls.terminated) | np.array(unrolls.truncated)
    return unrolls._replace(action=tf.constant(_where(final, other, action)))


def with_other_recorded(unrolls: UnrollBatch, name: str, rng: np.random.Generator) -> UnrollBatch:
    """Unrolls with other values of a recorded field where the episode terminated.

    Not where it was truncated: targets may bootstrap from what was recorded there. A field whose values all have the
    same sign keeps it, so that probabilities have logarithms.
    """
    values = np.array(unrolls.recorded[name])
    noise = rng.normal(size=values.shape)
    if values.dtype.kind != "f":
        other = rng.permutation(values.reshape(-1)).reshape(values.shape)
    elif (values > 0.0).all() or (values < 0.0).all():
        other = values * np.exp(noise)
    else:
        other = values + noise
    changed = tf.constant(_where(np.array(unrolls.terminated), other, values))
    return unrolls._replace(recorded={**unrolls.recorded, name: changed})


def _where(mask: npt.NDArray[np.bool_], other: npt.NDArray[Any], values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Values [L, B, ...] that are `other` where the mask [L, B] is set, in their own dtype."""
    mask = mask.reshape(mask.shape + (1,) * (values.ndim - mask.ndim))
    return np.where(mask, other, values).astype(values.dtype)


def reset(state: State, initial: State, first: npt.NDArray[np.bool_]) -> State:
    """The state with the rows `first` [N] as at the start of an episode."""

    def one(now: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
        return tf.where(tf.reshape(first, [-1] + [1] * (start.shape.rank - 1)), start, now)

    return tf.nest.map_structure(one, state, initial)


def leaves(value: Any) -> dict[str, tf.Tensor]:
    """The leaves of a nested structure by their place, such as "lstm/hidden"."""
    found = keras.tree.flatten_with_path(value)
    return {"/".join(map(str, path)): tf.convert_to_tensor(leaf) for path, leaf in found}


def kind_of(value: tf.Tensor) -> str:
    """Shape and dtype in words: "float32 [4, 2]"."""
    return f"{value.dtype.name} {list(value.shape)}"


def difference(first: Any, second: Any, *, relative: float = _RELATIVE, absolute: float = _ABSOLUTE) -> str | None:
    """The first difference between two nested structures, in words; None: they are the same.

    Args:
        first, second: the structures.
        relative: tolerance of a float, as a fraction of it.
        absolute: the same, as a fraction of the largest value of the array.
    """
    ours, theirs = leaves(first), leaves(second)
    if ours.keys() != theirs.keys():
        return f"{_listed(ours)} instead of {_listed(theirs)}"
    for name, value in ours.items():
        a, b = value.numpy(), theirs[name].numpy()
        where = f"{name}: " if name else ""
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{where}{kind_of(value)} instead of {kind_of(theirs[name])}"
        if a.dtype.kind == "f":
            scale = float(np.max(np.abs(b[np.isfinite(b)]), initial=0.0))
            apart = ~np.isclose(a, b, rtol=relative, atol=absolute * max(scale, 1e-3), equal_nan=True)
        else:
            apart = a != b
        if apart.any():
            return f"{where}{a[apart].flat[0]:.6g} instead of {b[apart].flat[0]:.6g}"
    return None


def _listed(found: dict[str, tf.Tensor]) -> str:
    return ", ".join(found) or "nothing"
