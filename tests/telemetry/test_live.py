from __future__ import annotations

import io
import re
import threading
from pathlib import Path

import pytest
from rich.console import Console

from seedcli.telemetry.ending import Summary, print_largest_parts, print_profile, print_summary
from seedcli.telemetry.live import (
    ActorRow,
    LiveView,
    PlainView,
    View,
    _TimeLeft,
    make_view,
)
from seedcli.telemetry.live_figures import figures
from seedcli.telemetry.live_layout import chart
from seedcli.telemetry.metrics import Snapshot
from seedcli.telemetry.numbers import duration, number

HEADER = {"preset": "cartpole_vtrace", "folder": "runs/x", "environment": "gymnasium/CartPole-v1", "seed": "7"}
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def snapshot(env_steps: int = 120_000, **values: object) -> Snapshot:
    figures: dict[str, object] = {
        "env_frames": 480_000,
        "env_steps_per_second": 12_345.0,
        "env_frames_per_second": 49_380.0,
        "updates_per_second": 19.3,
        "trained_steps": 119_000,
        "learner_updates": 186,
        "episode_return": 190.0,
        "episode_return_100": 187.2,
        "episode_length": 187.0,
        "policy_lag": 1.3,
        "inference_batch_size": 16.0,
        "inference_latency_ms": {"p50": 2.1, "p99": 4.0},
        "loss": 0.123,
        "learning_rate": 7.6e-4,
        "actors": 3,
        "envs": 48,
        "extra": {"entropy": 0.61},
    }
    return Snapshot(env_steps=env_steps, **{**figures, **values})  # type: ignore[arg-type]


def actors(number: int) -> list[ActorRow]:
    return [ActorRow(f"actor-{i}", f"10.0.0.{i}:5000", "zmq", 16, 3100.0, 0.2, "stepping") for i in range(number)]


def terminal(width: int, height: int) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=width, height=height, force_terminal=True, color_system="256"), file


def last_picture(text: str) -> list[str]:
    # Each redraw begins by erasing the lines of the one before.
    return ESCAPE.sub("", text.split("\x1b[2K")[-1]).replace("\r", "").splitlines()


def run(view: View, clock: Clock, fleet: list[ActorRow]) -> None:
    view.start(HEADER)
    view.update(None, [], 500_000)
    for step in range(4):
        clock.now += 2
        view.update(snapshot(30_000 * (step + 1), episode_return=50.0 * step), fleet, 500_000)
    view.stop()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50), (72, 15), (100, 34)])
@pytest.mark.parametrize("fleet", [0, 1, 3, 100])
def test_live_view_shows_the_figures(width: int, height: int, fleet: int) -> None:
    console, file = terminal(width, height)
    clock = Clock()
    run(LiveView(console, clock), clock, actors(fleet))
    picture = last_picture(file.getvalue())
    text = "\n".join(picture)
    assert len(picture) < height
    assert max(map(len, picture)) <= width
    for figure in ("cartpole_vtrace", "CartPole-v1", "seed 7", "120,000 / 500,000", "24%", "12,345", "49,380", "187.2"):
        assert figure in text
    for figure in ("0.1230", "0.6100", "7.60e-04", "16.0", "2.1", "4.0", "1.3", "0:31 left", "0:08"):
        assert figure in text
    if height >= 24:
        assert "█" in text
        assert ("actor-0" in text) == (fleet > 0)
        if fleet == 100:
            assert re.search(r"and \d+ more", text)
            assert "100 actors, 1,600 environments" in text


@pytest.mark.parametrize(("width", "height"), [(40, 10), (60, 24), (200, 12)])
def test_small_terminals_get_the_important_figures(width: int, height: int) -> None:
    console, file = terminal(width, height)
    clock = Clock()
    run(LiveView(console, clock), clock, actors(3))
    picture = last_picture(file.getvalue())
    text = "\n".join(picture)
    assert len(picture) < height and max(map(len, picture)) <= width
    for figure in ("120,000", "24%", "12,345", "187.2"):
        assert figure in text


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (5, 1), (1, 50), (10, 3), (71, 14), (72, 16), (300, 4)])
def test_no_size_breaks_the_view(size: tuple[int, int]) -> None:
    console, _ = terminal(*size)
    clock = Clock()
    run(LiveView(console, clock), clock, actors(5))


