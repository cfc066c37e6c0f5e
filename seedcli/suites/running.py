"""`seed benchmark run`: train and evaluate every run of a suite, as many at once as cores allow.

A run is finished once its record holds both evaluations. Otherwise it continues from its last complete step: training
resumes from its checkpoint, an evaluation starts again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from seedcli.errors import SeedError, UsageError
from seedcli.results.runs import read_run
from seedcli.roles.run_lock import is_running
from seedcli.suites.commands import Commands, Interrupted
from seedcli.suites.members import ACTIONS, Member, Record, is_trained, members_of
from seedcli.suites.run_outcome import Tables
from seedcli.suites.suite import Suite, Task
from seedcli.telemetry.numbers import counted, duration, number

_CORES = 2  # that a run keeps busy: a learner and an actor
_FREE_SECONDS = 60.0  # for a learner left behind by a killed suite to end
_LOCK = ".lock"

Outcome = Literal["finished", "failed", "stopped", "running elsewhere", "not trained"]


def default_jobs() -> int:
    """Runs at a time: one for every two cores that this process may use."""
    return max(1, len(os.sched_getaffinity(0)) // _CORES)


def run_suite(
    suite: Suite,
    tasks: Mapping[str, Task],
    results: Path,
    *,
    jobs: int,
    tables: Tables | None = None,
    retry_failed: bool = False,
    evaluate_only: bool = False,
) -> bool:
    """Train and evaluate the runs of a suite that are not finished.

    Args:
        suite: the suite.
        tasks: those of its tasks whose runs are wanted.
        results: folder of its results.
        jobs: runs at a time.
        tables: runs that were finished elsewhere, which are not repeated.
        retry_failed: also those that have failed before.
        evaluate_only: train none, evaluate those that have taken their steps.

    Returns:
        Whether every wanted run is finished.

    Raises:
        UsageError: another process works on the folder, or it holds runs of other settings; nothing was started.
        Stopped: a signal; every command has stopped, with a checkpoint.
    """
    with _lock_results(results):
        members = list(members_of(tasks, results))
        records = [(member, _record(member, suite)) for member in members]
        failed = [member for member, record in records if record.error and not retry_failed]
        done = [member for member, record in records if record.finished or _finished_elsewhere(member, suite, tables)]
        left = [member for member in members if member not in failed and member not in done]
        before = f"{len(done)} finished and {len(failed)} failed before"
        _print_progress(
            f"{suite.name}: {counted(len(members), 'run')}, {before}; {jobs} at a time, results in {results}"
        )
        outcomes = _carry_out_all(suite, left, jobs, evaluate_only, _Progress(len(members), len(left)))
    if failed:
        _print_progress(f"failed before: {'; '.join(map(str, failed))}: --retry-failed tries them again")
    return not failed and outcomes["finished"] == len(left)


class _Progress:
    """Counts runs, from several threads.

    Args:
        total: runs in all.
        left: those to be carried out.
    """

    def __init__(self, total: int, left: int) -> None:
        self._lock = threading.Lock()
        self._total, self._left = total, left
        self._begun = self._ended = 0
        self._since = time.monotonic()

    def begin(self) -> str:
        """Which run begins: "run 2 of 4"."""
        with self._lock:
            self._begun += 1
            return f"run {self._total - self._left + self._begun} of {self._total}"

    def end(self) -> str:
        """The rest when a run has ended: "; 3 runs left, about 0:40", estimated from the mean of the ended runs."""
        with self._lock:
            self._ended += 1
            left = self._left - self._ended
            seconds = (time.monotonic() - self._since) / self._ended * left
            return f"; {counted(left, 'run')} left, about {duration(seconds)}" if left else ""


def _carry_out_all(
    suite: Suite, members: Sequence[Member], jobs: int, evaluate_only: bool, progress: _Progress
) -> Counter[Outcome]:
    commands = Commands()
    with ThreadPoolExecutor(jobs) as executor:
        futures = [executor.submit(_carry_out, member, suite, commands, evaluate_only, progress) for member in members]
        try:
            return Counter(future.result() for future in as_completed(futures))
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            commands.stop()
            _print_progress("stopping; the same command resumes")
            raise


def _carry_out(member: Member, suite: Suite, commands: Commands, evaluate_only: bool, progress: _Progress) -> Outcome:
    """Train and evaluate one run, except for what is already done."""
    which = progress.begin()
    if not _wait_until_free(member.folder, commands.stopping):
        _print_progress(f"{member}: left out, because a learner is using {member.folder}")
        return "running elsewhere"
    record = _record(member, suite)
    try:
        trained = is_trained(member)
        if evaluate_only and not trained:
            _print_progress(f"{member}: left out, because it has not taken its {member.task.steps:,} steps")
            return "not trained"
        record = replace(record, trained=trained, error="")
        member.write(record)
        if not trained:
            _print_progress(f"{which}, {member}: training for {counted(member.task.steps, 'step')}, log {member.log}")
            commands.run(member.train_command(), member.log)
            record = replace(record, trained=True)
            member.write(record)
            _print_progress(f"{member}: {_training(member)}; evaluating")
        for actions in ACTIONS:
            if actions not in record.evaluations:
                out = commands.run(member.eval_command(actions, suite), member.log)
                evaluation = _evaluation(out, in_suite=suite.scores is not None)
                record = replace(record, evaluations={**record.evaluations, actions: evaluation})
                member.write(record)
        _print_progress(f"{member}: {_evaluated(record)}{progress.end()}")
        return "finished"
    except Interrupted:
        return "stopped"
    except SeedError as error:
        member.write(replace(record, error=str(error)))
        _print_progress(f"{member}: failed, see {member.log}: {error}{progress.end()}")
        return "failed"


def _record(member: Member, suite: Suite) -> Record:
    return (member.read() or Record(member.command())).of_length(suite.episodes)


def _finished_elsewhere(member: Member, suite: Suite, tables: Tables | None) -> bool:
    """Whether a run was finished elsewhere, and not begun here."""
    begun = member.record_path.exists() or member.folder.exists()
    found = tables.find(member, suite.episodes) if tables and not begun else None
    return found is not None and found.state == "finished"


def _wait_until_free(folder: Path, stopping: threading.Event) -> bool:
    """Wait until no learner works on a run's folder; False if one does for longer than it takes to stop."""
    deadline = time.monotonic() + _FREE_SECONDS
    while is_running(folder):
        if time.monotonic() > deadline or stopping.wait(0.2):  # there is no notification of a lock's release
            return False
    return True


