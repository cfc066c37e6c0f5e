"""The table of a comparison, as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tasks import FRAMEWORKS, TASKS, Entry

Results = Mapping[tuple[str, Entry], Sequence[Mapping[str, Any]]]


def markdown(results: Results, seconds: float) -> str:
    """The tables of all tasks, with versions and the machine.

    Args:
        results: task and entry → the result of each round.
        seconds: length of a run.
    """
    return "\n".join(_lines(results, seconds)) + "\n"


def _lines(results: Results, seconds: float) -> Iterator[str]:
    for task in dict.fromkeys(name for name, _ in results):
        entries = {entry: rounds for (name, entry), rounds in results.items() if name == task}
        yield f"**{TASKS[task].title}**\n"
        # Short runs do not reach the threshold of a long task: then there is no column.
        reached = any(each["seconds_to_threshold"] is not None for rounds in entries.values() for each in rounds)
        timed = f" time to {TASKS[task].threshold:g} |" if reached else ""
        yield f"| framework | algorithm | steps/s | × best other |{timed}"
        yield "| --- | --- | ---: | ---: |" + " ---: |" * reached
        best = max((_speed(rounds) for entry, rounds in entries.items() if entry.framework != "seed"), default=0.0)
        for entry, rounds in entries.items():
            share = f"{_speed(rounds) / best:.2f}" if best and entry.framework == "seed" else ""
            name = FRAMEWORKS[entry.framework]
            timed = f" {_reached(rounds)} |" if reached else ""
            yield f"| {name} | {entry.algorithm} | {_rate(rounds)} | {share} |{timed}"
        yield ""
    every = [each for rounds in results.values() for each in rounds]
    counts = sorted({len(rounds) for rounds in results.values()})
    yield f"Median (least to most) of {'/'.join(map(str, counts))} rounds of up to {seconds:g} s a run, each framework"
    yield "in turn. Steps/s are those after a warm-up of 20 s, or a quarter of a shorter run; the time to a threshold,"
    yield "minutes and seconds, begins with the process.\n"
    for framework, name in FRAMEWORKS.items():
        found = [rounds[0]["versions"] for (_, entry), rounds in results.items() if entry.framework == framework]
        if found:
            yield f"- {name}: {', '.join(f'{package} {version}' for package, version in found[0].items())}"
    machine, busy = every[0]["machine"], max(each["machine"]["busy_before"] for each in every)
    yield f"- machine: {machine['platform']}, {machine['cores']} cores, Python {machine['python']}"
    yield f"- other work before a run: at most {busy:.0%} of the cores"


def _speed(rounds: Sequence[Mapping[str, Any]]) -> float:
    """Median steps/s of the rounds that did not fail; 0 if all failed."""
    return statistics.median([each["steps_per_second"] for each in rounds if not each["error"]] or [0.0])


def _rate(rounds: Sequence[Mapping[str, Any]]) -> str:
    rates = [each["steps_per_second"] for each in rounds if not each["error"]]
    failed = f"{len(rounds) - len(rates)} of {len(rounds)} failed"
    if not rates:
        return failed
    text = f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
    return text if len(rates) == len(rounds) else f"{text}, {failed}"


def _reached(rounds: Sequence[Mapping[str, Any]]) -> str:
    rounds = [each for each in rounds if not each["error"]]
    if not rounds:
        return ""
    times = sorted(each["seconds_to_threshold"] for each in rounds if each["seconds_to_threshold"] is not None)
    if not times:
        return f"not reached in {max(each['env_steps'] for each in rounds):,.0f} steps"
    if len(times) < len(rounds):
        some = " to ".join(dict.fromkeys((_clock(times[0]), _clock(times[-1]))))
        return f"{some}, {len(rounds) - len(times)} of {len(rounds)} not reached"
    return f"{_clock(statistics.median(times))} ({_clock(times[0])} to {_clock(times[-1])})"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