def test_live_view_redraws_at_most_four_times_a_second() -> None:
    console, file = terminal(80, 24)
    clock = Clock()
    view = LiveView(console, clock)
    view.start(HEADER)
    drawn = 0
    for _ in range(100):
        clock.now += 0.01
        before = file.tell()
        view.update(snapshot(), actors(1), 500_000)
        drawn += file.tell() > before
    view.stop()
    assert 3 <= drawn <= 4


def test_messages_go_above_the_picture_while_other_threads_wait() -> None:
    console, file = terminal(80, 24)
    clock = Clock()
    view = LiveView(console, clock)
    view.log("before the start")
    assert "before the start" in file.getvalue()
    view.start(HEADER)
    view.update(snapshot(), actors(1), 500_000)
    view.log("from the owner")
    above, _, below = ESCAPE.sub("", file.getvalue()).rpartition("from the owner")
    assert "cartpole_vtrace" in below
    size = file.tell()
    thread = threading.Thread(target=view.log, args=("from [red]another[/red] thread",))
    thread.start()
    thread.join(timeout=10)
    assert file.tell() == size
    view.update(snapshot(), actors(1), 500_000)
    assert "from [red]another[/red] thread" in ESCAPE.sub("", file.getvalue())
    view.stop()
    view.stop()
    view.log("after the end")
    assert ESCAPE.sub("", file.getvalue()).rstrip().endswith("after the end")


def test_a_long_run_keeps_a_bounded_curve() -> None:
    console, file = terminal(80, 24)
    clock = Clock()
    view = LiveView(console, clock)
    view.start(HEADER)
    for step in range(10_000):
        view.update(snapshot(step, episode_return=float(step)), [], 500_000)
    assert len(view._returns) < 4096
    assert view._returns == sorted(view._returns) and view._returns[-1] > 9_900
    view.stop()


def test_plain_view_prints_one_line_an_interval() -> None:
    file = io.StringIO()
    clock = Clock()
    view = PlainView(Console(file=file), interval_seconds=10, clock=clock)
    view.start(HEADER)
    for _ in range(40):
        clock.now += 0.5
        view.update(snapshot(), actors(2), 500_000)
    clock.now += 10
    view.update(snapshot(240_000), actors(2), 500_000)
    view.update(snapshot(500_000), actors(2), 500_000)
    view.stop()
    view.stop()
    lines = file.getvalue().splitlines()
    assert len(lines) == 5
    assert lines[0].endswith("preset cartpole_vtrace; folder runs/x; environment gymnasium/CartPole-v1; seed 7")
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d steps 120,000/500,000 \(24%\), 12,345 steps/s, return 187\.2, lag 1\.3, batch 16\.0, "
        r"latency 2\.1/4\.0 ms, 0:31 left",
        lines[1],
    )
    assert "240,000/500,000 (48%)" in lines[3]
    assert lines[4].endswith("0:00 left") and "(100%)" in lines[4]


def test_plain_view_without_any_values() -> None:
    file = io.StringIO()
    view = PlainView(Console(file=file), interval_seconds=0)
    view.start({})
    view.update(None, [], 500_000)
    view.update(Snapshot(env_steps=0), [], 500_000)
    assert "return -, lag -, batch -, latency -/- ms, - left, no actors" in file.getvalue()


def test_no_terminal_or_no_color_gives_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert isinstance(make_view(True, terminal(80, 24)[0]), LiveView)
    assert isinstance(make_view(False, terminal(80, 24)[0]), PlainView)
    assert isinstance(make_view(True, Console(file=io.StringIO())), PlainView)
    monkeypatch.setenv("NO_COLOR", "1")
    console, file = terminal(80, 24)
    view = make_view(True, console)
    assert isinstance(view, PlainView)
    run(view, Clock(), actors(2))
    view.log("https://example.org/ 'text' 12 " + "x" * 300)
    assert "\x1b" not in file.getvalue()
    assert "x" * 300 in file.getvalue()


def test_live_view_has_no_colour_on_a_console_without_colour() -> None:
    file = io.StringIO()
    console = Console(file=file, width=80, height=24, force_terminal=True, no_color=True)
    clock = Clock()
    run(LiveView(console, clock), clock, actors(2))
    styles = {code for found in re.findall(r"\x1b\[([0-9;]*)m", file.getvalue()) for code in found.split(";")}
    assert styles <= {"", "0", "1", "2"}  # only bold and dim


