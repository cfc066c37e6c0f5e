"""How often environments may be rebuilt, and how a hanging call is detected."""

import json
import os
import subprocess
import sys
import threading

from seedcli.roles.restarts import FAILURE_MEMORY_SECONDS, Restarts
from seedcli.roles.watchdog import Watchdog

WAIT_SECONDS = 30.0


def test_failures_are_allowed_up_to_the_limit_and_expire():
    now = 1e9
    restarts = Restarts(clock=lambda: now)
    assert [restarts.failed("broke", 2) for _ in range(3)] == [True, True, False]
    assert restarts.unreported == "broke"
    now += FAILURE_MEMORY_SECONDS + 1
    assert restarts.failed("broke again", 2) and restarts.failures == 1
    assert not Restarts(clock=lambda: now).failed("no restart is allowed", 0)


def test_failures_are_kept_when_a_process_replaces_itself():
    code = """
import os, sys
from seedcli.roles.restarts import Restarts
restarts = Restarts(f"actor {os.getpid()}")
if restarts.failures < 2:
    restarts.failed(f"broke in {os.getpid()}", 5)
    restarts.replace_process()
print(restarts.actor_id, restarts.failures, restarts.unreported, sys.argv[1], "SEED_ACTOR_FAILURES" in os.environ)
"""
    command = [sys.executable, "-c", code, "argument"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=True)
    _, pid, failures, *sentence, argument, left = done.stdout.split()
    assert failures == "2" and " ".join(sentence) == f"broke in {pid}", "the same process, replaced twice"
    assert argument == "argument" and left == "False"


def test_a_call_that_hangs_does_not_return_while_the_process_is_replaced():
    code = """
import os, subprocess, threading, time
import psutil
from seedcli.roles.restarts import Restarts
restarts, execv = Restarts(), os.execv

def slowly(*arguments):
    time.sleep(0.3)
    execv(*arguments)

def replace():
    while not (children := psutil.Process().children()):
        time.sleep(0.01)
    restarts.failed("hangs", 1)
    restarts.replace_process()

if not restarts.failures:
    os.execv = slowly
    threading.Thread(target=replace).start()
    subprocess.run(["sleep", "600"])  # a simulator in a child process
    print("returned", flush=True)
else:
    print(psutil.Process().children())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_SECONDS, check=True
    )
    assert done.stdout == "[]\n"


def test_invalid_environment_variables_are_ignored(monkeypatch):
    for value in ("no json", "7", json.dumps({"a": 1})):
        monkeypatch.setitem(os.environ, "SEED_ACTOR_FAILURES", value)
        assert Restarts().failures == 0


def test_watchdog_detects_only_calls_that_hang():
    hung = threading.Event()
    seconds = []

    def on_hang(spent):
        seconds.append(spent)
        hung.set()

    quick = Watchdog("quick", 60.0, on_hang, tick=0.01)
    slow = Watchdog("slow", 0.2, on_hang, tick=0.01)
    never = Watchdog("never", 0.0, on_hang)
    for _ in range(1000):
        with quick, slow, never:
            pass
    assert not hung.is_set()
    with quick, slow, never:
        assert hung.wait(WAIT_SECONDS)
    assert len(seconds) == 1 and 0.2 < seconds[0] < WAIT_SECONDS
    for watchdog in (quick, slow, never):
        watchdog.close()
