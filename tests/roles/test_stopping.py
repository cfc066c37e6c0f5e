"""Signals that stop a process, sent to real processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import IO

import pytest

SECONDS = 20.0
NOTED = """
import sys, time
from seedcli.roles.stopping import Signals
signals = Signals()
print("ready", flush=True)
signals.raised.wait()
print("noted", flush=True)
sys.stdin.readline()
sys.exit(signals.status)
"""
RAISED = """
import sys, time
from seedcli.roles.stopping import Stopped, raising_stopped
try:
    with raising_stopped():
        try:
            print("ready", flush=True)
            time.sleep(60)
        finally:
            print("noted", flush=True)
            sys.stdin.readline()
except Stopped as stopped:
    sys.exit(stopped.status)
"""
# An extension module may import another one, and continue without it whatever its import raises.
SWALLOWED = """
import contextlib, sys, time
from seedcli.roles.stopping import Signals, Stopped, raising_stopped
begun = False
try:
    with raising_stopped():
        with contextlib.suppress(BaseException):
            print("ready", flush=True)
            time.sleep(60)
        print("noted", flush=True)
        sys.stdin.readline()
        if {learner}:
            Signals()
            begun = True
except Stopped as stopped:
    sys.exit(1 if begun else stopped.status)
"""


class Script:
    """A process that prints its progress; it ends when its standard input is closed."""

    def __init__(self, text: str, *prefix: str) -> None:
        if not prefix:  # the tests themselves may run under nohup
            text = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n{text}"
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._out.readline() == "ready\n"

    @property
    def _out(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        assert self._out.readline() == "noted\n"

    def end(self) -> int:
        self.process.communicate(timeout=SECONDS)
        return self.process.returncode


@pytest.fixture
def scripts() -> Iterator[list[Script]]:
    started: list[Script] = []
    yield started
    for script in started:
        script.process.kill()
        script.process.communicate()


@pytest.mark.parametrize("text", [NOTED, RAISED], ids=["noted", "raised"])
@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)],
    ids=lambda value: str(value),
)
def test_the_first_signal_is_a_clean_stop(
    scripts: list[Script], text: str, number: signal.Signals, status: int
) -> None:
    scripts.append(Script(text))
    scripts[0].send(number)
    assert scripts[0].end() == status


@pytest.mark.parametrize("learner", [True, False], ids=["before a learner begins", "elsewhere"])
def test_a_signal_is_not_lost_when_an_import_swallows_it(scripts: list[Script], learner: bool) -> None:
    scripts.append(Script(SWALLOWED.format(learner=learner)))
    scripts[0].send(signal.SIGTERM)
    assert scripts[0].end() == 143


def test_a_second_signal_ends_a_learner_at_once(scripts: list[Script]) -> None:
    scripts.append(Script(NOTED))
    scripts[0].send(signal.SIGTERM)
    scripts[0].process.send_signal(signal.SIGINT)
    assert scripts[0].process.wait(SECONDS) == 130


def test_sigterms_in_quick_succession_count_as_one_but_a_later_one_does_not(scripts: list[Script]) -> None:
    # As SLURM preempts a job: SIGTERM, SIGCONT, SIGTERM.
    scripts.append(Script(NOTED))
    for number in (signal.SIGTERM, signal.SIGCONT, signal.SIGTERM):
        scripts[0].process.send_signal(number)
    assert scripts[0]._out.readline() == "noted\n"
    with pytest.raises(subprocess.TimeoutExpired):
        scripts[0].process.wait(1.2)  # it continues its clean stop
    scripts[0].process.send_signal(signal.SIGTERM)
    assert scripts[0].process.wait(SECONDS) == 143


def test_a_second_signal_ends_other_commands_at_once(scripts: list[Script]) -> None:
    scripts.append(Script(RAISED))
    scripts[0].send(signal.SIGTERM)
    scripts[0].process.send_signal(signal.SIGTERM)
    assert scripts[0].process.wait(SECONDS) == -signal.SIGTERM


@pytest.mark.parametrize("text", [NOTED, RAISED], ids=["noted", "raised"])
def test_nohup_is_respected(scripts: list[Script], text: str) -> None:
    scripts.append(Script(text, "nohup"))
    scripts[0].process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        scripts[0].process.wait(0.5)
    scripts[0].send(signal.SIGTERM)
    assert scripts[0].end() == 143
