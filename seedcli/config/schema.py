"""A complete configuration: its sections, and the check for conflicts between their values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Self

from pydantic import BaseModel, create_model, model_validator
from pydantic.fields import FieldInfo

from seedcli.config.choices import ALGORITHMS, CHOICES, FAMILIES, TORSOS, TRANSPORTS
from seedcli.config.conflicts import conflicts
from seedcli.config.sections import AgentConfig, EnvironmentConfig, NetConfig, Sections


class Config(Sections):
    """A complete, validated configuration; `config_class` has the keys of what was chosen.

    Raises:
        ValueError: values that are each in range conflict; one sentence that names their keys.
    """

    @model_validator(mode="after")
    def _check_that_values_agree(self) -> Self:
        for conflict in conflicts(self):
            raise ValueError(conflict)
        return self


@cache
def _config_class(algorithm: str, torso: str, family: str, transport: str) -> type[Config]:
    agent: Any = _with_network(ALGORITHMS.config(algorithm), torso)
    environment: Any = FAMILIES.config(family)
    net: Any = TRANSPORTS.config(transport)
    return create_model(
        "Config",
        __base__=Config,
        agent=(agent, agent(algorithm=algorithm)),
        environment=(environment, environment(family=family)),
        net=(net, net(transport=transport)),
    )


def config_class(choice: Mapping[str, str]) -> type[Config]:
    """The configuration with the keys of what was chosen, the same class for the same choices.

    Args:
        choice: by the tables of `CHOICES`.

    Raises:
        UsageError: one of them does not exist or cannot be imported.
    """
    return _config_class(choice["agent"], choice["agent.network"], choice["environment"], choice["net"])


def _with_network(agent: type[AgentConfig], torso: str) -> type[AgentConfig]:
    """An algorithm's configuration with the keys of a torso in `network`."""
    network: Any = TORSOS.config(torso)
    made: type[AgentConfig] = create_model(
        agent.__name__, __base__=agent, __doc__=agent.__doc__, network=(network, network(torso=torso))
    )
    return made


def chosen(values: Mapping[str, Any]) -> type[Config]:
    """The configuration class for nested values, by the choices among them."""

    def choice(table: str) -> str:
        found: Any = values
        for part in CHOICES[table].key.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return str(default_choice(table) if found is None else found)

    return config_class({table: choice(table) for table in CHOICES})


def default_choice(table: str) -> str:
    """The choice of a table if no layer makes one."""
    agent = AgentConfig()
    section = {"agent": agent, "agent.network": agent.network, "environment": EnvironmentConfig(), "net": NetConfig()}
    return str(getattr(section[table], CHOICES[table].key.rsplit(".", 1)[1]))


def make_config(values: Mapping[str, Any] | None = None) -> Config:
    """A configuration of nested values on top of the defaults; raises pydantic's ValidationError, UsageError."""
    return chosen(values or {}).model_validate(values or {})


def make_environment_config(values: Mapping[str, Any]) -> Any:
    """The environment section of values on top of the defaults, e.g. those that a learner sends to an actor.

    Raises:
        UsageError: the family does not exist or cannot be imported here.
        pydantic.ValidationError: a value is invalid.
    """
    return FAMILIES.config(str(values.get("family", default_choice("environment")))).model_validate(values)


@cache
def keys_of(config: type[Config]) -> Mapping[str, FieldInfo]:
    """Key such as "agent.network.lstm" → its field, in the order of the schema."""
    return dict(_fields("", config))


def _fields(prefix: str, model: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    found: list[tuple[str, FieldInfo]] = []
    tables: list[tuple[str, FieldInfo]] = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            tables += _fields(f"{prefix}{name}.", kind)  # after the keys, as in TOML
        else:
            found.append((f"{prefix}{field.alias or name}", field))
    return found + tables
