"""How `seed train` shares the cores of its machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, subprocess, sys
from seedcli.roles.local import schedule_as_batch
os.sched_setscheduler(0, getattr(os, sys.argv[1]), os.sched_param(0))
schedule_as_batch()
child = subprocess.run([sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"], capture_output=True)
names = {os.SCHED_OTHER: "SCHED_OTHER", os.SCHED_BATCH: "SCHED_BATCH", os.SCHED_IDLE: "SCHED_IDLE"}
print(names[os.sched_getscheduler(0)], names[int(child.stdout)])
"""


@pytest.mark.parametrize(("before", "after"), [("SCHED_OTHER", "SCHED_BATCH"), ("SCHED_IDLE", "SCHED_IDLE")])
def test_the_processes_of_a_run_do_not_interrupt_each_other(before: str, after: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, before], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [after, after], done.stderr
