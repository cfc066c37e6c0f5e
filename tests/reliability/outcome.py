"""The report of a chaos run: figures, and failures."""

from __future__ import annotations

import json
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tests.reliability.verdict import Verdict, verdicts
from tests.reliability.watch import complaints, summary
from tests.system.harness import Process

if TYPE_CHECKING:
    from tests.reliability.chaos import Chaos
    from tests.reliability.plan import Life

SOLVED = 475.0  # mean return of 100 episodes of CartPole-v1
_RECOVERY_SECONDS = 60.0  # from a learner's end to the first step of the next one, even on a busy machine
_GROWTH = 0.10  # of a learner's memory, from its first long life to its last
_LONG_SECONDS = 60.0


def resumed_at(process: Process) -> int:
    """Environment steps of the checkpoint that a learner has resumed from, by its log; 0: none."""
    found = re.search(r"resuming from \S+ at ([\d,]+) environment steps", process.stderr)
    return int(found[1].replace(",", "")) if found else 0


def report(chaos: Chaos, orphans: list[str]) -> dict[str, Any]:
    """The report; `failures` has one sentence for each broken promise."""
    plan, lives = chaos.plan, chaos.lives
    expected, others = complaints(process.stderr for process in chaos.written)
    taken = sum(max(0, life.steps - life.resumed_at) for life in lives if life.stepped is not None)
    seconds = time.monotonic() - chaos.begun
    result: dict[str, Any] = {
        "seconds_disturbed": chaos.disturbed_seconds,
        "seconds_in_all": seconds,
        "events": dict(sorted(chaos.events.items())),
        "learner_starts": len(lives),
        "learner_statuses": _counted(chaos.statuses["learner"]),
        "actor_statuses": _counted(chaos.statuses["actor"]),
        "checkpoints_resumed_from": [life.resumed_at for life in lives if life.resumed_at],
        "recovery": _recovery(lives),
        "environment_steps": lives[-1].steps,
        "environment_steps_taken": taken,
        "steps_per_second": taken / seconds,
        "learner_memory": [summary(life.samples) for life in lives if len(life.samples) > 4],
        "actor_memory_most_mb": chaos.actor_memory,
        "expected_complaints": dict(expected),
        "orphans": orphans,
    }
    failures = [*chaos.failures, *(f"an orphan: {orphan}" for orphan in orphans)]
    failures += [f"logged: {line}" for line in others]
    failures += _memory_failures(result["learner_memory"])
    slow = [life for life in lives if (back := _seconds_to_step(life)) is not None and back > _RECOVERY_SECONDS]
    failures += [f"a learner needed {_seconds_to_step(life):.0f} s until its first step" for life in slow]
    if plan.records:
        result["records"], found = _records(verdicts(chaos.ledger), len(lives))
        failures += found
    elif not chaos.failures:
        result["solving"], found = _solving(chaos)
        failures += found
    return {**result, "failures": failures}


def _counted(statuses: dict[int, int]) -> dict[str, int]:
    return {str(status): count for status, count in sorted(statuses.items())}


def _seconds_to_step(life: Life) -> float | None:
    return life.stepped - life.down_since if life.stepped is not None and life.down_since is not None else None


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "most": max(values)} if values else {}


def _recovery(lives: Sequence[Life]) -> dict[str, Any]:
    """Seconds from the end of a learner until the next one serves and until its first step, and between these."""
    serving = [life.served - life.down_since for life in lives if life.served and life.down_since]
    stepping = [seconds for life in lives if (seconds := _seconds_to_step(life)) is not None]
    between = [life.stepped - life.served for life in lives[1:] if life.stepped and life.served]
    return {
        "seconds_to_serving": _spread(serving),
        "seconds_to_first_step": _spread(stepping),
        "seconds_from_serving_to_first_step": _spread(between),
    }


def _memory_failures(memory: Sequence[dict[str, float]]) -> list[str]:
    long = [life for life in memory if life["seconds"] >= _LONG_SECONDS]
    if len(long) < 2:
        return []
    first, last = long[0]["memory_last_mb"], long[-1]["memory_last_mb"]
    if last <= first * (1 + _GROWTH):
        return []
    return [f"the learner's memory has grown from {first:.0f} to {last:.0f} MB from its first life to its last"]


def _records(found: Sequence[Verdict], lives: int) -> tuple[dict[str, Any], list[str]]:
    counts = {
        name: sum(getattr(verdict, name) for verdict in found) for name in asdict(Verdict()) if name != "violation"
    }
    failures = [f"a wrong record: {verdict.violation}" for verdict in found if verdict.violation]
    if not counts["records"] or not counts["trained"]:
        failures.append(f"no record was checked in {lives} lives of the learner")
    return counts, failures


def _solving(chaos: Chaos) -> tuple[dict[str, Any], list[str]]:
    """Evaluate the last checkpoint, and report when training first reached the solved return."""
    evaluation = chaos.fleet.start("eval", "run", "--episodes", "100", "--json")
    evaluation.ends_with(0)
    returns = json.loads(evaluation.stdout)["returns"]
    during = [(when, value) for when, value in chaos.returns if when < chaos.disturbed_seconds]
    mean = statistics.fmean(returns)
    solving = {
        "final_checkpoint_mean_of_100": mean,
        "solved_in_training_after_seconds": next((when for when, value in during if value >= SOLVED), None),
        "best_mean_of_100_in_training": max((value for _, value in during), default=None),
        "share_of_the_time_solved": statistics.fmean(value >= SOLVED for _, value in during) if during else 0.0,
    }
    failures = [] if mean >= SOLVED else [f"CartPole is not solved: {mean:.1f} is below {SOLVED:g}"]
    return solving, failures
