"""The protocol between an algorithm and the rest of the learner. Nothing outside `agents/` asks which one runs.

Axis conventions: N rows of an inference batch, B columns and T transitions of a training batch, A actions.
Arrays in training are time-major [K + T + 1, B, ...]: K burn-in records, T transitions, one record more.

Record t of an environment is what arrives (observation_t, reward_t, terminated_t, truncated_t) and then what
was chosen on it (action_t and the algorithm's recorded fields, e.g. parameters of the behaviour policy or Q values).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from seedcli.specs import ArraySpec

Role = Literal["training", "evaluation"]
# A nested structure (dict, tuple) of tensors with a leading batch axis.
State = Any


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """A figure that says that training goes wrong, and what to look at then (see `telemetry.diagnosis`).

    Attributes:
        metric: the name in `LossOutputs.metrics`.
        above: more than this is a symptom; None where `below` is given.
        below: less than this is one; None where `above` is given.
        sentence: what is wrong, a format string that gets the figure.
        settings: keys such as "training.learning_rate" that may be the cause, the likeliest first; at least one.
        patience: share of the run's environment steps before which the figure means nothing yet.
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
        """Whether the figure is a symptom; one that is not a number never is."""
        return (self.above is not None and value > self.above) or (self.below is not None and value < self.below)

    @property
    def rule(self) -> str:
        """When it shows, in words: "saturated_units is above 0.9"."""
        return f"{self.metric} is " + (f"above {self.above:g}" if self.above is not None else f"below {self.below:g}")


@dataclass(frozen=True)
class AlgorithmSpec:
    """What an algorithm asks of the machinery around it.

    Attributes:
        name: "vtrace", "r2d2".
        burn_in: K, records evaluated for their state only.
        unroll_length: T, transitions of an unroll.
        source: where training batches come from: "queue" (each unroll once, in order) or "replay".
        recorded: what `act` chooses besides the action and is kept with each record: name → spec of one row.
        roles: what streams may be: "training", and "evaluation" where the algorithm acts otherwise when it is only
            watched. Records of evaluation streams are never trained on.
        samples_actions: training draws its actions from the policy that is learned (V-trace), so that the greedy action
            is another policy, which may do much worse; False: exploration is added to a greedy policy (R2D2's ε).
        symptoms: figures among its metrics that say that training goes wrong, the most specific first: of several that
            show at once the first is said.
    """

    name: str
    burn_in: int
    unroll_length: int
    source: Literal["queue", "replay"]
    recorded: Mapping[str, ArraySpec]
    roles: tuple[Role, ...] = ("training",)
    samples_actions: bool = True
    symptoms: tuple[Symptom, ...] = ()

    @property
    def records(self) -> int:
        """K + T + 1, records of an unroll."""
        return self.burn_in + self.unroll_length + 1


class ActInputs(NamedTuple):
    """One inference batch.

    Attributes:
        observation: [N, ...] in the environment's dtype; a dict of such arrays where its specification has names.
        reward: [N] float32, raw.
        first: [N] bool, the first record of an episode: the state given is already reset there.
        exploration: [N] float32, by environment, as `Agent.exploration` gives it (e.g. ε).
        seed: [2] int32, for stateless random operations; differs from batch to batch.
    """

    observation: Any
    reward: tf.Tensor
    first: tf.Tensor
    exploration: tf.Tensor
    seed: tf.Tensor


class ActOutputs(NamedTuple):
    """What is chosen on a record.

    Attributes:
        action: [N, ...] as the environment's `ActionSpec` has it, int32 or float32.
        recorded: name → [N, ...], the fields of `AlgorithmSpec.recorded`.
        greedy_action: [N, ...], the action without exploration (evaluation).
    """

    action: tf.Tensor
    recorded: Mapping[str, tf.Tensor]
    greedy_action: tf.Tensor