def _evaluation(out: str, *, in_suite: bool) -> dict[str, Any]:
    """The result of `seed eval --json`, as a record keeps it.

    Raises:
        SeedError: the output has another form.
    """
    try:
        found = json.loads(out.splitlines()[-1])
        played = found["games"][0] if in_suite else found
        returns = played["returns"]
        return {
            "environment": played.get("environment"),
            "returns": returns,
            "return_mean": float(np.mean(returns)),
            "return_std": float(np.std(returns)),
            "normalised": played.get("human_normalised"),
        }
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise SeedError(f"seed eval printed no result, but {out[-200:]!r}") from error


def _training(member: Member) -> str:
    run = read_run(member.folder)
    return f"trained in {duration(run.training_seconds)}, last 100 episodes {number(run.final_return)}"


def _evaluated(record: Record) -> str:
    return ", ".join(f"{name} {number(played['return_mean'])}" for name, played in record.evaluations.items())


@contextlib.contextmanager
def _lock_results(results: Path) -> Iterator[None]:
    """Hold the results for this process.

    Raises:
        UsageError: another process holds them, or the folder cannot be used.
    """
    try:
        results.mkdir(parents=True, exist_ok=True)
        file = (results / _LOCK).open("w")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(
            f"{results} is in use by another seed command: wait for it, or give another --results"
        ) from error
    except OSError as error:
        raise UsageError(f"{results} cannot be used for results ({error.strerror}): give another --results") from error
    with file:
        yield


def _print_progress(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)
