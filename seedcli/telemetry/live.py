"""What a person sees of a run: a live view in a terminal, plain lines elsewhere, and two tables at the end."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from seedcli.telemetry.drawing import Picture, ViewState, percent
from seedcli.telemetry.fleet import ActorRow, say_states
from seedcli.telemetry.metrics import PARTS, Snapshot
from seedcli.telemetry.numbers import count, duration, tenth
from seedcli.telemetry.panels import latency

__all__ = ["ActorRow", "LiveView", "PlainView", "View", "make_view", "print_profile", "print_summary", "Summary"]

_REDRAW_SECONDS = 0.25
_IDLE_SECONDS = 60.0
_MAX_RETURNS = 4096  # points of the return curve kept; beyond it neighbours are averaged


class View(Protocol):
    """Where a run is shown. `log` may be called from any thread and at any time, the rest from one thread."""

    def start(self, header: Mapping[str, str]) -> None:
        """Begin; `header` says what the run is: "preset", "folder", "environment" and whatever else."""

    def update(self, snapshot: Snapshot | None, fleet: Sequence[ActorRow], total_steps: int, warning: str = "") -> None:
        """Show the newest figures; cheap enough to be called ten times a second, with the same ones or new.

        `warning` says what goes wrong in training at present; `log` has been told too when it began.
        """

    def log(self, message: str) -> None:
        """Show a message, with the time in front."""

    def stop(self) -> None:
        """End, leaving the last figures to be seen; safe to call twice."""


class _TimeLeft:
    """Estimates the seconds left from the rates of the last lines (about the last ten count)."""

    def __init__(self) -> None:
        self._rate: float | None = None

    def add(self, snapshot: Snapshot) -> None:
        rate = snapshot.env_steps_per_second
        if rate is not None and rate >= 0:
            self._rate = rate if self._rate is None else self._rate + 0.2 * (rate - self._rate)

    def seconds(self, snapshot: Snapshot, total_steps: int) -> float | None:
        left = max(0, total_steps - snapshot.env_steps)
        if left == 0:
            return 0.0
        return left / self._rate if self._rate else None


def _stamped(message: str) -> Text:
    return Text(f"{time.strftime('%H:%M:%S')} {message}")


class LiveView:
    """A picture of the run at the bottom of a terminal, redrawn at most four times a second.

    It is drawn only by the thread that calls `update`; messages of other threads wait for the next call.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._state = ViewState()
        self._left = _TimeLeft()
        self._returns: list[float] = []
        self._merged = 1  # lines of metrics that one point of the curve stands for
        self._pending: list[float] = []
        self._messages: deque[Text] = deque()
        self._owner: int | None = None
        self._live: Live | None = None
        self._begun = self._drawn = 0.0

    def start(self, header: Mapping[str, str]) -> None:
        """Begin to draw."""
        self._owner = threading.get_ident()
        self._begun = self._drawn = self._clock()
        self._state = ViewState(header=dict(header))
        self._live = Live(Picture(self._state), console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._live.start(refresh=True)

    def update(self, snapshot: Snapshot | None, fleet: Sequence[ActorRow], total_steps: int, warning: str = "") -> None:
        """Take new figures; draw if the last picture is a quarter of a second old."""
        state = self._state
        if snapshot is not None and snapshot is not state.snapshot:
            self._left.add(snapshot)
            # Where environments only evaluate, theirs is the curve: the others' holds all their exploration.
            if snapshot.evaluation_episodes and not state.evaluating:
                state.evaluating = True
                self._returns.clear()
            value = snapshot.evaluation_return if state.evaluating else snapshot.episode_return
            if value is not None:
                self._add_return(value)
        state.snapshot, state.fleet, state.total_steps = snapshot, fleet, total_steps
        state.returns, state.warning = self._returns, warning
        if snapshot is not None:
            state.seconds_left = self._left.seconds(snapshot, total_steps)
        self._flush()
        now = self._clock()
        if self._live is not None and now - self._drawn >= _REDRAW_SECONDS:
            self._drawn = now
            self._draw()

    def log(self, message: str) -> None:
        """Print a message above the picture."""
        self._messages.append(_stamped(message))
        if self._live is None or threading.get_ident() == self._owner:
            self._flush()

    def stop(self) -> None:
        """Draw a last time and leave the picture standing."""
        if self._live is not None:
            self._flush()
            self._draw()
            self._live.stop()
            self._live = None
        self._flush()

    def _add_return(self, value: float) -> None:
        self._pending.append(value)
        if len(self._pending) < self._merged:
            return
        self._returns.append(sum(self._pending) / self._merged)
        self._pending.clear()
        if len(self._returns) >= _MAX_RETURNS:
            pairs = zip(self._returns[::2], self._returns[1::2], strict=True)
            self._returns = [(first + second) / 2 for first, second in pairs]
            self._merged *= 2

    def _draw(self) -> None:
        if self._live is not None:
            self._state.elapsed = self._clock() - self._begun
            self._live.refresh()

    def _flush(self) -> None:
        with contextlib.suppress(IndexError):  # another thread may take the last one
            while self._messages:
                self._console.print(self._messages.popleft(), soft_wrap=True)


class PlainView:
    """One plain line of figures every so often, for logs and pipes."""

    def __init__(
        self, console: Console, interval_seconds: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._interval = interval_seconds
        self._clock = clock
        self._left = _TimeLeft()
        self._newest: tuple[Snapshot, int] | None = None
        self._shown: Snapshot | None = None
        self._next = 0.0

    def start(self, header: Mapping[str, str]) -> None:
        """Print what the run is, as `preset … folder … environment …`."""
        self._next = self._clock() + self._interval
        self.log(" ".join(f"{name} {value}" for name, value in header.items()))

    def update(self, snapshot: Snapshot | None, fleet: Sequence[ActorRow], total_steps: int, warning: str = "") -> None:
        """Take new figures; print a line if the interval has passed since the last."""
        if snapshot is None:
            return
        if self._newest is None or snapshot is not self._newest[0]:
            self._left.add(snapshot)
        self._newest = (snapshot, total_steps)
        if self._clock() >= self._next and snapshot is not self._shown:
            # Without actors nothing moves: a line a minute is enough to say so.
            idle = snapshot.actors == 0 and self._shown is not None and snapshot.env_steps == self._shown.env_steps
            self._next = self._clock() + (max(_IDLE_SECONDS, self._interval) if idle else self._interval)
            self._print()

    def log(self, message: str) -> None:
        """Print a message on a line of its own."""
        self._console.print(_stamped(message), soft_wrap=True)

    def stop(self) -> None:
        """Print the last figures, if they have not been printed."""
        if self._newest is not None and self._newest[0] is not self._shown:
            self._print()

    def _print(self) -> None:
        assert self._newest is not None
        snapshot, total = self._newest
        self._shown = snapshot
        parts = [
            f"steps {count(snapshot.env_steps)}/{count(total)} ({percent(snapshot, total)}%)",
            f"{count(snapshot.env_steps_per_second)} steps/s",
            f"return {tenth(snapshot.episode_return_100)}",
            *([f"evaluation {tenth(snapshot.evaluation_return_20)}"] if snapshot.evaluation_episodes else []),
            f"lag {tenth(snapshot.policy_lag)}",
            f"batch {tenth(snapshot.inference_batch_size)}",
            f"latency {tenth(latency(snapshot, 'p50'))}/{tenth(latency(snapshot, 'p99'))} ms",
            f"left {duration(self._left.seconds(snapshot, total))}",
        ]
        if snapshot.actors == 0:
            parts.append("(no actors)")
        trouble = say_states({"silent": snapshot.actors_silent or 0, "lost": snapshot.actors_lost or 0})
        if trouble:
            parts.append(f"({trouble})")
        self.log(" ".join(parts))


def make_view(live: bool, console: Console | None = None) -> View:
    """The view that fits: live where it is wanted and a terminal with colour is there, else plain.

    Args:
        live: whether a live view is wanted.
        console: where to; None: stderr.
    """
    if console is None:
        console = Console(file=sys.stderr)
    capable = console.is_terminal and not console.is_dumb_terminal and not console.no_color
    if live and capable and not os.environ.get("NO_COLOR"):
        return LiveView(console)
    # No colour, no markup and no width to fold lines at: one figure line is one line of the log.
    return PlainView(Console(file=console.file, no_color=True, color_system=None, highlight=False))


def _parts(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (PARTS.index(name) if name in PARTS else len(PARTS), name))


def print_profile(console: Console, profiles: Mapping[str, Mapping[str, float]], wall: float) -> None:
    """Print where the time went.

    A share is of the wall-clock time; where a profile is summed over several processes and so holds more
    than that, of its own sum. What a thread did not account for is shown as "other" from half a percent on.

    Args:
        console: where to.
        profiles: thread or role → name of a part (see `metrics.PARTS`) → seconds.
        wall: seconds the run took.
    """
    table = Table(title=f"where the time went, of {duration(wall)}", title_justify="left", title_style="bold", box=None)
    for heading in ("thread", "part"):
        table.add_column(heading, no_wrap=True)
    for heading in ("seconds", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    block = "#" if console.options.ascii_only else "█"
    for thread, profile in profiles.items():
        spent = sum(profile.values())
        whole = max(wall, spent, 1e-9)
        rows = [(name, profile[name]) for name in _parts(profile)]
        if whole - spent > 0.005 * whole:
            rows.append(("other", whole - spent))
        for index, (name, seconds) in enumerate(rows):
            share = seconds / whole
            bar = Text(block * round(24 * share), style="dim" if name in ("waiting", "other") else "cyan")
            label = Text(thread if index == 0 else "", style="bold")
            table.add_row(label, name, f"{seconds:,.1f}", f"{100 * share:.1f}%", bar)
    console.print(table)


@dataclass(frozen=True)
class Summary:
    """How a run ended.

    Attributes:
        env_steps: environment steps the run now stands at.
        total: those it is to take.
        seconds: since it was last started.
        resumed_at: environment steps at which it was, 0 for a new run.
        episode_return_100: mean raw return of the last 100 episodes, None where none has ended.
        dropped_unrolls: unrolls that were not trained on, for rewards or priorities that are not finite.
        folder: the run folder.
        playable: it holds a checkpoint.
        goes_on: how a run is gone on with that stopped early; "": with --resume.
        warning: what went wrong in training and still does at its end; "": nothing.
    """

    env_steps: int
    total: int
    seconds: float
    episode_return_100: float | None
    dropped_unrolls: int
    folder: Path
    playable: bool
    resumed_at: int = 0
    goes_on: str = ""
    warning: str = ""


def print_summary(console: Console, summary: Summary) -> None:
    """Print how a run ended, and the command that plays its agent."""
    folder = shlex.quote(str(summary.folder))
    steps = f"{count(summary.env_steps - summary.resumed_at)} environment steps"
    resumed = f", {count(summary.env_steps)} in all" if summary.resumed_at else ""
    mean = summary.episode_return_100
    ended = tenth(mean) if mean is not None else "no episode has ended" + (" since it was resumed" if resumed else "")
    lines = [
        Text.assemble("trained for ", (steps, "bold"), f" in {duration(summary.seconds)}{resumed}"),
        Text.assemble("mean return of the last 100 episodes: ", (ended, "bold")),
    ]
    if summary.env_steps < summary.total:
        how = summary.goes_on or f"--resume --logdir {folder} continues it"
        lines.insert(0, Text(f"stopped before its {count(summary.total)} steps: {how}"))
    if summary.dropped_unrolls:
        dropped = f"{count(summary.dropped_unrolls)} unrolls were not trained on"
        lines.append(Text(f"{dropped}: their rewards or priorities were not finite, see the log", style="bold red"))
    if summary.warning:
        lines.append(Text(f"warning: {summary.warning}", style="bold yellow"))
    lines.append(Text(f"run folder: {summary.folder}"))
    if summary.playable:
        lines.append(Text.assemble("play it: ", (f"seed eval {folder}", "bold cyan")))
    for line in lines:
        console.print(line, soft_wrap=True)
