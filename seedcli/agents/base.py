"""The protocol between an algorithm and the rest of the learner, which does not depend on the algorithm.

Axis conventions: N rows of an inference batch, B columns and T transitions of a training batch, A actions.
Arrays in training are time-major [K + T + 1, B, ...]: K burn-in records, then the T + 1 records of T transitions.

Record t of an environment holds what arrived (observation_t, reward_t, terminated_t, truncated_t) and what was chosen
on it (action_t and the algorithm's recorded fields, e.g. parameters of the behaviour policy or Q values).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from seedcli.agents.noise import Source
from seedcli.specs import ArraySpec

Role = Literal["training", "evaluation"]
# A nested structure (dict, tuple) of tensors with a leading batch axis.
State = Any


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """A threshold on a metric that indicates a training problem (see `telemetry.diagnosis`).

    Attributes:
        metric: the name in `LossOutputs.metrics`.
        above: the symptom shows above this value; None if `below` is set.
        below: the symptom shows below this value; None if `above` is set.
        sentence: description of the problem, a format string for the value.
        settings: keys such as "training.learning_rate" that may be the cause, the likeliest first; at least one.
        patience: fraction of the run's environment steps during which the metric is ignored.
    """

    metric: str
    above: float | None = None
    below: float | None = None
    sentence: str
    settings: tuple[str, ...]
    patience: float = 0.0

    def __post_init__(self) -> None:
        if (self.above is None) == (self.below is None):
            raise ValueError(f"a symptom of {self.metric} must have one of above and below")
        if not self.settings:
            raise ValueError(f"a symptom of {self.metric} must name a setting to look at")

    def shows(self, value: float) -> bool:
        """Whether the value is past the threshold; False for NaN."""
        return (self.above is not None and value > self.above) or (self.below is not None and value < self.below)

    @property
    def rule(self) -> str:
        """The threshold in words: "saturated_units is above 0.9"."""
        return f"{self.metric} is " + (f"above {self.above:g}" if self.above is not None else f"below {self.below:g}")


@dataclass(frozen=True)
class AlgorithmSpec:
    """What an algorithm requires of the learner.

    Attributes:
        name: as in `agent.algorithm`.
        burn_in: K, records evaluated for their state only.
        unroll_length: T, transitions of an unroll.
        source: where training batches come from: "queue" (each unroll once, in order) or "replay".
        recorded: outputs of `act` that are stored with each record besides the action: name → spec of one row.
        roles: possible roles of streams: "training", and "evaluation" if the algorithm explores less there. Records of
            evaluation streams are never trained on.
        samples_actions: True: actions are sampled from the learned policy (V-trace), so the greedy policy is a
            different one and may perform much worse; False: exploration is added to a greedy policy (R2D2's ε).
        symptoms: signs of training problems, the most specific first; if there are several, the first is reported.
        sample_length: n, transitions of a training column, which a replay draws at a random place of a stored unroll;
            None: whole unrolls. Requires K = 0 and an agent without state, and with n < T uniform draws.
        shuffles: whether `training.minibatches` > 1 consist of single transitions of the batch in random order, each a
            column of 2 records, instead of whole unrolls. Requires unrolls from a queue, K = 0 and an agent without
            state or with `RecordStates`. Only `loss` gets such columns; `observe` and `TargetsAgent.targets` get the
            unrolls.
    """

    name: str
    burn_in: int
    unroll_length: int
    source: Literal["queue", "replay"]
    recorded: Mapping[str, ArraySpec]
    roles: tuple[Role, ...] = ("training",)
    samples_actions: bool = True
    symptoms: tuple[Symptom, ...] = ()
    sample_length: int | None = None
    shuffles: bool = False

    @property
    def records(self) -> int:
        """K + T + 1, records of an unroll."""
        return self.burn_in + self.unroll_length + 1

    @property
    def batch_length(self) -> int:
        """Transitions of a training column: n, or T for whole unrolls."""
        return self.unroll_length if self.sample_length is None else self.sample_length

    @property
    def batch_records(self) -> int:
        """Records of a training column: n + 1, or K + T + 1 for whole unrolls."""
        return self.burn_in + self.batch_length + 1


class ActInputs(NamedTuple):
    """One inference batch.

    Attributes:
        observation: [N, ...] in the environment's dtype; a dict of such arrays if its specification has names.
        reward: [N] float32, raw.
        first: [N] bool, the first record of an episode; the state of these rows is already reset.
        exploration: [N] float32, each environment's value of `Agent.exploration` (e.g. ε).
        seed: [2] int32, for stateless random operations, different for every batch; for an exported policy, the random
            numbers themselves. Draw with `agents.noise`, which accepts both.
        greedy: act without exploration, as in evaluation; a Python bool, the same in every call of one trace.
    """

    observation: Any
    reward: tf.Tensor
    first: tf.Tensor
    exploration: tf.Tensor
    seed: Source
    greedy: bool = False


class ActOutputs(NamedTuple):
    """Outputs of `Agent.act` for one inference batch.

    Attributes:
        action: [N, ...] as in the environment's `ActionSpec`, int32 or float32; equal to `greedy_action` if
            `ActInputs.greedy` is set.
        recorded: name → [N, ...], the fields of `AlgorithmSpec.recorded`.
        greedy_action: [N, ...], the action without exploration (evaluation).
        details: name → [N, ...], further outputs for `seedcli.Policy.step`: any of "value", "q_values", and what
            `Distribution.describe` gives. The learner skips computations that only these need.
    """

    action: tf.Tensor
    recorded: Mapping[str, tf.Tensor]
    greedy_action: tf.Tensor
    details: Mapping[str, tf.Tensor] = MappingProxyType({})


class UnrollBatch(NamedTuple):
    """A training batch, time-major.

    Attributes:
        observation: [K+T+1, B, ...]; a dict of such arrays if the environment's specification has names.
        reward: [K+T+1, B] float32, raw; reward_t arrived with record t.
        terminated: [K+T+1, B] bool.
        truncated: [K+T+1, B] bool.
        action: [K+T+1, B, ...], chosen on record t, int32 or float32.
        recorded: name → [K+T+1, B, ...].
        state: the agent state before record 0 (after any reset), [B, ...].
        weights: [B] float32, importance weights (1 from a queue).
        targets: name → [T, B, ...], what `TargetsAgent.targets` returned for the batch; {} for other agents.
    """

    observation: Any
    reward: tf.Tensor
    terminated: tf.Tensor
    truncated: tf.Tensor
    action: tf.Tensor
    recorded: Mapping[str, tf.Tensor]
    state: State
    weights: tf.Tensor
    targets: Mapping[str, tf.Tensor] = {}

    def map_columns(self, function: Callable[[Any, int], Any]) -> UnrollBatch:
        """The batch with every array replaced by `function(array, axis)`, where `axis` is that of its columns."""

        def mapped(name: str, value: Any) -> Any:
            axis = 0 if name in _COLUMNS_FIRST else 1
            return tf.nest.map_structure(lambda array: function(array, axis), value)

        return UnrollBatch(**{name: mapped(name, value) for name, value in self._asdict().items()})

    def transitions(self, index: tf.Tensor, state: State) -> UnrollBatch:
        """The batch whose columns are single transitions of this one, with K = 0 and T = 1.

        Args:
            index: [N] int32, t·B + b for the transition from record t of column b.
            state: [N, ...], of `record_states`.
        """
        columns = tf.shape(self.weights)[0]

        def rows(array: tf.Tensor, which: tf.Tensor) -> tf.Tensor:
            return tf.gather(tf.reshape(array, [-1, *array.shape[2:]]), which)

        def selected(name: str, value: Any) -> Any:
            if name == "weights":
                return tf.gather(value, index % columns)
            which = index[None] if name == "targets" else tf.stack([index, index + columns])
            return tf.nest.map_structure(lambda array: rows(array, which), value)

        fields = {name: selected(name, value) for name, value in self._asdict().items() if name != "state"}
        return UnrollBatch(**fields, state=state)


_COLUMNS_FIRST = (
    "state",
    "weights",
)  # fields of an `UnrollBatch` whose first axis is the columns; of others the second


class ParameterGroup(NamedTuple):
    """Variables that are trained together, by one loss and one optimizer.

    Attributes:
        variables: the variables, always in the same order; at least one.
        learning_rate: factor of the scheduled `training.learning_rate`.
    """

    variables: Sequence[keras.Variable]
    learning_rate: float = 1.0


class LossOutputs(NamedTuple):
    """Outputs of `Agent.loss`.

    Attributes:
        loss: scalar float32, the sum over the columns divided by T times `training.columns_per_update`. With several
            parameter groups: name of the group → such a loss, differentiated by the group's variables only.
        priorities: [B] float32, at least 0, new priorities of replayed unrolls; None without prioritized draws.
        metrics: name → scalar float32, for telemetry.
        stop: scalar float32; if its mean over the devices is above 0, this update and the remaining ones on the batch
            are skipped (e.g. the policy has moved too far from the one that acted). None: never.
    """

    loss: tf.Tensor | Mapping[str, tf.Tensor]
    priorities: tf.Tensor | None
    metrics: Mapping[str, tf.Tensor]
    stop: tf.Tensor | None = None


class Agent(Protocol):
    """An algorithm with its networks.

    `act` takes the network as an argument because inference uses its own copy of the variables (see `make_network`),
    which the trainer publishes between updates.

    Attributes:
        algorithm: requirements of the algorithm.
        network: the trained network, built (its variables exist).
    """

    algorithm: AlgorithmSpec
    network: Any

    def make_network(self) -> Any:
        """Another network of the same architecture, built, for inference; variables in the same order."""

    def initial_state(self, batch_size: int) -> State:
        """The state at the start of an episode, [batch_size, ...]; the same structure as `act`'s."""

    def exploration(self, role: Role, index: npt.NDArray[np.int64], total: int) -> npt.NDArray[np.float32]:
        """Amount of exploration of each environment, [E] float32, passed to `act` as `ActInputs.exploration`.

        Args:
            role: role of the environments' stream.
            index: [E], index of each environment among those of its role, 0 to total-1.
            total: number of training environments of the configured fleet, N.
        """

    def act(self, network: Any, inputs: ActInputs, state: State) -> tuple[ActOutputs, State]:
        """Choose actions for a batch; a pure function except that it reads the network's variables.

        Args:
            network: made by `make_network`, or `self.network`.
            inputs: the batch.
            state: [N, ...], already reset where `inputs.first`.

        Returns:
            The outputs and the state after the record (including the action taken, if the network uses it).
        """

    def parameter_groups(self) -> Mapping[str, ParameterGroup]:
        """The trained variables by name of their group; the same names and variables at every call.

        Every group has its own loss, optimizer and clipping. No variable is in two groups, and `variables` contains
        all of them.
        """

    def observe(self, unrolls: UnrollBatch) -> None:
        """Update non-trainable statistics with a training batch; called once before the first `loss` on it.

        Unrolls overlap: each record must count once. Columns of weight 0 must not count. Each training device calls it
        with its own columns: `agents.replicas` sums over the devices and assigns on all of them.
        """

    def loss(self, unrolls: UnrollBatch) -> LossOutputs:
        """The loss of a batch, or of one of its minibatches, under `self.network`, differentiable.

        Each training device calls it with its own columns and the losses are added: divide sums by T times
        `TrainingConfig.columns_per_update`, never by the number of columns in `unrolls`. T is the same with
        `AlgorithmSpec.shuffles`, whose minibatches have as many transitions in T times as many columns.
        """

    def after_update(self, update: tf.Tensor) -> None:
        """Do the work that follows an update, such as copying a target network (`agents.target_networks`).

        Called after every applied update as part of its graph, outside of replicas (in the cross-replica context of
        `tf.distribute`, if there is one).

        Args:
            update: number of the update, from 1, scalar int64.
        """

    def variables(self) -> Mapping[str, tf.Variable]:
        """All variables of the agent that a checkpoint must hold, by names that are the same in every process; see
        `agents.variables.named_variables`.
        """


@runtime_checkable
class InitialPriorities(Protocol):
    """Optional for agents with prioritized draws; without it, a new unroll gets the highest priority so far."""

    def initial_priorities(self, unrolls: UnrollBatch) -> tf.Tensor:
        """Priorities [B] float32 of new unrolls, from the recorded fields; no network is evaluated.

        Reads only rewards, ends of episodes and recorded fields; the other fields of `unrolls` may be None.
        """


@runtime_checkable
class TargetsAgent(Protocol):
    """An `Agent` that computes targets once for all updates on a batch."""

    def targets(self, unrolls: UnrollBatch) -> Mapping[str, tf.Tensor]:
        """Targets by name, each [T, B, ...]; passed to `loss` as `UnrollBatch.targets`, without a gradient.

        Called once per batch with all of a device's columns, after `observe` and before the first update.
        """


@runtime_checkable
class RecordStates(Protocol):
    """An `Agent` whose state before any record follows from earlier records, as with a frame stack but not an LSTM."""

    def record_states(self, unrolls: UnrollBatch, index: tf.Tensor) -> State:
        """The states [N, ...] before records of a batch, reset where the record is the first of its episode.

        No gradient flows into them. Parts that only `act` reads may be left out.

        Args:
            unrolls: the batch.
            index: [N] int32, t·B + b for record t of column b.
        """


def transitions_of(agent: Agent, unrolls: UnrollBatch, index: tf.Tensor) -> UnrollBatch:
    """A batch whose columns are single transitions of `unrolls`; arguments as for `UnrollBatch.transitions`."""
    state = agent.record_states(unrolls, index) if isinstance(agent, RecordStates) else {}
    return unrolls.transitions(index, state)
