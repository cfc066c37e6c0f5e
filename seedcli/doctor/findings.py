"""What `seed doctor` finds out, and what several of its parts need."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

Status = Literal["ok", "warning", "missing"]


@dataclass(frozen=True)
class Finding:
    """What was found out about one thing.

    Attributes:
        name: the thing.
        status: "ok"; "warning": works, but something will not, or not well; "missing": absent or broken.
        detail: what was found, for people.
        advice: what to do; "" where nothing is to be done.
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
    """The version of an importable package, without importing it; "" where it has none, None where absent."""
    if importlib.util.find_spec(module) is None:
        return None
    names = {"ale_py": "ale-py", "zmq": "pyzmq", "grpc": "grpcio", "imageio_ffmpeg": "imageio-ffmpeg"}
    try:
        return version(names.get(module, module))
    except PackageNotFoundError:
        return ""
