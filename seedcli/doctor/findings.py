"""The findings of `seed doctor`, and helpers that its parts share."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

Status = Literal["ok", "warning", "missing"]


@dataclass(frozen=True)
class Finding:
    """A finding about one item.

    Attributes:
        name: the item.
        status: "ok"; "warning": limited; "missing": absent or broken.
        detail: what was found, as text.
        advice: what to do; "" for nothing.
        required: training on this machine needs it, so "missing" makes the command fail.
        value: the finding for programs: a number, text, list or null.
    """

    name: str
    status: Status
    detail: str
    advice: str = ""
    required: bool = False
    value: Any = None


def package(module: str) -> str | None:
    """The version of a package, without importing it; "" if it has none, None if it is not installed."""
    if importlib.util.find_spec(module) is None:
        return None
    names = {"ale_py": "ale-py", "zmq": "pyzmq", "grpc": "grpcio"}
    try:
        return version(names.get(module, module))
    except PackageNotFoundError:
        return ""