def test_profile_table_shows_where_the_time_went() -> None:
    file = io.StringIO()
    profiles = {
        "inference": {"waiting": 1.0, "wire": 3.0, "inference": 5.0},
        "actors": {"environment": 30.0, "wire": 10.0},
    }
    print_profile(Console(file=file, width=80), profiles, wall=10.0)
    text = file.getvalue()
    rows = [line.split() for line in text.splitlines()[2:]]
    assert "0:10" in text and "\x1b" not in text
    assert rows[0][:4] == ["inference", "wire", "3.0", "30.0%"]
    assert rows[1][:3] == ["inference", "5.0", "50.0%"]
    assert rows[2][:3] == ["waiting", "1.0", "10.0%"]
    assert rows[3][:3] == ["other", "1.0", "10.0%"]
    assert rows[4][:4] == ["actors", "environment", "30.0", "75.0%"]
    assert len(rows) == 6
    print_profile(Console(file=file, width=80), {"idle": {}}, wall=0.0)


def test_summary_shows_the_command_to_copy() -> None:
    file = io.StringIO()
    folder = Path("/data/" + "long/" * 20 + "my run")
    console = Console(file=file, width=40)
    print_summary(console, Summary(500_123, 500_000, 95.0, None, 0, 0, folder, playable=True))
    text = file.getvalue()
    assert "500,123 environment steps in 1:35" in text
    assert f"seed eval '{folder}'\n" in text
    assert "no episode has ended" in text and "stopped" not in text and "not finite" not in text
    how = f"resume it with: seed train --resume --logdir '{folder}'"
    print_summary(console, Summary(1_000, 500_000, 95.0, 1.0, 7, 612, folder, playable=False, how_to_resume=how))
    text = file.getvalue().removeprefix(text)
    assert f"stopped before its 500,000 steps; {how}\n" in text
    assert "not trained on: 7 unrolls" in text and "seed eval" not in text
    assert "not applied: 612 updates, with a non-finite loss or gradient" in text
    print_summary(console, Summary(1, 1, 95.0, 1.0, 1, 0, folder, playable=False))
    assert "1 environment step in" in file.getvalue() and "not trained on: 1 unroll," in file.getvalue()


def test_the_largest_parts_of_the_time_in_one_sentence() -> None:
    file = io.StringIO()
    profiles = {
        "training thread": {"training": 6.0, "waiting": 4.0, "checkpoint": 0.1},
        "inference thread": {"inference": 2.0, "wire": 1.0},
        "actor 0": {"environment": 8.0},
    }
    print_largest_parts(Console(file=file, width=40), profiles, wall=10.0)
    assert file.getvalue() == (
        "largest shares of a thread's time: environment 80% (actor 0), training 59% (training thread), "
        "inference 20% (inference thread); --profile shows all\n"
    )
    console, shown = terminal(40, 24)
    print_largest_parts(console, profiles, wall=10.0)
    lines = [line.strip() for line in ESCAPE.sub("", shown.getvalue()).splitlines()]
    assert " ".join(lines) == file.getvalue().strip() and max(map(len, lines)) <= 40
    print_largest_parts(Console(file=file, width=40), {}, wall=0.0)
    assert file.getvalue().count("\n") == 1


def test_messages_above_the_picture_are_broken_between_words() -> None:
    console, file = terminal(40, 24)
    view = LiveView(console, Clock())
    message = "an unusually wordy message that does not fit /into/" + "one" * 20
    view.log(message)
    lines = ESCAPE.sub("", file.getvalue()).splitlines()
    assert " ".join(line.strip() for line in lines)[9:] == message
    assert len(lines) == 3 and lines[1].startswith(" " * 9) and len(lines[0]) <= 40


WARNING = (
    "98% of the hidden units are saturated, so the network hardly learns any more (saturated_units is above 0.9): "
    "look at agent.normalize_values (false), agent.separate_value (false), training.learning_rate (0.05)"
)


