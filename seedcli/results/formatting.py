"""Formats figures as text for tables and plots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from seedcli.envs.scores import Estimate
from seedcli.results.comparison import GroupFigures, Reached
from seedcli.results.curves import Axis, smoothing
from seedcli.telemetry.numbers import count, number, short

INTERVAL = "95 %"  # heading of a confidence interval


def comparison_table(found: Sequence[GroupFigures]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the table of groups: a label, then figures; evaluations only where there are some."""
    evaluated = any(math.isfinite(each.evaluation_return) for each in found)
    reached = [f"reaches {each.threshold:g} after" for each in found[0].reached]
    evaluation = ["evaluation"] if evaluated else []
    headings = ["group", "runs", "steps", "return", INTERVAL, "IQM", INTERVAL, *evaluation, "steps/s", *reached]
    rows = []
    for each in found:
        steps = [run.run.env_steps for run in each.runs]
        rows.append(
            [
                each.group.label,
                str(len(each.runs)),
                " to ".join(dict.fromkeys((short(min(steps)), short(max(steps))))),
                number(each.final_return.value),
                format_interval(each.final_return),
                number(each.iqm.value),
                format_interval(each.iqm),
                *([number(each.evaluation_return)] if evaluated else []),
                count(each.steps_per_second),
                *map(format_reached, each.reached),
            ]
        )
    return headings, rows


def comparison_note(smooth: int | None) -> str:
    """An explanation of the columns of the table of groups."""
    return (
        f"return: mean over runs of the {smoothing('training', smooth)}; IQM: interquartile mean; 95 %: bootstrap over "
        "runs; steps/s and to a threshold: median"
    )


def format_reached(reached: Reached) -> str:
    """When a threshold is reached: "485 k, 9.97 min (2 of 3 runs)", "not reached in 2.00 M steps"."""
    if not math.isfinite(reached.env_steps):
        some = f" by {reached.of - reached.seeds} of {reached.of} runs" if reached.seeds else ""
        return f"not reached{some} in {short(reached.within)} steps"
    some = f" ({reached.seeds} of {reached.of} runs)" if reached.seeds < reached.of else ""
    minutes = "" if math.isnan(reached.minutes) else f", {format_minutes(reached.minutes)} min"
    return short(reached.env_steps) + minutes + some


def describe_reached(label: str, reached: Reached, axis: Axis) -> str:
    """The same as a sentence: "pong_vtrace reaches 18 after 629 k steps (median of 3 runs)"."""
    if not math.isfinite(reached.env_steps):
        some = f" in {reached.of - reached.seeds} of {reached.of} runs" if reached.seeds else ""
        return f"{label} does not reach {reached.threshold:g} in {short(reached.within)} steps{some}"
    at = f"{short(reached.env_steps)} steps" if axis == "env_steps" else f"{format_minutes(reached.minutes)} minutes"
    some = f" in {reached.seeds} of {reached.of} runs" if reached.seeds < reached.of else ""
    median = f" (median of {reached.of} runs)" if reached.of > 1 else ""
    return f"{label} reaches {reached.threshold:g}{some} after {at}{median}"


def format_interval(found: Estimate) -> str:
    """The bounds of an interval: "18.99 to 19.99"; "one run" where there is none."""
    return f"{number(found.low)} to {number(found.high)}" if math.isfinite(found.low) else "one run"


def format_minutes(minutes: float) -> str:
    """Minutes to a threshold: "16.6", "0.52", "not reached", "no time recorded" (deterministic runs)."""
    if math.isnan(minutes):
        return "no time recorded"
    if not math.isfinite(minutes):
        return "not reached"
    return f"{minutes:.2f}" if minutes < 10 else f"{minutes:,.1f}"


def format_machine(machine: Mapping[str, Any]) -> str:
    """A machine as `roles.sessions.Session` has it: "2 cores of a CPU, 16 GB of memory, no GPU or TPU, Linux"."""
    cores, cpu, memory, system = (machine.get(name, "?") for name in ("cores", "cpu", "memory_gb", "system"))
    accelerators = ", ".join(machine.get("accelerators") or ["no GPU or TPU"])
    return f"{cores} cores of {cpu}, {memory} GB of memory, {accelerators}, {system}"


def format_versions(versions: Mapping[str, str]) -> str:
    """The packages of a session: "python 3.11.7, tensorflow 2.21.0"."""
    return ", ".join(f"{package} {version}" for package, version in versions.items())
