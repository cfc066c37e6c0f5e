"""Views of a run: a live view in a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from seedcli.telemetry.fleet import ActorRow, format_states
from seedcli.telemetry.live_figures import latency
from seedcli.telemetry.live_layout import Picture, ViewState, percent
from seedcli.telemetry.metrics import Snapshot
from seedcli.telemetry.numbers import count, duration, tenth

_REDRAW_SECONDS = 0.25
_IDLE_SECONDS = 60.0
_MAX_RETURNS = 4096  # points of the return curve; beyond it neighbours are averaged


class View(Protocol):
    """Display of a run. `log` may be called from any thread at any time, the rest from one thread.

    Attributes:
        profile: whether to print the full time profile at the end.
    """

    profile: bool

    def start(self, header: Mapping[str, str]) -> None:
        """Begin; `header`: properties of the run by name, such as "preset", "folder", "environment"."""

    def update(self, snapshot: Snapshot | None, fleet: Sequence[ActorRow], total_steps: int, warning: str = "") -> None:
        """Show the newest metrics; cheap enough to be called ten times a second.

        `warning`: the current training warning, which the caller has also logged once.
        """

    def log(self, message: str) -> None:
        """Show a message with a time stamp."""

    def stop(self) -> None:
        """End and leave the last metrics visible; safe to call twice."""


class _TimeLeft:
    """Estimates the seconds left from the rates of the last lines; none from the first, which includes the start-up."""

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=10)
        self._started = False

    def add(self, snapshot: Snapshot) -> None:
        rate = snapshot.env_steps_per_second
        if rate is not None and rate >= 0:
            if self._started:
                self._rates.append(rate)
            self._started = self._started or rate > 0

    def seconds(self, snapshot: Snapshot, total_steps: int) -> float | None:
        left = max(0, total_steps - snapshot.env_steps)
        if left == 0:
            return 0.0
        rates = sum(self._rates)
        return left * len(self._rates) / rates if rates else None


def _stamped(message: str) -> Text:
    return Text(f"{time.strftime('%H:%M:%S')} {message}")


def _fold(message: Text, width: int) -> Text:
    """Wrap a message between words, with a hanging indent."""
    indent = " " * len("00:00:00 ")
    lines = textwrap.wrap(
        message.plain, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return Text("\n".join(lines))


class LiveView:
    """A live view at the bottom of a terminal, redrawn at most four times a second.

    Only the thread that calls `update` draws; messages of other threads wait for its next call.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic, *, profile: bool = False) -> None:
        self.profile = profile
        self._console = console
        self._clock = clock
        self._state = ViewState()
        self._left = _TimeLeft()
        self._returns: list[float] = []
        self._merged = 1  # lines of metrics per point of the curve
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
        """Take new metrics; redraw if the last drawing is a quarter of a second old."""
        state = self._state
        if snapshot is not None and snapshot is not state.snapshot:
            self._left.add(snapshot)
            # The curve shows evaluation if there is any, because training returns include exploration.
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
        """Print a message above the view."""
        self._messages.append(_stamped(message))
        if self._live is None or threading.get_ident() == self._owner:
            self._flush()

    def stop(self) -> None:
        """Draw a last time and leave the view on the screen."""
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
                # Soft: a word longer than a line, such as a path, is left whole to be copied.
                self._console.print(_fold(self._messages.popleft(), self._console.width), soft_wrap=True)


class PlainView:
    """One plain line of metrics per interval, for logs and pipes."""

    def __init__(
        self,
        console: Console,
        interval_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        *,
        profile: bool = False,
    ) -> None:
        self.profile = profile
        self._console = console
        self._interval = interval_seconds
        self._clock = clock
        self._left = _TimeLeft()
        self._newest: tuple[Snapshot, int] | None = None
        self._shown: Snapshot | None = None
        self._next = 0.0

    def start(self, header: Mapping[str, str]) -> None:
        """Print the run's properties as `preset …; folder …; environment …`."""
        self._next = self._clock() + self._interval
        self.log("; ".join(f"{name} {value}" for name, value in header.items()))

    def update(self, snapshot: Snapshot | None, fleet: Sequence[ActorRow], total_steps: int, warning: str = "") -> None:
        """Take new metrics; print a line if the interval has passed since the last."""
        if snapshot is None:
            return
        if self._newest is None or snapshot is not self._newest[0]:
            self._left.add(snapshot)
        self._newest = (snapshot, total_steps)
        if self._clock() >= self._next and snapshot is not self._shown:
            # Without actors nothing changes: one line per minute is enough.
            idle = snapshot.actors == 0 and self._shown is not None and snapshot.env_steps == self._shown.env_steps
            self._next = self._clock() + (max(_IDLE_SECONDS, self._interval) if idle else self._interval)
            self._print()

    def log(self, message: str) -> None:
        """Print a message on its own line."""
        self._console.print(_stamped(message), soft_wrap=True)

    def stop(self) -> None:
        """Print the last metrics if they have not been printed."""
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
            f"{duration(self._left.seconds(snapshot, total))} left",
        ]
        if snapshot.actors == 0:
            parts.append("no actors")
        trouble = format_states(
            {
                "busy": snapshot.actors_busy or 0,
                "silent": snapshot.actors_silent or 0,
                "lost": snapshot.actors_lost or 0,
            }
        )
        if trouble:
            parts.append(trouble)
        self.log(", ".join(parts))


def make_view(live: bool, console: Console | None = None, *, profile: bool = False) -> View:
    """Make a live view if requested and the console is a colour terminal, else a plain one.

    Args:
        live: whether to use a live view.
        console: output; None: stderr.
        profile: whether to print the full time profile at the end.
    """
    if console is None:
        console = Console(file=sys.stderr)
    capable = console.is_terminal and not console.is_dumb_terminal and not console.no_color
    if live and capable and not os.environ.get("NO_COLOR"):
        return LiveView(console, profile=profile)
    # No colour, no markup and no width to fold lines at: one figure line is one line of the log.
    return PlainView(Console(file=console.file, no_color=True, color_system=None, highlight=False), profile=profile)