@pytest.mark.parametrize("fleet", [1, 100])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50), (72, 15), (60, 24), (40, 10)])
def test_a_warning_is_in_the_picture_while_it_holds(width: int, height: int, fleet: int) -> None:
    console, file = terminal(width, height)
    clock = Clock()
    view = LiveView(console, clock)
    view.start(HEADER)
    pictures = []
    for warning in (WARNING, ""):
        clock.now += 2
        view.update(snapshot(), actors(fleet), 500_000, warning)
        pictures.append(last_picture(file.getvalue()))
    view.stop()
    shown, gone = pictures
    assert len(shown) < height and max(map(len, shown)) <= width
    text = " ".join(line.strip() for line in shown)
    assert "warning: 98% of the hidden units" in text and "120,000" in text and "187.2" in text
    if width >= 80:
        assert f"warning: {WARNING}" in text
    assert "warning" not in "\n".join(gone)


def test_summary_shows_the_current_warning() -> None:
    console, file = terminal(80, 24)
    print_summary(console, Summary(500_123, 500_000, 95.0, 1.0, 0, 0, Path("run"), playable=True, warning=WARNING))
    assert f"warning: {WARNING}\n" in ESCAPE.sub("", file.getvalue())
    console, file = terminal(80, 24)
    print_summary(console, Summary(500_123, 500_000, 95.0, 1.0, 0, 0, Path("run"), playable=True))
    assert "warning" not in file.getvalue()


def test_chart_by_hand() -> None:
    assert chart([0, 1], 2, 1) == ["▁█"]
    assert chart([0, 1], 10, 1) == ["▁▁▁▁▁█████"], "a short series fills the width"
    assert chart([0, 1], 2, 2) == [" █", "▁█"]
    assert chart([3, 3, 3], 3, 1) == ["▁▁▁"]
    assert chart([0, 0, 7, 7], 2, 1) == ["▁█"]
    assert chart([], 10, 2) == ["", ""]
    assert chart([float("nan"), 1], 1, 1) == ["▁"]
    assert chart([3, 3], 2, 2, bounds=(0, 4)) == ["▄▄", "██"]
    assert chart([0, 1], 2, 1, ascii_only=True) == [".@"]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (160, 50)])
def test_the_curve_has_an_axis_and_fills_its_panel(width: int, height: int) -> None:
    text = picture(width, height, *(snapshot(30_000 * (step + 1), episode_return=50.0 * step) for step in range(4)))
    lines = [line for line in text.splitlines() if "┤" in line]
    assert len(lines) >= 2 and any(" 0 ┤" in line for line in lines)
    lowest = next(line for line in lines if " 0 ┤" in line)
    assert re.search(r"┤[▁-█]+ │$", lowest), lowest


def test_time_left_is_that_of_the_recent_speed() -> None:
    left = _TimeLeft()
    # During start-up, up to and including the first line with steps, there is no estimate.
    for steps, rate in ((0, 0.0), (200, 100.0)):
        left.add(snapshot(steps, env_steps_per_second=rate))
        assert left.seconds(snapshot(steps), 100_000) is None
    left.add(snapshot(2_200, env_steps_per_second=1_000.0))
    assert left.seconds(snapshot(2_200), 102_200) == pytest.approx(100)
    for _ in range(10):
        left.add(snapshot(env_steps_per_second=2_000.0))
    assert left.seconds(snapshot(2_200), 102_200) == pytest.approx(50)
    assert left.seconds(snapshot(500), 500) == 0.0


def test_frames_are_shown_where_they_are_not_the_steps() -> None:
    def labels(**values: object) -> list[str]:
        return [label for rows in figures(snapshot(**values)).values() for label, *_ in rows]  # type: ignore[arg-type]

    assert {"frames", "frames/s"} <= set(labels())
    assert not {"frames", "frames/s"} & set(labels(env_frames=120_000))


def test_a_learning_rate_of_zero_is_shown_as_such() -> None:
    rows = dict(row[:2] for row in figures(snapshot(learning_rate=0.0))["learning"])
    assert rows["learning rate"] == "0"


def test_formatting_of_numbers() -> None:
    assert [duration(seconds) for seconds in (None, 0, 31.4, 3723, 183_840)] == [
        "-",
        "0:00",
        "0:31",
        "1:02:03",
        "2d 03:04",
    ]
    found = [number(value) for value in (None, float("inf"), 0, 1e-5, 0.5, 1.5, 15, 150, -1500, 1e8)]
    assert found == ["-", "-", "0.0000", "1.00e-05", "0.5000", "1.500", "15.00", "150.0", "-1,500", "1.00e+08"]