class UnrollBatch(NamedTuple):
    """A training batch, time-major.

    Attributes:
        observation: [K+T+1, B, ...]; a dict of such arrays where the environment's specification has names.
        reward: [K+T+1, B] float32, raw; reward_t arrived with record t.
        terminated: [K+T+1, B] bool.
        truncated: [K+T+1, B] bool.
        action: [K+T+1, B, ...], chosen on record t, int32 or float32.
        recorded: name → [K+T+1, B, ...].
        state: the agent state before record 0 (after any reset), [B, ...].
        weights: [B] float32, importance weights (1 from a queue).
    """

    observation: Any
    reward: tf.Tensor
    terminated: tf.Tensor
    truncated: tf.Tensor
    action: tf.Tensor
    recorded: Mapping[str, tf.Tensor]
    state: State
    weights: tf.Tensor


class LossOutputs(NamedTuple):
    """What a loss gives.

    Attributes:
        loss: scalar float32, sums divided by the fixed T·B.
        priorities: [B] float32, at least 0, the new priorities of a replay's unrolls; None for a queue.
        metrics: name → scalar float32, for telemetry.
    """

    loss: tf.Tensor
    priorities: tf.Tensor | None
    metrics: Mapping[str, tf.Tensor]


class Agent(Protocol):
    """An algorithm with its networks.

    `act` takes the network to use, because inference reads its own copy of the variables (see
    `make_network`), published by the trainer between updates.

    Attributes:
        algorithm: what the machinery must provide.
        network: the trained network, built (its variables exist).
    """

    algorithm: AlgorithmSpec
    network: Any

    def make_network(self) -> Any:
        """Another network of the same architecture, built, for inference; variables in the same order."""

    def initial_state(self, batch_size: int) -> State:
        """The state at the start of an episode, [batch_size, ...]; the same structure as `act`'s."""

    def exploration(self, role: Role, index: npt.NDArray[np.int64], total: int) -> npt.NDArray[np.float32]:
        """How much each environment explores, [E] float32: what `act` gets as `ActInputs.exploration`.

        Args:
            role: of the environments' stream.
            index: [E], which of the training environments each is, 0 to total-1; within the role.
            total: training environments of the configured fleet, N.
        """

    def act(self, network: Any, inputs: ActInputs, state: State) -> tuple[ActOutputs, State]:
        """Choose actions for a batch; pure but for reading the network's variables.

        Args:
            network: made by `make_network`, or `self.network`.
            inputs: the batch.
            state: [N, ...], already reset where `inputs.first`.

        Returns:
            The outputs and the state after the record (with the action taken in it, where a network uses it).
        """

    def observe(self, unrolls: UnrollBatch) -> None:
        """Take statistics of a training batch into variables that are not trained; called once before its `loss`.

        Every record must count once where unrolls overlap, and columns of weight 0 not at all. Each training device
        calls it with its own columns: `agents.replicas` sums over them and assigns on all of them.
        """

    def loss(self, unrolls: UnrollBatch) -> LossOutputs:
        """The loss of a batch under `self.network`, differentiable.

        Each training device calls it with its own columns, and what they give is added up: sums are divided by the
        configuration's T·B, never by the columns given.
        """

    def after_update(self, update: int) -> None:
        """Called after every applied update with its number, from 1 (e.g. to copy a target network)."""

    def variables(self) -> Mapping[str, tf.Variable]:
        """Everything a checkpoint must hold of the agent, networks and targets, by names that are the same in every
        process; see `agents.variables.named_variables`.
        """


@runtime_checkable
class ReplayAgent(Agent, Protocol):
    """An agent whose `algorithm.source` is "replay": its losses give priorities, and so does this for fresh unrolls."""

    def initial_priorities(self, unrolls: UnrollBatch) -> tf.Tensor:
        """Priorities [B] float32 of fresh unrolls from what was recorded while acting; no network is evaluated.

        Of `unrolls`, observation, action, state and weights may be None: only rewards, ends of episodes and recorded
        fields are read.
        """
