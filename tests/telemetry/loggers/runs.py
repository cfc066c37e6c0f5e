"""A run for loggers, and event files that are read back without the writer."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from seedcli.telemetry.loggers.base import LoggedRun

CONFIG = {"run": {"seed": 3}, "training": {"batch_size": 32}, "agent": {"network": {"hidden": [8, 8], "lstm": 0}}}


def logged(folder: Path, resumed_at: int | None = None) -> LoggedRun:
    """A run in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return LoggedRun("pong/first", folder, CONFIG, resumed_at)


def events(folder: Path) -> list[Any]:
    """The events of all files of a folder, oldest first; their checksums are verified."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    found = []
    for file in sorted(folder.iterdir()):
        data = file.read_bytes()
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            assert struct.unpack("<I", data[8:12])[0] == masked_crc32c(data[:8])
            body = data[12 : 12 + size]
            assert struct.unpack("<I", data[12 + size : 16 + size])[0] == masked_crc32c(body)
            found.append(Event.FromString(body))
            data = data[16 + size :]
    return found
