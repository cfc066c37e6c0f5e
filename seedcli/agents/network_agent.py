"""Base class of all built-in agents: the constructor, and the network that acts."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from seedcli.agents.base import AlgorithmSpec, ParameterGroup, Role, State, UnrollBatch
from seedcli.agents.networks.models import RecurrentNetwork, observe
from seedcli.config.sections import AgentConfig, TrainingConfig
from seedcli.specs import EnvSpec


class NetworkAgent:
    """The part of an `agents.base.Agent` that follows from its network; a subclass implements the rest.

    Attributes:
        Network: class of the network.
        config: the section `agent`.
        algorithm: set by the subclass.
        network: the trained network that acts, built.
    """

    Network: ClassVar[type[RecurrentNetwork]]
    algorithm: AlgorithmSpec

    def __init__(
        self, config: AgentConfig, training: TrainingConfig, spec: EnvSpec, seed: int, precision: str = "float32"
    ) -> None:
        """Build the network; raises UsageError if it does not support the environment's observations."""
        self.config: Any = config
        self._spec = spec
        self._seed = seed
        self._precision = precision
        self._columns = training.columns_per_update
        self.network: Any = self.make_network()

    def make_network(self) -> Any:
        """Another network of the same architecture with the initial variables, built."""
        return self.Network(self.config, self._spec, self._seed, self._precision)

    def initial_state(self, batch_size: int) -> State:
        """The state at the start of an episode, [batch_size, ...]; an empty dict for a network without memory."""
        return self.network.initial_state(batch_size)

    def exploration(self, role: Role, index: npt.NDArray[np.int64], total: int) -> npt.NDArray[np.float32]:
        """Zeros [E], for agents whose stochastic policy is their only exploration."""
        return np.zeros(len(index), np.float32)

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        """One group, "network"."""
        return {"network": ParameterGroup(self.network.trainable_variables)}

    def observe(self, unrolls: UnrollBatch) -> None:
        """Update the observation statistics."""
        observe(self.network, unrolls, self.algorithm.burn_in)
