"""The agent of a checkpoint, ready to act: shared by `seed eval` and `seedcli.load_policy`."""

from __future__ import annotations

import numpy as np

from seedcli.agents.base import AlgorithmSpec, Role
from seedcli.agents.registry import create_agent
from seedcli.config.schema import Config
from seedcli.inference.policy import AgentPolicy
from seedcli.training.checkpoint import Checkpoint, restore


class TrainedAgent:
    """An agent with the variables of a checkpoint.

    Args:
        checkpoint: the variables and the specification of the environment.
        config: of the run; the agent is built from `config.agent` and `config.training`.
        seed: of action sampling, at least 0.

    Attributes:
        agent: the agent.
        algorithm: requirements of the algorithm.
        role: the role in which it plays: "evaluation" if the algorithm has that role.

    Raises:
        CheckpointError: the checkpoint belongs to another agent.
        UsageError: the network or the algorithm does not support the environment.
        tf.errors.ResourceExhaustedError: the device is out of memory (see `inference.device_memory.building`).
    """

    def __init__(self, checkpoint: Checkpoint, config: Config, *, seed: int) -> None:
        self._seed = seed
        self._spec = checkpoint.spec
        self.agent = create_agent(config.agent, config.training, checkpoint.spec, seed)
        self.algorithm: AlgorithmSpec = self.agent.algorithm
        self.role: Role = "evaluation" if "evaluation" in self.algorithm.roles else "training"
        self.load(checkpoint)

    def load(self, checkpoint: Checkpoint) -> None:
        """Load another checkpoint of the same run; policies made before need a `publish`."""
        restore(checkpoint, {"agent": self.agent.variables()})

    def make_policy(self, envs: int, *, greedy: bool, detailed: bool = False) -> AgentPolicy:
        """A policy with slots 0 to envs-1, in its role.

        Args:
            envs: environments played at once.
            greedy: take the greedy action instead of sampling as in training.
            detailed: see `AgentPolicy`.
        """
        policy = AgentPolicy(self.agent, self._spec, max_slots=envs, seed=self._seed, greedy=greedy, detailed=detailed)
        policy.devices[0].assign(np.arange(envs, dtype=np.int32), self.role, np.arange(envs))
        return policy
