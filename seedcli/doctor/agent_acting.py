"""Checks of how an agent acts: shapes, purity, independence of rows, and that an unroll reproduces acting."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from seedcli.agents.base import ActOutputs, State
from seedcli.agents.registry import create_agent
from seedcli.doctor.agent_case import (
    COLUMNS,
    SEED,
    Case,
    Played,
    act_inputs,
    difference,
    kind_of,
    leaves,
    tensors,
)
from seedcli.envs.conformance import Status
from seedcli.inference.act_outputs import outputs_and_state, state_in_words
from seedcli.training.groups import group_variables, make_groups

Result = tuple[Status, str]
_ROWS = 4


def check_variables(case: Case) -> Result:
    """`variables` holds every variable, under the same names and with the same values in another process."""
    agent = case.agent
    group_variables(agent, make_groups(agent, case.training))
    named = dict(agent.variables())
    held = {id(_plain(variable)) for variable in named.values()}
    for variable in agent.network.variables:
        if id(_plain(variable)) not in held:
            path = getattr(variable, "path", variable.name)
            return "failure", f"variables() does not return {path} of the network: a checkpoint must hold it"
    again = dict(create_agent(case.config, case.training, case.spec, SEED).variables())
    if list(again) != list(named):
        other = sorted(set(again) ^ set(named)) or list(again)
        return "failure", (
            f"variables() names them differently when the agent is built again ({other[0]}): names must be the same in "
            "every process, as agents.variables.named_variables gives them"
        )
    for name, variable in named.items():
        if found := difference(tf.convert_to_tensor(again[name]), tf.convert_to_tensor(variable)):
            return "failure", f"{name} is {found} when the agent is built again with the same seed"
    copy = agent.make_network()
    ours, theirs = ([tuple(v.shape) for v in network.variables] for network in (agent.network, copy))
    if ours != theirs:
        return "failure", f"make_network() gives variables of shapes {theirs}, the agent's network has {ours}"
    numbers = sum(int(np.prod(variable.shape)) for variable in named.values())
    return "ok", f"{len(named)} of {numbers:,} numbers, the same when built again"


def _plain(variable: Any) -> Any:
    """The TensorFlow variable behind a Keras variable."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def check_initial_state(case: Case) -> Result:
    """Arrays with a leading batch axis, of any size."""
    for rows in (1, 3):
        for name, leaf in leaves(case.agent.initial_state(rows)).items():
            if leaf.shape.rank == 0 or leaf.shape[0] != rows:
                return "failure", f"initial_state({rows}) gives {name} {kind_of(leaf)}: its first axis must be {rows}"
    found = leaves(case.agent.initial_state(1))
    return "ok", ", ".join(f"{name} {kind_of(leaf)}" for name, leaf in found.items()) or "nothing is remembered"


def check_exploration(case: Case) -> Result:
    """One float32 for each environment, for every role."""
    for role in case.agent.algorithm.roles:
        found = np.asarray(case.agent.exploration(role, np.arange(3), 5))
        if found.shape != (3,) or found.dtype != np.float32:
            return "failure", f'exploration("{role}", …) gives {found.dtype} {list(found.shape)}, not float32 [3]'
    return "ok", "one number for each environment"


def _acted(case: Case) -> tuple[ActOutputs, State]:
    rng = np.random.default_rng(2)
    outputs, state = case.act_traced(act_inputs(case, rng, _ROWS), tensors(case.agent.initial_state(_ROWS)))
    return outputs, state


def check_actions(case: Case) -> Result:
    """`action` is what the environment takes."""
    return _check_action(case, "action", _acted(case)[0].action)


def check_greedy_action(case: Case) -> Result:
    """`greedy_action` is what the environment takes, and is the action of greedy acting."""
    rng = np.random.default_rng(2)
    inputs = act_inputs(case, rng, _ROWS)._replace(exploration=tf.ones([_ROWS]), greedy=True)
    outputs, _ = case.act_traced(inputs, tensors(case.agent.initial_state(_ROWS)))
    status, detail = _check_action(case, "greedy_action", outputs.greedy_action)
    if status == "ok" and (found := difference(outputs.action, outputs.greedy_action)):
        return "failure", f"with inputs.greedy, action is {found}: it must be greedy_action"
    return status, detail


def _check_action(case: Case, name: str, action: Any) -> Result:
    spec = case.spec.action
    wanted = f"{spec.array.dtype} {[_ROWS, *spec.array.shape]}"
    if not tf.is_tensor(action) or kind_of(action) != wanted:
        found = kind_of(action) if tf.is_tensor(action) else f"a {type(action).__name__}"
        return "failure", f"{name} is {found}, but for {_ROWS} rows it must be {wanted}"
    values = action.numpy()
    if spec.size:
        if not np.isfinite(values).all():
            return "failure", f"{name} holds {values[~np.isfinite(values)][0]}: numbers must be finite"
        return "ok", wanted
    counts = np.reshape(spec.categories, spec.array.shape)
    wrong = (values < 0) | (values >= counts)
    if wrong.any():
        limit = np.broadcast_to(counts, values.shape)[wrong][0]
        return "failure", f"{name} holds {values[wrong][0]}: it must be from 0 to {limit - 1}"
    return "ok", wanted


