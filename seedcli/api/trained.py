"""The agent of a checkpoint as the source of a `Policy`'s actions, in TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from seedcli.config.schema import Config
from seedcli.envs.gymnasium.plain import PlainSpaces
from seedcli.inference.device_memory import building
from seedcli.inference.policy import AgentPolicy
from seedcli.models.acting import Acted
from seedcli.roles.trained_agent import TrainedAgent
from seedcli.training.checkpoint_files import Checkpoint


class TrainedActor:
    """An `api.policy.Actor`.

    Args:
        checkpoint, config: of the run.
        spaces: of its environment.
        greedy, seed: see `seedcli.load_policy`.

    Raises:
        CheckpointError: the checkpoint belongs to another agent.
        SeedError: the device is out of memory.
    """

    def __init__(self, checkpoint: Checkpoint, config: Config, spaces: PlainSpaces, *, greedy: bool, seed: int) -> None:
        self._spaces = spaces
        self._greedy = greedy
        with building("while building the policy", "stop other programs that use the device"):
            self._agent = TrainedAgent(checkpoint, config, seed=seed)
        self._policy: AgentPolicy | None = None
        self._slots = 0

    def act(self, observation: Any, reward: npt.NDArray[np.float32], first: npt.NDArray[np.bool_]) -> Acted:
        """Choose actions for N environments; arguments as for `models.acting.ModelActor.act`.

        Raises:
            EnvironmentFailed: the policy is damaged: its action is non-finite.
            SeedError: the device is out of memory.
        """
        rows = len(reward)
        decision = self._policy_of(rows).devices[0].act(observation, reward, first, np.arange(rows, dtype=np.int32))
        details = dict(decision.details)
        greedy_action = self._spaces.write(details.pop("greedy_action"))
        return Acted(self._spaces.write(decision.action), greedy_action, details)

    def _policy_of(self, rows: int) -> AgentPolicy:
        """The policy with at least this many slots; agent states are kept while it has enough."""
        if self._policy is None or rows > self._slots:
            with building(f"while making room for {rows} environments", "play fewer at once"):
                policy = self._agent.make_policy(rows, greedy=self._greedy, detailed=True)
            if self._policy is not None:
                policy.batches = self._policy.batches  # sampling continues with new random numbers
            self._policy, self._slots = policy, rows
        return self._policy
