"""`seed runs`, `seed plot` and `seed compare` as a user runs them, in this process."""

from __future__ import annotations

import contextlib
import json
import re
import resource
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from seedcli.cli.main import main
from seedcli.results import tables
from seedcli.results.groups import select
from seedcli.results.picture import make_picture
from seedcli.results.terminal import print_picture
from tests.results.helpers import line, make_run

STEPS = (1000, 2000, 3000, 4000)


def rising(slope: float, steps: tuple[int, ...] = STEPS, **more: Any) -> list[dict[str, Any]]:
    return [line(each, slope * each / 1000, **more) for each in steps]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Runs of two presets on CartPole, two seeds of the first."""
    make_run(tmp_path / "runs" / "a1", rising(10), preset="slow", seed=1, steps=4000)
    make_run(tmp_path / "runs" / "a2", rising(12), preset="slow", seed=2, steps=4000)
    make_run(tmp_path / "runs" / "b1", rising(30), preset="fast", seed=1, steps=9000, checkpoint=3000)
    return tmp_path / "runs"


def test_runs_are_listed_with_their_state(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = [{"started": 1.0}, {"ended": 2.0, "status": 1, "error": "the simulator broke"}]
    make_run(folder / "c1", None, sessions=failed)
    assert main(["runs", str(folder)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["run", "preset", "environment", "seed", "steps", "return", "steps/s", "state"]
    assert out[1].split() == f"{folder}/a1 slow CartPole-v1 1 4.00 k 40.00 100 finished".split()
    assert out[3].split()[-8:] == "4.00 k of 9.00 k 120.0 100 resumable".split() and out[4].split()[-3:] == [
        "-",
        "-",
        "failed",
    ]
    assert out[5] == f"{folder}/c1 failed: the simulator broke"
    assert main(["runs", str(folder), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [run["state"] for run in listed] == ["finished", "finished", "resumable", "failed"]
    assert listed[0]["final_return"] == 40.0 and listed[3]["final_return"] is None
    assert listed[3]["error"] == "the simulator broke"


def test_runs_of_ones_own_algorithm_are_told_apart(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = folder / "a2" / "config.toml"
    config.write_text(config.read_text().replace('algorithm = "vtrace"', 'algorithm = "my_agent:MyAgent"'))
    assert main(["runs", str(folder)]) == 0
    out = [row.split() for row in capsys.readouterr().out.splitlines()]
    assert out[0][:4] == ["run", "preset", "algorithm", "environment"]
    assert [row[2] for row in out[1:]] == ["vtrace", "my_agent:MyAgent", "vtrace"]


def test_a_damaged_run_is_named_and_the_others_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a1" / "config.toml").write_text("not toml")
    (folder / "a2" / "metrics.jsonl").write_text("damaged\n{}\n")
    assert main(["runs", str(folder), "--json"]) == 0
    captured = capsys.readouterr()
    assert [run["preset"] for run in json.loads(captured.out)] == ["fast"]
    assert "a run is left out:" in captured.err and "line 1 is not a JSON object" in captured.err


def test_names_with_brackets_are_no_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("x[/b]a", "x[lr=1]")
    for name in names:
        make_run(tmp_path / name, rising(10), preset=name)
    assert main(["runs", str(tmp_path)]) == 0
    rows = [row.split()[:2] for row in capsys.readouterr().out.splitlines()]
    assert all([f"{tmp_path}/{name}", name] in rows for name in names)
    for group_by in ("run", "preset"):
        assert main(["compare", str(tmp_path), "--group-by", group_by]) == 0
        out = capsys.readouterr().out
        assert all(name in out for name in names)


def test_groups_are_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", str(folder), "--threshold", "38", "--threshold", "200"]
    assert main([*arguments, "--json"]) == 0
    slow, fast = json.loads(capsys.readouterr().out)
    assert slow["group"] == "slow" and slow["task"] == "gymnasium/CartPole-v1"
    assert slow["final_return"] == pytest.approx({"value": 44.0, "low": 40.0, "high": 48.0})
    assert slow["iqm"]["value"] == 44.0 and slow["steps_per_second"] == pytest.approx(100)
    assert fast["final_return"] == {"value": 120.0, "low": None, "high": None}
    reached, never = slow["thresholds"]
    # Both reach 38 at 4,000 steps (40); the clock starts at the first line.
    assert reached == {
        "threshold": 38.0, "reached": 2, "of": 2, "env_steps": 4000.0, "minutes": pytest.approx(0.5),
        "within_env_steps": 4000,
    }  # fmt: skip
    assert never["env_steps"] is None and never["reached"] == 0
    assert [run["env_steps_to_threshold"] for run in slow["runs"]] == [[4000.0, None]] * 2
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert out.startswith("gymnasium/CartPole-v1\n") and "4.00 k, 0.50 min" in out
    assert "not reached in 4.00 k steps" in out and "40.00 to 48.00" in out and "one run" in out


def test_a_threshold_that_some_seeds_reach_says_how_many(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(folder / "a3", rising(12.5), preset="slow", seed=3, steps=4000)
    assert main(["compare", str(folder / "a1"), str(folder / "a2"), str(folder / "a3"), "--threshold", "45"]) == 0
    assert "4.00 k, 0.50 min (2 of 3 runs)" in capsys.readouterr().out
    assert main(["compare", str(folder / "a1"), str(folder / "a2"), str(folder / "a3"), "--threshold", "49"]) == 0
    assert "not reached by 2 of 3 runs in 4.00 k steps" in capsys.readouterr().out


def test_runs_are_grouped_by_a_key_and_a_mixture_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(folder / "a3", rising(5), preset="slow", seed=3, steps=4000, batch_size=32)
    slow = [str(folder / name) for name in ("a1", "a2", "a3")]
    assert main(["compare", *slow, "--json"]) == 0
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)) == 1
    assert "the 3 runs of slow differ in training.batch_size" in captured.err
    assert "--group-by training.batch_size tells them apart" in captured.err
    assert main(["compare", *slow, "--group-by", "training.batch_size", "--json"]) == 0
    captured = capsys.readouterr()
    labels = [group["group"] for group in json.loads(captured.out)]
    assert labels == ["training.batch_size = 8", "training.batch_size = 32"] and not captured.err


def test_another_precision_is_another_setting_and_another_device_is_not(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, platform, precision in (("a1", "cpu", "float32"), ("a2", "gpu", "mixed_bfloat16")):
        with (folder / name / "config.toml").open("a") as file:
            file.write(f'[topology]\nplatform = "{platform}"\nprecision = "{precision}"\n')
    assert main(["compare", str(folder / "a1"), str(folder / "a2"), "--json"]) == 0
    assert "the 2 runs of slow differ in topology.precision, so" in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_a_plot_is_written(folder: Path, tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / f"curve.{ending}"
    assert main(["plot", str(folder), "--threshold", "38", "--out", str(out)]) == 0
    err = capsys.readouterr().err
    assert "slow reaches 38 after 4.00 k steps (median of 2 runs)" in err and "fast reaches 38 after 2.00 k" in err
    if ending == "png":
        pixels = np.asarray(Image.open(out).convert("RGB")).reshape(-1, 3)
        for color in ((0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)):
            assert (np.abs(pixels.astype(int) - color).max(axis=1) < 8).sum() > 300
    else:
        assert out.read_bytes().startswith({"svg": b"<?xml", "pdf": b"%PDF"}[ending])


def test_a_run_with_one_point_is_seen_in_a_plot(tmp_path: Path) -> None:
    run, out = make_run(tmp_path / "a", [line(1000, 5.0)]), tmp_path / "plot.png"
    assert main(["plot", str(run), "--out", str(out)]) == 0
    pixels = np.asarray(Image.open(out).convert("RGB")).astype(int)
    blue = np.abs(pixels - (0x00, 0x72, 0xB2)).max(axis=2) < 8
    assert blue[:500].sum() > 20, "above the legend"


def test_names_of_runs_are_no_conventions_of_matplotlib(tmp_path: Path) -> None:
    """A label that begins with "_" is left out of its legends, and text between $ is mathematics."""
    names, out = ("_old/a", "x$_$/b$^$"), tmp_path / "plot.svg"
    for name in names:
        make_run(tmp_path / name, rising(10))
    with contextlib.chdir(tmp_path):
        assert main(["plot", *names, "--group-by", "run", "--threshold", "30", "--out", str(out)]) == 0
        assert all(f"<!-- {name} -->" in out.read_text() for name in names)
        assert main(["plot", names[0], "--group-by", "run", "--out", str(out)]) == 0


@pytest.mark.parametrize(("command", "name"), [("plot", "out.png"), ("report", "out.html")])
def test_a_full_disk_leaves_the_file_that_was_there(
    folder: Path, tmp_path: Path, command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made" / name
    out.parent.mkdir()
    out.write_text("before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))  # bytes of any file
    try:
        assert main([command, str(folder), "--out", str(out)]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "could not be written (File too large): make room or name another file" in capsys.readouterr().err
    assert out.read_text() == "before" and list(out.parent.iterdir()) == [out]


def test_a_plot_in_the_terminal_rises_where_its_runs_do(folder: Path) -> None:
    picture = make_picture(select([folder / "a1", folder / "a2"], "preset"), thresholds=[20.0])
    for color, marks in ((True, "⠁⠂⠄⡀⢀⠠⠐⠈⣀⠤⠒⠉⡠⠔⠊"), (False, None)):
        text = StringIO()
        console = Console(
            file=text, width=60, height=20, force_terminal=color, color_system="standard" if color else None
        )
        print_picture(picture, console)
        shown = text.getvalue()
        assert "slow (2 runs): 44.00 (40.00 to 48.00) at the end" in shown
        assert "4.00 k" in shown and "environment steps" in shown and "40 ┤" in shown and "20 ┤" in shown
        assert marks is None or any(mark in shown for mark in marks)


def test_a_flat_curve_is_drawn_at_its_mark(tmp_path: Path) -> None:
    run, text = make_run(tmp_path / "a", [line(each, 5.0) for each in STEPS]), StringIO()
    print_picture(make_picture(select([run], "run")), Console(file=text, width=60, height=20, color_system=None))
    (drawn,) = (row for row in text.getvalue().splitlines() if "⣀" in row and "at the end" not in row)
    assert drawn.strip().startswith("5 ┤")


def test_groups_are_letters_where_there_are_no_colours(folder: Path) -> None:
    text = StringIO()
    print_picture(make_picture(select([folder], "preset")), Console(file=text, width=70, height=24, color_system=None))
    rows = text.getvalue().splitlines()
    assert rows[1].rstrip().endswith("b")  # 120 at 4,000 steps, the upper right corner
    bottom = [row for row in rows if "a" in row.partition("│")[2]]
    assert bottom and rows.index(bottom[0]) > 8
    assert any(row.startswith("a slow (2 runs)") for row in rows)


def test_lines_differ_in_more_than_their_colours(folder: Path) -> None:
    text = StringIO()
    console = Console(file=text, width=70, height=24, force_terminal=True, color_system="standard")
    print_picture(make_picture(select([folder], "preset")), console)
    rows = re.sub(r"\x1b\[[0-9;]*m", "", text.getvalue()).splitlines()
    drawn = "".join(row.partition("│")[2] or row.partition("┤")[2] for row in rows)
    assert drawn.count("a") == drawn.count("b") == 3
    assert any(row.startswith("a ⣀⣀ slow (2 runs)") for row in rows)
    assert any(row.startswith("b ⣀⣀ fast: ") for row in rows)


def test_evaluation_is_drawn_beside_training(tmp_path: Path) -> None:
    lines = [line(each, each / 100, evaluation_episodes=each // 50, evaluation_return_20=each / 50.0) for each in STEPS]
    picture = make_picture(select([make_run(tmp_path / "a", lines)], "preset"))
    training, evaluation = picture.lines
    assert not training.evaluation and evaluation.evaluation and evaluation.label == "made_up, evaluation"
    np.testing.assert_allclose(evaluation.y, 2 * training.y)
    assert picture.notes == [
        "mean of the last 100 training episodes",
        "dashed: mean of the last 20 evaluation episodes",
    ]


def test_minutes_are_those_of_training(folder: Path) -> None:
    picture = make_picture(select([folder / "b1"], "run"), axis="minutes", thresholds=[90.0])
    assert picture.x_label == "minutes of training"
    np.testing.assert_allclose(picture.lines[0].x, np.array([0, 10, 20, 30]) / 60)
    assert picture.thresholds[0].reached == [pytest.approx(20 / 60)]


def test_a_shorter_run_is_named(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(folder / "a3", rising(9, STEPS[:2]), preset="slow", seed=3)
    assert main(["plot", *(str(folder / name) for name in ("a1", "a2", "a3")), "--out", str(tmp_path / "p.png")]) == 0
    assert f"{folder}/a3 has 2.00 k steps and the longest run of slow 4.00 k" in capsys.readouterr().err


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert not captured.out and captured.err.startswith("seed: ") and captured.err.count("\n") == 1
    return captured.err


def test_what_cannot_be_shown_is_refused_in_one_sentence(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_run(tmp_path / "other", rising(1), task="Acrobot-v1")
    fresh = make_run(tmp_path / "fresh", None)
    no_episode = make_run(tmp_path / "no_episode", [line(10, None)])
    deterministic = make_run(tmp_path / "deterministic", rising(1, time=None))
    (tmp_path / "empty").mkdir()
    a1 = str(folder / "a1")
    cases = {
        (
            "plot",
            a1,
            str(other),
        ): "cannot share an axis; plot the runs of one task at a time",
        ("plot", str(fresh)): "has no metrics yet: the first line of metrics.jsonl is written some seconds after",
        ("plot", str(no_episode)): "no episode has ended yet in any of these runs",
        ("plot", str(deterministic), "--x", "minutes"): "deterministic run, which records no time: use --x env_steps",
        ("plot", a1, "--out", "curve.gif"): "--out curve.gif must end in .png or .svg or .pdf",
        ("plot", a1, "--out", str(tmp_path / "none" / "a.png")): "is not a folder that you may write to; create it",
        ("plot", a1, "--group-by", "training.batchsize"): "did you mean training.batch_size?",
        ("plot", a1, "--group-by", "zzz"): "none of these runs has such a key",
        ("plot", a1, "--x", "hours"): "'hours' is not one of 'env_steps', 'minutes'",
        ("plot", a1, "--smooth", "0"): "0 should be greater than or equal to 1",
        ("plot",): "Missing argument 'RUNS…'",
        ("compare", str(tmp_path / "empty")): "empty holds no run",
        ("compare", str(tmp_path / "nowhere")): "nowhere is not a folder",
        ("runs", str(tmp_path / "empty")): "empty holds no run",
        ("report", a1, "--out", "page.txt"): "--out page.txt must end in .html",
        ("report", a1, str(other), "--out", str(tmp_path / "r.html")): "different tasks cannot share an axis",
    }
    for arguments, sentence in cases.items():
        assert sentence in refused(list(arguments), capsys), arguments
    assert main(["compare", a1, str(other)]) == 0  # a table may hold several tasks


def test_a_run_without_metrics_is_left_out_beside_others(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fresh = make_run(folder / "fresh", None, preset="slow")
    assert main(["compare", str(folder), "--json"]) == 0
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)[0]["runs"]) == 2
    assert f"{fresh} has no metrics yet and is left out" in captured.err


def test_no_command_that_reads_runs_imports_tensorflow(folder: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from seedcli.cli.main import main\n"
        f"runs = {str(folder)!r}\n"
        f"assert 0 == main(['plot', runs]) == main(['plot', runs, '--out', {str(tmp_path / 'p.png')!r}])\n"
        f"assert 0 == main(['compare', runs]) == main(['report', runs, '--out', {str(tmp_path / 'r.html')!r}])\n"
        "assert not {'tensorflow', 'keras', 'matplotlib.pyplot'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def sweep_of(folder: Path) -> Path:
    """Runs of a sweep, whose paths and labels are long."""
    for rate in (0.001, 0.0003):
        for seed in (1, 2):
            run = make_run(
                folder / f"learning_rate={rate}" / f"seed-{seed}", rising(-seed), preset="made_up", seed=seed
            )
            with (run / "config.toml").open("a") as file:
                file.write(f"learning_rate = {rate}\n")
    return folder


@pytest.mark.parametrize("width", [80, 100, 140])
def test_tables_fit_a_terminal_and_break_no_word(
    width: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = sweep_of(tmp_path / "runs" / "sweeps" / "rate")
    monkeypatch.setattr(tables, "_console", lambda: Console(width=width, force_terminal=True, color_system=None))
    assert main(["runs", str(sweep)]) == 0
    assert main(["compare", str(sweep), "--group-by", "training.learning_rate", "--threshold", "-6"]) == 0
    out = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    listed, compared = out[: out.index("gymnasium/CartPole-v1")], out[out.index("gymnasium/CartPole-v1") + 1 :]
    rows = [line for line in listed if "CartPole-v1" in line]
    assert len(rows) == 4 and all("/seed-" in row and row.endswith("failed") for row in rows)
    assert all("4.00 k of 10.0 k" in row for row in rows) and max(map(len, rows)) <= width
    figures = [line for line in compared if "learning_rate = " in line]
    assert len(figures) == 2 and all("-8.000 to -4.000" in line for line in figures)
    assert max(map(len, compared)) <= width
    shortened = any("shows IQM, 95 % as well" in line for line in compared)
    assert shortened == (width < 140), "what does not fit is left out as a whole, and named"