def check_recorded(case: Case) -> Result:
    """`recorded` holds the fields of `AlgorithmSpec.recorded`."""
    declared, recorded = case.agent.algorithm.recorded, dict(_acted(case)[0].recorded)
    if recorded.keys() != declared.keys():
        return "failure", (
            f"act records {', '.join(sorted(recorded)) or 'nothing'}, but algorithm.recorded declares "
            f"{', '.join(sorted(declared)) or 'nothing'}"
        )
    for name, array in declared.items():
        wanted = f"{array.dtype} {[_ROWS, *array.shape]}"
        if kind_of(recorded[name]) != wanted:
            return "failure", f'act records "{name}" as {kind_of(recorded[name])}, but declared is {wanted}'
        values = recorded[name].numpy()
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            return "failure", f'act records "{name}" with {values[~np.isfinite(values)][0]}: numbers must be finite'
    return "ok", ", ".join(f"{name} {kind_of(value)}" for name, value in recorded.items()) or "no field"


def check_state(case: Case) -> Result:
    """The state after a record has the structure of `initial_state`."""
    initial, after = leaves(case.agent.initial_state(_ROWS)), leaves(_acted(case)[1])
    if initial.keys() != after.keys():
        return "failure", f"act returns {state_in_words(after)}, but initial_state gives {state_in_words(initial)}"
    for name, leaf in after.items():
        if kind_of(leaf) != kind_of(initial[name]):
            return "failure", f"act returns {name} as {kind_of(leaf)}, but initial_state gives {kind_of(initial[name])}"
    return "ok", "as initial_state gives it"


def check_pure(case: Case) -> Result:
    """The same inputs give the same outputs, without and with tracing, and `act` changes no variable."""
    rng = np.random.default_rng(3)
    inputs, state = act_inputs(case, rng, _ROWS), tensors(case.agent.initial_state(_ROWS))
    before = _values(case)

    def direct() -> tuple[Any, Any]:
        outputs, after = outputs_and_state(case.agent, case.agent.act(case.agent.network, inputs, state))
        return (outputs.action, dict(outputs.recorded), outputs.greedy_action), after

    once, graph = direct(), case.act_traced
    if (found := difference(_values(case), before)) is not None:
        return "failure", f"act changes a variable ({found}): it may only read the given network"
    traced = [graph(inputs, state) for _ in range(2)]
    again = [((outputs.action, outputs.recorded, outputs.greedy_action), after) for outputs, after in traced]
    for how, other in (("called again", direct()), ("traced", again[0]), ("called again as a graph", again[1])):
        if found := difference(other, once):
            return "failure", (
                f"act gives other results when it is {how} with the same inputs ({found}): random operations must be "
                "stateless and take inputs.seed"
            )
    return "ok", "the same inputs give the same outputs"


def _values(case: Case) -> dict[str, Any]:
    return {name: variable.numpy() for name, variable in case.agent.variables().items()}


def check_rows(case: Case) -> Result:
    """The contents of one row have no effect on another."""
    rng = np.random.default_rng(4)
    half, act = _ROWS // 2, case.act_traced
    inputs, others = act_inputs(case, rng, _ROWS), act_inputs(case, rng, _ROWS)
    state = tensors(case.agent.initial_state(_ROWS))
    _, moved = act(others, state)

    def mixed(mine: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        return tf.concat([mine[:half], other[half:]], axis=0)

    by_row = ("observation", "reward", "first", "exploration")
    changed = inputs._replace(
        **{name: tf.nest.map_structure(mixed, getattr(inputs, name), getattr(others, name)) for name in by_row}
    )
    results = [
        tf.nest.map_structure(lambda x: x[:half], act(*arguments))
        for arguments in (
            (inputs, state),
            (changed, tf.nest.map_structure(mixed, state, moved)),
        )
    ]
    if found := difference(results[1], results[0]):
        return (
            "failure",
            f"rows change the results of other rows ({found}): each row must be computed from itself alone",
        )
    return "ok", "each is computed from itself alone"


def check_unroll(case: Case, played: Played) -> Result:
    """`network.unroll` gives the same network states and outputs as acting step by step."""
    network, unrolls = case.agent.network, tensors(played.unrolls._replace(targets={}))
    unroll = getattr(network, "unroll", None)
    if unroll is None:
        return "skipped", "the network has no method unroll"
    arguments = (unrolls.observation, unrolls.reward, unrolls.action, tf.constant(played.first), unrolls.state)
    try:
        inspect.signature(unroll).bind(*arguments)
    except TypeError:
        return "skipped", "the network's unroll takes other arguments than (observation, reward, action, first, state)"
    outputs, after = tf.function(unroll, autograph=False)(*arguments)
    if found := difference(_network_state(network, after), _network_state(network, played.states[-1])):
        return "failure", f"the state after unroll is not the one after acting ({found})"
    if not hasattr(network, "step"):
        return "ok", "states are those of acting; the network has no step whose outputs could be compared"
    step = tf.function(network.step, autograph=False)
    for t, state in enumerate(played.before):
        observation = tf.nest.map_structure(lambda x, now=t: x[now], unrolls.observation)
        expected, _ = step(observation, unrolls.reward[t], state)
        if found := difference(tf.nest.map_structure(lambda x, now=t: x[now], outputs), expected):
            return "failure", f"unroll gives other outputs than step for record {t} ({found})"
    return "ok", f"{len(played.before)} records of {COLUMNS} columns, with ends of episodes"


def _network_state(network: Any, state: State) -> State:
    """The network's part of an agent's state: an agent may keep more, such as the noise of its actions."""
    own = network.initial_state(1) if hasattr(network, "initial_state") else state
    if not (isinstance(own, Mapping) and isinstance(state, Mapping)):
        return state
    return {name: value for name, value in state.items() if name in own}
