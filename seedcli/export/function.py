"""The acting function of an agent with named arrays as inputs and outputs, traced by TensorFlow.

Observations go in and actions of the environment come out: normalization, frame stack, memory, and the scaling of
actions to the environment's bounds are part of it. The state is an input and an output, and starts as zeros; the
function replaces it with the agent's initial state where `first` is set.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from seedcli.agents.base import ActInputs, Agent, Role
from seedcli.agents.noise import Noise
from seedcli.envs.gymnasium.plain import PlainSpaces
from seedcli.envs.gymnasium.spaces import ActionUnits
from seedcli.errors import UsageError
from seedcli.models.description import ACTION, GREEDY_ACTION, Input, Output
from seedcli.specs import ArraySpec

_NEXT = "next_"
_SMALL = (tf.uint8, tf.int8, tf.int16)
_MEANINGS = {
    "value": "value of the state, the expected discounted return",
    "q_values": "Q value of each action, on the network's scale",
    "logits": "logits of the categories",
    "probabilities": "probabilities of the categories",
    "mean": "mean, in units in which -1 and 1 are the bounds",
    "std": "standard deviation, in the same units",
}


class Acting(NamedTuple):
    """The settings of an exported function.

    Attributes:
        agent: the agent.
        role: of the environments it plays.
        spaces: of the environment.
        greedy: greedy actions instead of sampled ones.
        batch: environments answered at once; None: any number.
    """

    agent: Agent
    role: Role
    spaces: PlainSpaces
    greedy: bool
    batch: int | None


class ActingFunction:
    """The function; calling it with arrays by name gives arrays by name.

    Args:
        acting: its settings.

    Attributes:
        acting: as given.
        inputs, outputs: its inputs and outputs; inputs that no output depends on are left out, except observations.
        traced: the `tf.function` of the inputs in their order, with the outputs by name.
        variables: those that it reads.

    Raises:
        UsageError: the agent samples in a way that cannot be exported, or two of its outputs have the same name.
    """

    def __init__(self, acting: Acting) -> None:
        self.acting = acting
        self._initial = tf.nest.map_structure(tf.convert_to_tensor, acting.agent.initial_state(1))
        exploration = acting.agent.exploration(acting.role, np.zeros(1, np.int64), 1)
        self._exploration = tf.constant(exploration, tf.float32)
        self._noise_used = 0
        # The state's arrays by name; their order is that of `tf.nest.flatten`.
        self._states = ["/".join(map(str, path)) for path, _ in keras.tree.flatten_with_path(self._initial)]
        self.inputs = list(_named(self._all_inputs()))
        self._next = {each.of: _NEXT + each.name for each in self.inputs if each.kind == "state"}
        concrete = self._trace()
        # Retraced with only the used inputs, until all inputs are used.
        while self._reduce_inputs(_used(concrete)):
            concrete = self._trace()
        self.outputs = [
            self._output(name, ArraySpec(tuple(x.shape[1:]), x.dtype.name))
            for name, x in concrete.structured_outputs.items()
        ]
        self.variables = list(concrete.variables)

    def __call__(self, arrays: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """The outputs [N, ...] for inputs [N, ...]."""
        found = self.traced(*(tf.constant(arrays[each.name]) for each in self.inputs))
        return {name: value.numpy() for name, value in found.items()}

    def concrete(self) -> Any:
        """The concrete function."""
        return self.traced.get_concrete_function()

    def _trace(self) -> Any:
        specs = [
            tf.TensorSpec([self.acting.batch, *(each.shape or _any_width(each))], each.dtype, each.name)
            for each in self.inputs
        ]
        self.traced = tf.function(self._act, autograph=False, input_signature=specs)
        return self.concrete()

    def _reduce_inputs(self, used: list[bool]) -> bool:
        """Leave out unused inputs and set the width of the noise; returns whether that has changed anything.

        Observations stay: the caller of the model has them, and need not know which of them the agent reads.
        """
        before = self.inputs
        self.inputs = [
            each.model_copy(update={"shape": (self._noise_used,)}) if each.kind == "noise" else each
            for each, is_used in zip(before, used, strict=True)
            if is_used or each.kind == "observation"
        ]
        return self.inputs != before

    def _all_inputs(self) -> Iterator[Input]:
        observations = self.acting.spaces.spec.arrays
        single = list(observations) == ["observation"]
        for name, array in observations.items():
            label = "observation" if single else f"observation_{name}"
            what = "observation" if single else f"{name} of the observation"
            yield _input(label, "observation", name, array, what)
        scalar = ArraySpec((), "float32")
        yield _input("reward", "reward", "", scalar, "reward that came with the observation; 0 where an episode begins")
        begins = "whether the observation is the first of an episode"
        yield _input("first", "first", "", ArraySpec((), "bool"), begins)
        for name, leaf in zip(self._states, tf.nest.flatten(self._initial), strict=True):
            array = ArraySpec(tuple(leaf.shape[1:]), leaf.dtype.name)
            meaning = f"{_NEXT}{_plain(f'state_{name}')} of the step before; at first zeros"
            yield _input(f"state_{name}", "state", name, array, meaning)
        if not self.acting.greedy:
            yield _input("noise", "noise", "", scalar, "random numbers, uniform in [0, 1), new ones at every step")

    def _act(self, *tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        agent, greedy, spec = self.acting.agent, self.acting.greedy, self.acting.spaces.spec
        given = {(each.kind, each.of): x for each, x in zip(self.inputs, tensors, strict=True)}
        arrays = {name: given["observation", name] for name in spec.arrays}
        observation: Any = arrays if isinstance(spec.observation, Mapping) else arrays["observation"]
        rows = tf.shape(tensors[0])[0]
        # Where they are not among the inputs, nothing depends on them.
        first = given.get(("first", ""), tf.zeros([rows], tf.bool))
        reward = given.get(("reward", ""), tf.zeros([rows]))
        state = [self._reset_state(given, name, initial, first) for name, initial in self._initials()]
        noise = None if greedy else Noise(given["noise", ""])
        inputs = ActInputs(
            observation,
            tf.where(first, 0.0, reward),
            first,
            tf.repeat(self._exploration, rows),
            tf.zeros([2], tf.int32) if noise is None else noise,
            greedy,
        )
        outputs, after = agent.act(agent.network, inputs, tf.nest.pack_sequence_as(self._initial, state))
        if noise is not None:
            self._noise_used = noise.used
        units = self.acting.spaces.units
        found = {ACTION: _native_actions(outputs.action, units)}
        if not greedy:
            found[GREEDY_ACTION] = _native_actions(outputs.greedy_action, units)
        for name, value in outputs.details.items():
            if (plain := _plain(name)) in {*found, *self._next.values()}:
                raise UsageError(
                    f"the agent's act returns a detail {name!r}, but the model has another output {plain}: rename the "
                    "detail"
                )
            found[plain] = value
        for name, value in zip(self._states, tf.nest.flatten(after), strict=True):
            if ("state", name) in given:  # otherwise it is never read
                found[self._next[name]] = value
        # Copied, so that an output that is an input, or is given twice, is a separate tensor.
        return {name: tf.identity(self._shaped(value)) for name, value in found.items()}

    def _initials(self) -> Iterable[tuple[str, tf.Tensor]]:
        return zip(self._states, tf.nest.flatten(self._initial), strict=True)

    def _reset_state(
        self, given: Mapping[Any, tf.Tensor], name: str, initial: tf.Tensor, first: tf.Tensor
    ) -> tf.Tensor:
        """The state, replaced with the initial one where an episode begins."""
        kept = given.get(("state", name))
        if kept is None:
            return tf.repeat(initial, tf.shape(first)[0], axis=0)
        mask = tf.reshape(first, [-1] + [1] * (initial.shape.rank - 1))
        # TensorFlow Lite does not select among small integers.
        wide = tf.int32 if initial.dtype in _SMALL else initial.dtype
        return tf.cast(tf.where(mask, tf.cast(initial, wide), tf.cast(kept, wide)), initial.dtype)

    def _shaped(self, x: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(x, [self.acting.batch, *x.shape[1:]])

    def _output(self, name: str, array: ArraySpec) -> Output:
        form = {"name": name, "dtype": array.dtype, "shape": array.shape}
        if name == ACTION:
            how = "greedy" if self.acting.greedy else "sampled"
            return Output(**form, kind="action", of=name, meaning=f"{how} action, for the environment's step")
        if name == GREEDY_ACTION:
            return Output(**form, kind="action", of=name, meaning="the action without exploration, in the same form")
        states = {output: state for state, output in self._next.items()}
        if name in states:
            meaning = f"{name.removeprefix(_NEXT)} of the next step"
            return Output(**form, kind="state", of=states[name], meaning=meaning)
        return Output(**form, kind="detail", of=name, meaning=_MEANINGS.get(name, f"the algorithm's {name}"))


def _any_width(each: Input) -> list[None]:
    """The width of the noise is known only after the noise has been used."""
    return [None] if each.kind == "noise" else []


def _input(label: str, kind: Any, of: str, array: ArraySpec, meaning: str) -> Input:
    return Input(name=_plain(label), kind=kind, of=of, dtype=array.dtype, shape=array.shape, meaning=meaning)


def _plain(name: str) -> str:
    """A name that every format accepts."""
    return re.sub(r"\W", "_", name, flags=re.ASCII)


def _named(inputs: Iterable[Input]) -> Iterator[Input]:
    """The inputs, with a number after each name that would otherwise occur twice."""
    seen: dict[str, int] = {}
    for each in inputs:
        count = seen[each.name] = seen.get(each.name, 0) + 1
        yield each if count == 1 else each.model_copy(update={"name": f"{each.name}_{count}"})


def _native_actions(action: tf.Tensor, units: ActionUnits) -> tf.Tensor:
    """Actions [N, ...] of the agent as the environment takes them, float32 or int32."""
    rows = [-1, *units.shape]
    if action.dtype.is_integer:
        return tf.reshape(action, rows) + tf.constant(units.offset.reshape(units.shape), action.dtype)
    scale, offset, low, high = (tf.constant(each, tf.float32) for each in units[:4])
    return tf.reshape(tf.minimum(tf.maximum(action * scale + offset, low), high), rows)


def _used(concrete: Any) -> list[bool]:
    """For each of the function's own inputs, whether an output depends on it."""
    seen: set[str] = set()
    waiting = [x.op for x in concrete.outputs]
    while waiting:
        op = waiting.pop()
        if op.name not in seen:
            seen.add(op.name)
            waiting += [x.op for x in op.inputs] + list(op.control_inputs)
    own = concrete.inputs[: len(concrete.inputs) - len(concrete.captured_inputs)]
    return [x.op.name in seen for x in own]
