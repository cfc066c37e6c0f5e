"""`seedcli.Policy`: a trained agent that answers observations with actions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from seedcli.envs.gymnasium.plain import PlainSpaces, unbatched
from seedcli.errors import UsageError
from seedcli.models.acting import Acted
from seedcli.specs import EnvSpec


@dataclass(frozen=True)
class Choice:
    """The output of a policy for one observation, or for a batch with a leading axis N.

    Details are attributes too, if the algorithm has them: "value", "q_values", "logits" and "probabilities" of
    categories, "mean" and "std" of the numbers of a Box, in units in which -1 and 1 are its bounds (SAC: of the normal
    distribution that tanh squashes into the bounds).

    Attributes:
        action: for the environment's `step`.
        greedy_action: the action without exploration, in the same form.
        details: all of them by name.
    """

    action: Any
    greedy_action: Any
    details: Mapping[str, npt.NDArray[Any]]

    def __getattr__(self, name: str) -> npt.NDArray[Any]:
        details = self.__dict__.get("details", {})
        if name in details:
            found: npt.NDArray[Any] = details[name]
            return found
        raise AttributeError(
            f"this agent returns no {name}: it returns {', '.join(['action', 'greedy_action', *details])}"
        )

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self.details]


class Actor(Protocol):
    """The source of a policy's actions: the agent of a run, or a model of it."""

    def act(self, observation: Any, reward: npt.NDArray[np.float32], first: npt.NDArray[np.bool_]) -> Acted:
        """Choose actions for N environments; see `models.acting.ModelActor`."""


class Origin(NamedTuple):
    """Where a policy comes from; the fields are attributes of `Policy`."""

    config: dict[str, Any]
    env_steps: int
    checkpoint: Path
    greedy: bool


class Policy:
    """A trained agent: call it with an observation, or with a batch of them, to get the action.

    It keeps the network's state for each environment (LSTM, frame stack, previous action) between calls; `reset` begins
    new episodes. The first call after that sets the number of environments. Use it from one thread.

    Attributes:
        spec: the environment.
        config: every value of the run's configuration, by section and name; for a model, only the sections run,
            environment, agent and training.
        env_steps: environment steps of the checkpoint.
        checkpoint: its folder, or the model's file.
        greedy: whether it takes the greedy action instead of sampling as in training.
    """

    def __init__(self, actor: Actor, spaces: PlainSpaces, origin: Origin) -> None:
        """Make the policy from the source of its actions; use `seedcli.load_policy`."""
        self.spec: EnvSpec = spaces.spec
        self.config, self.env_steps, self.checkpoint, self.greedy = origin
        self._actor = actor
        self._spaces = spaces
        self._batch: int | None = None  # N; None: one environment
        self._first: npt.NDArray[np.bool_] | None = None  # whose next observation begins an episode; None: all

    def __repr__(self) -> str:
        how = "greedy" if self.greedy else "sampled"
        return f"<seedcli.Policy for {self.spec.name}, {how}, {self.env_steps:,} environment steps>"

    def __call__(self, observation: Any, reward: Any = 0.0, first: Any = False) -> Any:
        """The action for an observation; arguments and errors as of `step`.

        Returns:
            What the environment's `step` takes: an int for Discrete, else an array; for a batch an array [N, ...].
        """
        return self.step(observation, reward, first).action

    def step(self, observation: Any, reward: Any = 0.0, first: Any = False) -> Choice:
        """The action for an observation, with its details.

        Args:
            observation: as `reset` or `step` of the environment returns it; for N environments, with one more axis in
                front.
            reward: the reward that came with it; for N environments, [N]. Only networks that take the previous reward
                (`agent.network.previous_action_reward`) use it; it counts as 0 where an episode begins.
            first: whether it is the first of an episode; for N environments, also [N].

        Raises:
            UsageError: an argument has the wrong shape or type, or the number of environments has changed without a
                `reset`.
            EnvironmentFailed: the policy is damaged: its action is non-finite.
            SeedError: the device is out of memory, or an action of a model is non-finite.
        """
        arrays, batch = self._spaces.read(observation)
        if self._first is not None and batch != self._batch:
            raise UsageError(
                f"the observation is for {_counted(batch)}, and those before were for {_counted(self._batch)}: call "
                "policy.reset() first, which starts new episodes in all of them"
            )
        rows = 1 if batch is None else batch
        begins = _scalars("first", first, batch, np.bool_)
        begins = np.ones(rows, np.bool_) if self._first is None else begins | self._first
        rewards = np.where(begins, np.float32(0), _scalars("reward", reward, batch, np.float32))
        acted = self._actor.act(arrays, rewards, begins)
        self._batch, self._first = batch, np.zeros(rows, np.bool_)
        if batch is not None:
            return Choice(*acted)
        details = {name: value[0] for name, value in acted.details.items()}
        return Choice(unbatched(acted.action), unbatched(acted.greedy_action), details)

    def reset(self, rows: npt.ArrayLike | None = None) -> None:
        """Begin new episodes: the next observation of these environments is the first of one.

        Args:
            rows: mask [N] bool or indices of some environments of a batch; None: all, whose number may then change.

        Raises:
            UsageError: a mask of another length, or an index out of range.
        """
        if rows is None or self._first is None:
            self._first = None
            return
        chosen = np.asarray(rows)
        if chosen.dtype == np.bool_ and chosen.shape != self._first.shape:
            raise UsageError(f"rows is a mask of shape {chosen.shape}: it must be {self._first.shape}")
        if chosen.dtype != np.bool_ and chosen.size:
            if chosen.dtype.kind not in "iu":
                raise UsageError(f"rows is {chosen.dtype}: it must be a mask of bool, or indices")
            if chosen.min() < 0 or chosen.max() >= len(self._first):
                raise UsageError(f"rows = {rows} must be indices from 0 to {len(self._first) - 1}")
        self._first[chosen if chosen.size else []] = True


def _scalars(name: str, value: Any, batch: int | None, dtype: type[Any]) -> npt.NDArray[Any]:
    """One value for each environment, [N]."""
    array = np.asarray(value)
    shapes = [()] if batch is None else [(), (batch,)]
    kinds = "b" if dtype is np.bool_ else "iufb"
    if array.shape not in shapes or array.dtype.kind not in kinds:
        wanted = "bool" if dtype is np.bool_ else "a number"
        many = "" if batch is None else f", or an array ({batch},) of them"
        raise UsageError(f"{name} has shape {array.shape} and type {array.dtype}: it must be {wanted}{many}")
    return np.broadcast_to(array.astype(dtype), (1 if batch is None else batch,))


def _counted(batch: int | None) -> str:
    return "one environment" if batch is None else f"a batch of {batch}"