REPLAY = {
    "replay_size": 81_234.0,
    "replay_mb": 1234.5,
    "replay_ratio": 0.75,
    "priority_mean": 0.0123,
    "priority_max": 4.56,
    "bytes_per_unroll": 15_000.0,
    "epsilon_min": 6.554e-4,
    "epsilon_max": 0.4,
}
Q_VALUES = {"q_mean": 1.5, "q_max": 2.5, "target_mean": 1.25, "td_error": 0.125}


def replaying(step: int, **values: object) -> Snapshot:
    figures: dict[str, object] = {"replay": REPLAY, "extra": Q_VALUES}
    return snapshot(30_000 * (step + 1), **{**figures, **values})


def picture(width: int, height: int, *snapshots: Snapshot) -> str:
    """The last picture of these snapshots, which must fit."""
    console, file = terminal(width, height)
    clock = Clock()
    view = LiveView(console, clock)
    view.start(HEADER)
    for each in snapshots:
        clock.now += 2
        view.update(each, actors(3), 500_000)
    view.stop()
    lines = last_picture(file.getvalue())
    assert len(lines) < height and max(map(len, lines)) <= width
    return "\n".join(lines)


@pytest.mark.parametrize("height", [24, 40])
@pytest.mark.parametrize("width", [80, 100, 140, 170])
def test_the_replay_has_its_own_panel(width: int, height: int) -> None:
    text = picture(width, height, *(replaying(step) for step in range(4)))
    assert " replay " in text and "81,234" in text and "0.7500" in text and "q mean" in text
    assert ("inference" in text) == (width >= 110), "a narrow view leaves out the inference panel"
    assert "entropy" not in text
    for label in ("replay ratio", "priority max", "epsilon min", "epsilon max"):
        assert label in text
    without = picture(width, height, *(snapshot(30_000 * (step + 1)) for step in range(4)))
    assert " replay " not in without and "priority" not in without and "inference" in without


@pytest.mark.parametrize("width", [80, 100, 140, 170])
def test_the_curve_shows_evaluation_returns_if_there_are_any(width: int) -> None:
    def watched(step: int, value: float | None) -> Snapshot:
        return replaying(
            step, evaluation_episodes=step, evaluation_return=value, evaluation_return_20=432.1, episode_return=7.0
        )

    before = picture(width, 40, *(replaying(step) for step in range(3)))
    assert "evaluation" not in before and " return " in before
    text = picture(width, 40, replaying(0), watched(1, 50.0), watched(2, None), watched(3, 450.0))
    assert " evaluation return " in text and "eval (20)" in text
    assert "432.1" in text and "187.2" in text
    # Its axis ends near the evaluation returns, which are drawn from the bottom to the top.
    assert re.search(r"\b400 ┤", text) and not re.search(r"\b7\.0", text)


def test_dropped_unrolls_are_shown_with_and_without_a_replay() -> None:
    for width in (100, 170):
        text = picture(width, 40, replaying(0, dropped_unrolls=12), replaying(1, dropped_unrolls=12))
        assert len(re.findall(r"dropped unrolls\s+12\b", text)) == 1
    text = picture(100, 40, snapshot(dropped_unrolls=12), snapshot(121_000, dropped_unrolls=12))
    assert re.search(r"dropped unrolls\s+12\b", text)
    assert "dropped unrolls" not in picture(100, 40, snapshot(), snapshot(121_000))


@pytest.mark.parametrize("size", [(1, 1), (5, 1), (10, 3), (40, 10), (71, 14), (72, 16), (99, 20), (160, 15), (300, 4)])
def test_no_size_breaks_the_view_of_a_replay(size: tuple[int, int]) -> None:
    console, _ = terminal(*size)
    view = LiveView(console, Clock())
    view.start(HEADER)
    view.update(replaying(1, evaluation_episodes=3, evaluation_return=1.0, dropped_unrolls=2), actors(5), 500_000)
    view.stop()


def test_plain_lines_hold_the_evaluation_return() -> None:
    file = io.StringIO()
    view = PlainView(Console(file=file), interval_seconds=0)
    view.start({})
    view.update(snapshot(), [], 500_000)
    view.update(snapshot(evaluation_episodes=2, evaluation_return_20=432.1), [], 500_000)
    first, second = file.getvalue().splitlines()[-2:]
    assert "evaluation" not in first and "return 187.2, evaluation 432.1, lag" in second
