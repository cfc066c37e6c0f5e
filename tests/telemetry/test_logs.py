from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from seedcli.telemetry.logs import log_once_per, log_to_file, setup_logging
from seedcli.tensorflow_import import quiet_stderr


class Sink:
    def __init__(self) -> None:
        self.messages: list[str] = []

    def log(self, message: str) -> None:
        self.messages.append(message)


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("seedcli")
    handlers, levels = list(root.handlers), (root.level, own.level)
    yield
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(levels[0])
    own.setLevel(levels[1])


def test_records_reach_file_and_view(tmp_path: Path) -> None:
    sink = Sink()
    path = tmp_path / "run" / "learner.log"
    setup_logging(path, sink)
    logging.getLogger("seedcli.net").info("actor %s joined", "a")
    logging.getLogger("seedcli.net").debug("unseen")
    logging.getLogger("seedcli.net").warning("frame refused")
    logging.getLogger("library").info("unseen")
    logging.getLogger("library").error("broken")
    assert sink.messages == ["actor a joined", "warning: frame refused", "error: broken"]
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO seedcli\.net: actor a joined", lines[0])
    assert lines[1].endswith("Z WARNING seedcli.net: frame refused")


def test_a_second_call_replaces_the_first_and_appends(tmp_path: Path) -> None:
    first, second = Sink(), Sink()
    path = tmp_path / "learner.log"
    setup_logging(path, first)
    logging.getLogger("seedcli").info("one")
    setup_logging(path, second, debug=True)
    logging.getLogger("seedcli").debug("two")
    assert first.messages == ["one"] and second.messages == ["two"]
    assert [line.rsplit(" ", 1)[1] for line in path.read_text().splitlines()] == ["one", "two"]


def test_without_a_view_lines_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging(None, None)
    logging.getLogger("seedcli").info("hello")
    captured = capsys.readouterr()
    assert re.fullmatch(r"\d\d:\d\d:\d\d hello\n", captured.err) and captured.out == ""


def test_lines_that_the_view_shows_otherwise_go_only_to_the_file(tmp_path: Path) -> None:
    sink = Sink()
    path = tmp_path / "learner.log"
    setup_logging(path, sink)
    try:
        raise ValueError("a bug")
    except ValueError as error:
        log_to_file(logging.ERROR, "it has failed", error)
    log_to_file(logging.INFO, "the result")
    text = path.read_text()
    assert "Z ERROR seedcli: it has failed\nTraceback" in text and text.endswith("Z INFO seedcli: the result\n")
    assert sink.messages == []


def test_rate_limit_counts_suppressed_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Sink()
    setup_logging(None, sink)
    logger = logging.getLogger("seedcli.test")
    now = 100.0
    monkeypatch.setattr("seedcli.telemetry.logs.time.monotonic", lambda: now)
    assert log_once_per("k", 10, logger, logging.WARNING, "bad frame from %s", "x")
    assert not log_once_per("k", 10, logger, logging.WARNING, "bad frame from %s", "x")
    assert not log_once_per("k", 10, logger, logging.WARNING, "bad frame from %s", "x")
    assert log_once_per("other", 10, logger, logging.INFO, "fine")
    now = 110.0
    assert log_once_per("k", 10, logger, logging.WARNING, "bad frame from %s", "y")
    assert sink.messages == [
        "warning: bad frame from x",
        "fine",
        "warning: bad frame from y (2 more like it were not shown)",
    ]


def test_quiet_stderr_drops_chatter_and_keeps_the_rest(capfd: pytest.CaptureFixture[str]) -> None:
    chatter = (
        b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
        b"I0000 00:00:1795244944.052745    4675 port.cc:153] oneDNN custom operations are on.\n"
        b"2025-01-01 10:00:00.123456: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.\n"
    )
    with quiet_stderr():
        os.write(2, chatter)
        print("a line of ours", file=sys.stderr)
    assert capfd.readouterr().err == "a line of ours\n"
    with pytest.raises(ImportError), quiet_stderr():
        os.write(2, chatter)
        raise ImportError
    assert capfd.readouterr().err.encode() == chatter


def test_importing_tensorflow_prints_nothing() -> None:
    code = (
        "from seedcli.tensorflow_import import import_tensorflow; tf = import_tensorflow();"
        "print(int(tf.function(lambda x: x + 1)(tf.constant(1))))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True, env=environment
    )
    assert done.stdout == "2\n"
    assert done.stderr == ""
