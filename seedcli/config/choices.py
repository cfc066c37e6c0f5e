"""The choices that bring their own configuration keys: algorithms, torsos, families of environments, transports."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from seedcli.config.registry import BuiltIn, Registry
from seedcli.config.sections import AgentConfig, EnvironmentConfig, NetConfig, NetworkConfig

ALGORITHMS = Registry(
    "agent.algorithm",
    "algorithm",
    "seedcli.agents",
    AgentConfig,
    {
        "vtrace": BuiltIn("seedcli.agents.vtrace:VTraceAgent", "seedcli.agents.vtrace_config:VTraceConfig"),
        "ppo": BuiltIn("seedcli.agents.ppo:PPOAgent", "seedcli.agents.ppo_config:PPOConfig"),
        "r2d2": BuiltIn("seedcli.agents.r2d2:R2D2Agent", "seedcli.agents.r2d2_config:R2D2Config"),
        "sac": BuiltIn("seedcli.agents.sac:SACAgent", "seedcli.agents.sac_config:SACConfig"),
    },
)

_TORSOS, _TORSO_CONFIGS = "seedcli.agents.networks.torsos", "seedcli.agents.networks.torso_configs"
TORSOS = Registry(
    "agent.network.torso",
    "torso",
    "seedcli.networks",
    NetworkConfig,
    {
        "mlp": BuiltIn(f"{_TORSOS}:MlpTorso", "seedcli.config.sections:NetworkConfig"),
        "impala_shallow": BuiltIn(f"{_TORSOS}:ShallowTorso", f"{_TORSO_CONFIGS}:ShallowConfig"),
        "nature": BuiltIn(f"{_TORSOS}:NatureTorso", f"{_TORSO_CONFIGS}:NatureConfig"),
        "impala_deep": BuiltIn(f"{_TORSOS}:DeepTorso", f"{_TORSO_CONFIGS}:DeepConfig"),
    },
)

FAMILIES = Registry(
    "environment.family",
    "family of environments",
    "seedcli.environments",
    EnvironmentConfig,
    {
        "gymnasium": BuiltIn(
            "seedcli.envs.gymnasium.family:GymnasiumFamily", "seedcli.envs.gymnasium.config:GymnasiumConfig"
        ),
        "atari": BuiltIn("seedcli.envs.atari.family:AtariFamily", "seedcli.envs.atari.config:AtariConfig"),
        "football": BuiltIn(
            "seedcli.envs.football.family:FootballFamily", "seedcli.envs.football.config:FootballConfig"
        ),
        "dmlab": BuiltIn("seedcli.envs.dmlab.family:LabFamily", "seedcli.envs.dmlab.config:LabConfig"),
    },
    needs_tensorflow=False,
)

_NET, _NET_CONFIG = "seedcli.net.transports", "seedcli.config.sections:NetConfig"
# In the order in which a learner opens its listeners and names their addresses; the first is an actor's default.
TRANSPORTS = Registry(
    "net.transport",
    "transport",
    "seedcli.transports",
    NetConfig,
    {
        "grpc": BuiltIn(f"{_NET}:GrpcTransport", _NET_CONFIG),
        "zmq": BuiltIn(f"{_NET}:ZmqTransport", _NET_CONFIG),
        "shm": BuiltIn(f"{_NET}:ShmTransport", _NET_CONFIG),
    },
    needs_tensorflow=False,
)

# By the table whose keys the choice determines.
CHOICES: Mapping[str, Registry] = MappingProxyType(
    {"environment": FAMILIES, "agent": ALGORITHMS, "agent.network": TORSOS, "net": TRANSPORTS}
)
