"""Drawing of the live view: pure functions and one renderable, from metrics to characters."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from seedcli.telemetry.axis import vertical_axis
from seedcli.telemetry.device_meters import DeviceFigures, worth_showing
from seedcli.telemetry.fleet import CONNECTED, ActorRow, count_states, format_states, sort_by_urgency
from seedcli.telemetry.live_figures import Rows, device_rows, figures, latency
from seedcli.telemetry.metrics import Snapshot
from seedcli.telemetry.numbers import count, duration, number, tenth

_BLOCKS = " ▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = " .:-=+*#@"
_FRAME = "bright_black"
_WARNING = "bold yellow"
_WARNING_LINES = 3  # the log has the full text
_STATE_STYLES = {"lost": "red", "silent": "yellow", "busy": "cyan", "waiting": "dim"}


@dataclass
class ViewState:
    """The input of one drawing.

    Attributes:
        header: properties of the run by name; "preset" comes first, "folder" on its own line.
        elapsed: seconds since the view started.
        snapshot: the newest metrics; None before the first.
        fleet: the actors.
        total_steps: environment steps at which training ends.
        seconds_left: estimate; None if unknown.
        returns: mean returns over the run, oldest first; of evaluation if there is any.
        evaluating: whether `returns` are of evaluation.
        warning: the current training warning; "": none.
    """

    header: Mapping[str, str] = field(default_factory=dict)
    elapsed: float = 0.0
    snapshot: Snapshot | None = None
    fleet: Sequence[ActorRow] = ()
    total_steps: int = 0
    seconds_left: float | None = None
    returns: Sequence[float] = ()
    evaluating: bool = False
    warning: str = ""


def percent(snapshot: Snapshot | None, total_steps: int) -> int:
    """Completed part of the run in whole percent."""
    return min(100, 100 * snapshot.env_steps // total_steps) if snapshot and total_steps > 0 else 0


def chart(
    values: Sequence[float],
    width: int,
    height: int,
    ascii_only: bool = False,
    bounds: tuple[float, float] | None = None,
) -> list[str]:
    """A filled curve of `height` lines and `width` columns: a long series is averaged, a short one stretched.

    Args:
        values: the series.
        width, height: characters.
        ascii_only: draw with ASCII.
        bounds: what the last and the first line stand for; None: the least and the largest value.
    """
    data = np.array([value for value in values if np.isfinite(value)], np.float64)
    if not len(data) or width < 1 or height < 1:
        return [""] * max(height, 0)
    if len(data) > width:
        edges = np.linspace(0, len(data), width + 1).astype(int)
        data = np.add.reduceat(data, edges[:-1]) / np.diff(edges)
    else:
        data = data[np.arange(width) * len(data) // width]
    low, high = bounds or (data.min(), data.max())
    # The lowest value shows one eighth of a line, so that the curve is visible.
    share = (data - low) / (high - low) if high > low else np.zeros(len(data))
    eighths = np.rint(1 + share * (8 * height - 1)).astype(int)
    blocks = _ASCII_BLOCKS if ascii_only else _BLOCKS
    return ["".join(blocks[min(8, max(0, level - 8 * line))] for level in eighths) for line in reversed(range(height))]


def _line(left: Text, right: Text) -> Table:
    """One line with text at both ends; the left is shortened if both do not fit."""
    grid = Table.grid(expand=True, padding=(0, 1, 0, 0), pad_edge=False)
    grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    grid.add_column(justify="right", no_wrap=True)
    grid.add_row(left, right)
    return grid


def _panel(body: RenderableType, title: str, height: int | None = None, subtitle: str = "") -> Panel:
    return Panel(
        body,
        title=Text(title, style="bold"),
        title_align="left",
        subtitle=Text(subtitle) if subtitle else None,
        subtitle_align="left",
        box=box.ROUNDED,
        border_style=_FRAME,
        padding=(0, 1),
        height=height,
    )


def _rows(rows: Rows, height: int) -> Table:
    grid = Table.grid(expand=True, pad_edge=False)
    grid.add_column(style="none", no_wrap=True, overflow="ellipsis", ratio=1)
    grid.add_column(justify="right", no_wrap=True, overflow="ellipsis")
    for label, figure, style in rows[:height]:
        grid.add_row(label, Text(figure, style=style))
    return grid


class _Curve:
    """The curve of returns with an axis on its left, filling its panel."""

    def __init__(self, returns: Sequence[float], height: int) -> None:
        self._returns, self._height = returns, height

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._returns:
            yield Text("no episode has ended yet", style="dim")
            return
        low, high, marks = vertical_axis(min(self._returns), max(self._returns), self._height)
        margin = max(map(len, marks))
        tick, axis = ("+", "|") if options.ascii_only else ("┤", "│")
        lines = chart(self._returns, options.max_width - margin - 2, self._height, options.ascii_only, (low, high))
        for mark, line in zip(marks, lines, strict=True):
            left = f"{mark:>{margin}} {tick if mark else axis}"
            yield Text.assemble((left, "none"), (line, "green"), no_wrap=True, overflow="crop")


def _devices(devices: Sequence[DeviceFigures], lines: int) -> Table:
    """A table with one line per device and role."""
    grid = Table.grid(expand=True, padding=(0, 2, 0, 0), pad_edge=False)
    for name in ("device", "role", "busy", "batches", "size", "transfer"):
        grid.add_column(name, justify="left" if name in ("device", "role") else "right", no_wrap=True)
    for device, role, busy, *rest in device_rows(devices, lines):
        grid.add_row(Text(device, style="bold"), role, Text(busy, style="cyan"), *rest)
    return grid


def _ago(seconds: float | None) -> str:
    return f"{seconds:.1f} s" if seconds is not None and seconds < 60 else duration(seconds)


def _fleet(fleet: Sequence[ActorRow], lines: int, wide: bool) -> Table:
    """A table with one line per actor, those in trouble first; the last line counts those that do not fit."""
    table = Table(box=None, expand=True, pad_edge=False, padding=(0, 2, 0, 0), header_style="none")
    table.add_column("actor", no_wrap=True, overflow="ellipsis", ratio=3)
    table.add_column("address", no_wrap=True, overflow="ellipsis", ratio=3)
    table.add_column("transport" if wide else "via", no_wrap=True)
    table.add_column("envs", justify="right", no_wrap=True)
    table.add_column("steps/s", justify="right", no_wrap=True)
    table.add_column("last seen" if wide else "seen", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True, overflow="ellipsis", ratio=1 if wide else None)
    ordered = sort_by_urgency(fleet)
    shown = ordered if len(ordered) <= lines else ordered[: lines - 1]
    for row in shown:
        style = _STATE_STYLES.get(row.state, "none")
        table.add_row(
            row.actor_id,
            row.address,
            row.transport,
            count(row.envs),
            Text(count(row.steps_per_second), style="cyan"),
            Text(_ago(row.last_seen_seconds), style=style),
            Text(f"{row.state}: {row.reason}" if row.reason and wide else row.state, style=style),
        )
    if len(shown) < len(fleet):
        rest = ordered[len(shown) :]
        steps = sum(row.steps_per_second or 0.0 for row in rest)
        table.add_row(f"and {len(rest)} more", "", "", count(sum(row.envs for row in rest)), count(steps), "", "")
    return table


class Picture:
    """A `ViewState` drawn to fit a terminal of any size; leaves lines for the log if possible."""

    def __init__(self, state: ViewState) -> None:
        self._state = state

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.size.height - 1
        if width < 1 or height < 1:
            return
        full = width >= 72 and height >= 14
        body = self._full(width, height) if full else self._compact(width)
        lines = console.render_lines(body, options.update(width=width, height=None), pad=False)
        for line in lines[:height]:
            yield from line
            yield Segment.line()

    def _progress(self, width: int, compact: bool) -> RenderableType:
        state, s = self._state, self._state.snapshot
        done = s.env_steps if s else 0
        left = f"{duration(state.seconds_left)} left"
        if compact:
            text = Text(f"{percent(s, state.total_steps)}%  {left}")
        else:
            steps = f"{count(done)} / {count(state.total_steps)} steps"
            text = Text.assemble((steps, "bold"), f"  {percent(s, state.total_steps)}%  {left}")
        bar = ProgressBar(
            total=max(1, state.total_steps),
            completed=done,
            width=max(1, width - text.cell_len - 2),
            style=_FRAME,
            complete_style="cyan",
            finished_style="green",
        )
        grid = Table.grid(expand=True, padding=(0, 1, 0, 0), pad_edge=False)
        grid.add_column(ratio=1)
        grid.add_column(justify="right", no_wrap=True)
        grid.add_row(bar, text)
        return grid

    def _title(self) -> RenderableType:
        header = self._state.header
        title = Text.assemble((header.get("preset", ""), "bold cyan"))
        for name, value in header.items():
            if name in ("environment", "algorithm"):  # values that explain themselves
                title.append(f"  {value}")
            elif name not in ("preset", "folder"):
                title.append(f"  {name} {value}")
        return _line(title, Text(duration(self._state.elapsed), style="bold"))

    def _waiting(self) -> Text:
        return Text("waiting for the first figures" if self._state.fleet else "waiting for actors", style="yellow")

    def _full(self, width: int, height: int) -> Group:
        state = self._state
        parts: list[RenderableType] = [self._title()]
        if "folder" in state.header:
            parts.append(Text(state.header["folder"], no_wrap=True, overflow="ellipsis"))
        parts.append(self._progress(width, compact=False))
        used = len(parts)
        if state.warning:
            # Wrapped here, to know the number of lines left for the parts below.
            warning = textwrap.wrap(f"warning: {state.warning}", width, max_lines=_WARNING_LINES, placeholder=" …")
            parts.extend(Text(line, style=_WARNING) for line in warning)
            used += len(warning)
        if state.snapshot is None:
            return Group(*parts, self._waiting())
        rows = 8 if height >= 34 else 6
        curve_title = "evaluation return" if state.evaluating else "return"
        side_by_side = width >= (160 if state.snapshot.replay else 132)
        panels = Table.grid(expand=True, pad_edge=False)
        cells: list[RenderableType] = []
        shown = figures(state.snapshot)
        if len(shown) > 3 and width < 110:
            del shown["inference"]  # four do not fit, and the replay says more about learning
        for title, lines in shown.items():
            panels.add_column(width=30 if side_by_side else None, ratio=None if side_by_side else 1)
            cells.append(_panel(_rows(lines, rows), title, rows + 2))
        if side_by_side:
            panels.add_column(ratio=1)
            cells.append(_panel(_Curve(state.returns, rows), curve_title, rows + 2))
        panels.add_row(*cells)
        parts.append(panels)
        used += rows + 2
        # The other lines are for the curve, the fleet and at least two lines of log above.
        room = height - used - (2 if height >= 20 else 0)
        if worth_showing(state.snapshot.devices):
            # The curve and the fleet come first, but there is nearly always one line for devices.
            device_lines = max(min(1, room - 4), min(len(state.snapshot.devices), room - 7))
            if device_lines > 0:
                parts.append(_devices(state.snapshot.devices, device_lines))
                room -= device_lines
        fleet_lines = max(1, len(state.fleet)) + 3
        if not side_by_side and room >= 3 + min(4, fleet_lines):
            curve = max(1, min(10, room - 2 - min(fleet_lines, 8)))
            parts.append(_panel(_Curve(state.returns, curve), curve_title, curve + 2))
            room -= curve + 2
        if room >= 4:
            present = [row for row in state.fleet if row.state in CONNECTED]
            envs = count(sum(row.envs for row in present))
            title = f"fleet: {count(len(present))} actor{'s' if len(present) != 1 else ''}, {envs} environments"
            empty = Text("no actor is connected", style="yellow")
            body = _fleet(state.fleet, room - 3, wide=width >= 100) if state.fleet else empty
            parts.append(_panel(body, title, subtitle=format_states(count_states(state.fleet))))
        return Group(*parts)

    def _compact(self, width: int) -> Group:
        s = self._state.snapshot
        parts: list[RenderableType] = [self._title(), self._progress(width, compact=True)]
        if self._state.warning:
            parts.append(Text(f"warning: {self._state.warning}", style=_WARNING, no_wrap=True, overflow="ellipsis"))
        if s is None:
            return Group(*parts, self._waiting())
        pairs = [
            ("steps", count(s.env_steps)),
            ("steps/s", count(s.env_steps_per_second)),
            ("return", tenth(s.episode_return_100)),
            ("length", tenth(s.episode_length)),
            ("loss", number(s.loss)),
            ("updates/s", tenth(s.updates_per_second)),
            ("batch", tenth(s.inference_batch_size)),
            ("lag", tenth(s.policy_lag)),
            ("p50 ms", tenth(latency(s, "p50"))),
            ("p99 ms", tenth(latency(s, "p99"))),
            ("actors", count(s.actors)),
            ("envs", count(s.envs)),
        ]
        columns = max(1, min(4, width // 19))
        grid = Table.grid(expand=True, pad_edge=False, padding=(0, 2, 0, 0))
        for _ in range(columns):
            grid.add_column(no_wrap=True, overflow="ellipsis")
            grid.add_column(justify="right", no_wrap=True, ratio=1, style="bold")
        for start in range(0, len(pairs), columns):
            grid.add_row(*(text for pair in pairs[start : start + columns] for text in pair))
        return Group(*parts, grid)
