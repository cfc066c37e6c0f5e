"""Sections of a configuration for tests, from keys without their tables."""

from __future__ import annotations

from typing import Any

from seedcli.config.known_keys import owners
from seedcli.config.schema import make_config, make_environment_config
from seedcli.config.sections import NetworkConfig

_OF_NETWORK = {*NetworkConfig.model_fields, "channels"}


def agent_config(**values: Any) -> Any:
    """The section `agent`; keys of the network are moved to its table, those of other choices are left out."""
    network = {key: values.pop(key) for key in list(values) if key in _OF_NETWORK}
    table = {key.removeprefix("agent."): [choice.split('"')[1] for choice in owners()[key]] for key in owners()}
    algorithm, torso = values.get("algorithm", "vtrace"), network.get("torso", "mlp")
    network = {key: value for key, value in network.items() if torso in table.get(f"network.{key}", torso)}
    values = {key: value for key, value in values.items() if algorithm in table.get(key.rstrip("_"), algorithm)}
    return make_config({"agent": {**values, "network": network}}).agent


def env_config(**values: Any) -> Any:
    """The section `environment`."""
    return make_environment_config(values)
