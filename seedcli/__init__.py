"""Distributed deep reinforcement learning with central inference, as one command-line tool and from Python.

The names of `__all__` are loaded when they are first used: importing this package imports nothing else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = ["Choice", "Evaluation", "Policy", "Run", "agents", "envs", "errors", "load_policy", "specs", "train"]

if TYPE_CHECKING:
    from seedcli import agents, envs, errors, specs
    from seedcli.api.loading import load_policy
    from seedcli.api.policy import Choice, Policy
    from seedcli.api.run import Evaluation, Run
    from seedcli.api.training import train

_MODULES = ("agents", "envs", "errors", "specs")
_NAMES = {
    "Choice": "seedcli.api.policy",
    "Evaluation": "seedcli.api.run",
    "Policy": "seedcli.api.policy",
    "Run": "seedcli.api.run",
    "load_policy": "seedcli.api.loading",
    "train": "seedcli.api.training",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"seedcli.{name}")
    if name in _NAMES:
        try:
            found = globals()[name] = getattr(importlib.import_module(_NAMES[name]), name)
        except ModuleNotFoundError as error:
            missing = (error.name or "seedcli").partition(".")[0]
            if missing == "seedcli":
                raise
            usage_error: type[Exception] = importlib.import_module("seedcli.errors").UsageError
            raise usage_error(f"seedcli.{name} needs {missing}, not installed here: pip install {missing}") from error
        return found
    raise AttributeError(f"module 'seedcli' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
