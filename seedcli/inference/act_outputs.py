"""Checks, while `Agent.act` is traced, that it returns what the agent declares."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from seedcli.agents.base import ActOutputs, Agent, State
from seedcli.errors import UsageError
from seedcli.specs import ArraySpec, EnvSpec


def outputs_and_state(agent: Agent, returned: Any) -> tuple[ActOutputs, State]:
    """The outputs and state that `Agent.act` returned; raises UsageError if they are not a pair."""
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        found = "None" if returned is None else f"a {type(returned).__name__}"
        raise UsageError(f"{type(agent).__name__}.act returns {found}: it must return (ActOutputs, state)")
    outputs, state = returned
    return outputs, state


def check_act(agent: Agent, spec: EnvSpec, outputs: Any, state: State, initial: State) -> None:
    """Check the outputs and the state of one traced call of `Agent.act`.

    Args:
        agent: the agent.
        spec: the environment.
        outputs: what `act` returned.
        state: the state that `act` returned, [N, ...].
        initial: the state at the start of an episode, [1, ...].

    Raises:
        UsageError: a shape, dtype or structure is not the declared one; the message names it.
    """
    kind = f"{type(agent).__name__}.act returns"
    if not isinstance(outputs, ActOutputs):
        raise UsageError(f"{kind} a {type(outputs).__name__}: it must return (ActOutputs, state)")
    _check(f"{kind} action", outputs.action, spec.action.array)
    _check(f"{kind} greedy_action", outputs.greedy_action, spec.action.array)
    declared = agent.algorithm.recorded
    if set(outputs.recorded) != set(declared):
        raise UsageError(
            f"{kind} the recorded fields {_listed(outputs.recorded)}, but its algorithm.recorded declares "
            f"{_listed(declared)}"
        )
    for name, array in declared.items():
        _check(f'{kind} the recorded field "{name}"', outputs.recorded[name], array)
    wanted, found = _leaves(initial), _leaves(state)
    if wanted.keys() != found.keys():
        raise UsageError(f"{kind} {state_in_words(found)}, but initial_state gives {state_in_words(wanted)}")
    for name, leaf in wanted.items():
        shape = tuple(leaf.shape[1:])
        _check(f'{kind} the state "{name}"', found[name], ArraySpec(shape, leaf.dtype.name))


def state_in_words(names: Iterable[str]) -> str:
    """A state by its keys: 'a state with the keys "cell", "hidden"', or 'a state without keys'."""
    quoted = [f'"{name}"' for name in names if name]  # an array alone has the empty name
    if not quoted:
        return "a state without keys"
    return f"a state with the key{'s' if len(quoted) > 1 else ''} {', '.join(quoted)}"


def _check(what: str, value: Any, array: ArraySpec) -> None:
    wanted = f"{array.dtype} {['N', *array.shape]}".replace("'", "")
    if not tf.is_tensor(value):
        raise UsageError(f"{what} as a {type(value).__name__}: it must be a tensor, {wanted}")
    shape = value.shape
    fits = shape.rank is not None and shape.rank == 1 + len(array.shape) and shape[1:].is_compatible_with(array.shape)
    if not fits or value.dtype != tf.as_dtype(array.dtype):
        raise UsageError(f"{what} as {value.dtype.name} {shape}: it must be {wanted}")


def _leaves(value: Any) -> dict[str, tf.Tensor]:
    return {"/".join(map(str, path)): tf.convert_to_tensor(leaf) for path, leaf in keras.tree.flatten_with_path(value)}


def _listed(names: Any) -> str:
    return ", ".join(names) or "(none)"
