"""TensorBoard's event files, written without TensorFlow."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class EventFile:
    """A TensorBoard event file.

    TensorBoard's own `EventFileWriter` would import TensorFlow and keep a thread; one event of thirty
    scalars every few seconds needs neither (it takes a fraction of a millisecond).
    """

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._session, self._summary = Event, SessionLog, Summary
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads a folder's files in the order of their names, so the name begins with the time;
        # nanoseconds keep two files of one second apart.
        name = f"events.out.tfevents.{time.time_ns() // 10**9:010d}.{socket.gethostname()}.{os.getpid()}"
        name += f".{time.time_ns() % 10**9:09d}"
        self._records = RecordWriter(open(folder / name, "wb"))  # noqa: SIM115
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def restart(self, step: int) -> None:
        """Make TensorBoard drop the points of earlier files from `step` on."""
        log = self._session(status=self._session.START)
        self._write(self._event(wall_time=time.time(), step=step, session_log=log))

    def scalars(self, step: int, wall_time: float | None, values: Mapping[str, float]) -> None:
        """Write values by tag at a step."""
        summary = self._summary(
            value=[self._summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        )
        self._write(self._event(wall_time=time.time() if wall_time is None else wall_time, step=step, summary=summary))

    def _write(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
        self._records.flush()

    def close(self) -> None:
        """Close the file; safe to call twice."""
        if not self._records.closed:
            self._records.close()
