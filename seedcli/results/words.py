"""Figures in words, as tables and plots have them."""

from __future__ import annotations

import math

from seedcli.envs.scores import Estimate
from seedcli.results.comparison import Reached
from seedcli.results.curves import Axis
from seedcli.telemetry.numbers import number, short


def say_reached(reached: Reached) -> str:
    """When a threshold is reached: "485 k, 9.97 min (2 of 3 runs)", "not reached in 2.00 M steps"."""
    if not math.isfinite(reached.env_steps):
        some = f" by {reached.of - reached.seeds} of {reached.of} runs" if reached.seeds else ""
        return f"not reached{some} in {short(reached.within)} steps"
    some = f" ({reached.seeds} of {reached.of} runs)" if reached.seeds < reached.of else ""
    minutes = "" if math.isnan(reached.minutes) else f", {say_minutes(reached.minutes)} min"
    return short(reached.env_steps) + minutes + some


def sentence_of_reached(label: str, reached: Reached, axis: Axis) -> str:
    """The same as a sentence: "pong_vtrace reaches 18 after 629 k steps (median of 3 runs)"."""
    if not math.isfinite(reached.env_steps):
        some = f" in {reached.of - reached.seeds} of {reached.of} runs" if reached.seeds else ""
        return f"{label} does not reach {reached.threshold:g} in {short(reached.within)} steps{some}"
    at = f"{short(reached.env_steps)} steps" if axis == "env_steps" else f"{say_minutes(reached.minutes)} minutes"
    some = f" in {reached.seeds} of {reached.of} runs" if reached.seeds < reached.of else ""
    median = f" (median of {reached.of} runs)" if reached.of > 1 else ""
    return f"{label} reaches {reached.threshold:g}{some} after {at}{median}"


def say_interval(found: Estimate) -> str:
    """The bounds of an interval: "18.99 to 19.99"; "one run" where there is none."""
    return f"{number(found.low)} to {number(found.high)}" if math.isfinite(found.low) else "one run"


def say_minutes(minutes: float) -> str:
    """Minutes to a threshold: "16.6", "0.52", "not reached", "no time kept" (deterministic runs)."""
    if math.isnan(minutes):
        return "no time kept"
    if not math.isfinite(minutes):
        return "not reached"
    return f"{minutes:.2f}" if minutes < 10 else f"{minutes:,.1f}"
