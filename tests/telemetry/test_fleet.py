"""The fleet in the live view: hundreds of actors in a few lines."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from seedcli.telemetry.fleet import STATES, ActorRow, State, count_states, format_states, sort_by_urgency
from seedcli.telemetry.live import LiveView, PlainView
from seedcli.telemetry.metrics import Snapshot

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def actor(name: str, state: State = "stepping", reason: str = "") -> ActorRow:
    return ActorRow(name, "10.0.0.1:5000", "zmq", 16, 100.0, 0.2, state, reason=reason)


FLEET = [actor(f"actor-{i}") for i in range(198)]
FLEET.insert(50, actor("quiet", "silent"))
FLEET.insert(150, actor("gone", "lost", "reset by peer"))


def drawn(fleet: list[ActorRow], width: int, height: int) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, height=height, force_terminal=True, color_system="256")
    view = LiveView(console)
    view.start({"preset": "x"})
    view.update(Snapshot(env_steps=10), fleet, 100)
    view.stop()
    lines = ESCAPE.sub("", file.getvalue().split("\x1b[2K")[-1]).replace("\r", "").splitlines()
    assert len(lines) < height and max(map(len, lines)) <= width
    return "\n".join(lines)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (110, 30), (200, 60)])
def test_actors_in_trouble_come_first_and_those_that_do_not_fit_are_counted(width: int, height: int) -> None:
    text = drawn(FLEET, width, height)
    assert "198 stepping, 1 silent, 1 lost" in text
    assert "199 actors, 3,184 environments" in text, "a lost actor does not count"
    assert text.index("gone") < text.index("quiet") < text.index("actor-0 ")
    rows = len(re.findall(r"^│ (?:actor-\d+|gone|quiet)\b", text, re.M))
    more = re.search(r"and (\d+) more", text)
    assert more is not None and rows + int(more[1]) == 200
    assert ("lost: reset by peer" in text) == (width == 200), "the reason is shown if it fits"


def test_a_joining_actor_is_shown_but_not_counted() -> None:
    text = drawn([ActorRow("new", "10.0.0.1:5000", "grpc", 16, None, None, "joining")], 100, 30)
    assert "0 actors, 0 environments" in text and "1 joining" in text
    assert re.search(r"new +10\.0\.0\.1:5000 +grpc +16 +- +- +joining", text)


def test_states_are_counted_and_ordered() -> None:
    counts = count_states(FLEET)
    assert counts == {"lost": 1, "silent": 1, "busy": 0, "joining": 0, "waiting": 0, "stepping": 198}
    assert format_states(count_states([])) == ""
    assert format_states(dict.fromkeys(STATES, 1000)) == (
        "1,000 stepping, 1,000 waiting, 1,000 joining, 1,000 busy, 1,000 silent, 1,000 lost"
    )
    ordered = sort_by_urgency(FLEET)
    assert [row.actor_id for row in ordered[:3]] == ["gone", "quiet", "actor-0"]
    assert ordered[2:] == [row for row in FLEET if row.state == "stepping"], "other actors keep their order"


def test_a_plain_line_counts_only_actors_in_trouble() -> None:
    file = io.StringIO()
    view = PlainView(Console(file=file, width=300), interval_seconds=0)
    view.start({})
    view.update(Snapshot(env_steps=1, actors=3, actors_stepping=3), [], 100)
    view.update(Snapshot(env_steps=2, actors=3, actors_stepping=2, actors_silent=1, actors_lost=2), [], 100)
    view.update(Snapshot(env_steps=3, actors=3).without_wall_clock(), [], 100)
    _, well, ill, deterministic = file.getvalue().splitlines()
    assert "silent" not in well and "lost" not in well
    assert ill.endswith(" left, 1 silent, 2 lost")
    assert "silent" not in deterministic and "lost" not in deterministic
