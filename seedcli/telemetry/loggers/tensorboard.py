"""TensorBoard's event files, written without TensorFlow."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seedcli.telemetry.loggers.base import LoggedRun


class TensorBoardLogger:
    """A TensorBoard event file in the run's folder; each start of a run writes another one.

    TensorBoard's own `EventFileWriter` would import TensorFlow. TensorBoard has no videos.

    Args:
        run: the run; its configuration becomes a text.
    """

    def __init__(self, run: LoggedRun) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        folder = run.folder / "tensorboard"
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads a folder's files in the order of their names, so the name begins with the time;
        # nanoseconds keep two files of one second apart.
        seconds, nanoseconds = divmod(time.time_ns(), 10**9)
        name = f"events.out.tfevents.{seconds:010d}.{socket.gethostname()}.{os.getpid()}.{nanoseconds:09d}"
        self._records = RecordWriter(open(folder / name, "wb"))  # noqa: SIM115
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if run.resumed_at is not None:  # makes TensorBoard drop the points of earlier files from there on
            log = SessionLog(status=SessionLog.START)
            self._write(Event(wall_time=time.time(), step=run.resumed_at, session_log=log))
        self._text("config", json.dumps(run.config, indent=2), step=run.resumed_at or 0)

    def scalars(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        summary = self._summary(
            value=[self._summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        )
        self._write(self._event(wall_time=wall_time, step=step, summary=summary))

    def result(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        self.scalars(step, wall_time, values)

    def video(self, step: int, path: Path) -> None:
        pass

    def _text(self, tag: str, text: str, step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING

        indented = "\n".join(f"    {line}" for line in text.splitlines())  # Markdown shows it as it is
        value = self._summary.Value(
            tag=tag,
            metadata=SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text")),
            tensor=TensorProto(dtype=DT_STRING, string_val=[indented.encode()]),
        )
        self._write(self._event(wall_time=time.time(), step=step, summary=self._summary(value=[value])))

    def _write(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
        self._records.flush()

    def close(self, status: int) -> None:
        if not self._records.closed:
            self._records.close()
