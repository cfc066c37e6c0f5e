"""The outcome of a suite: states, figures, tables, chart and JSON, from files of runs that were not trained."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread
from rich.console import Console

from seedcli.cli.main import main
from seedcli.errors import UsageError
from seedcli.results.drawing import COLORS
from seedcli.suites.curves_chart import write_curves
from seedcli.suites.members import Record, is_trained
from seedcli.suites.outcomes import gather
from seedcli.suites.report import write_files
from seedcli.suites.run_outcome import Tables
from seedcli.suites.suite import Suite
from seedcli.suites.tables import Grid, markdown, run_grid, task_grid
from tests.results.helpers import line, make_run
from tests.suites.helpers import SUITE, finish, members, played, write_suite


def test_every_seed_is_shown_with_its_state(tmp_path: Path) -> None:
    suite = write_suite(tmp_path)
    runs = members(suite, tmp_path / "results")
    finish(runs["easy", 1], {"greedy": played([90, 110]), "sampled": played([70, 90])}, [40.0, 60.0])
    failed = runs["easy", 2]
    failed.write(Record(failed.command(), error="no room"))
    make_run(
        runs["hard", 7].folder, [], preset="cartpole_vtrace", task="Acrobot-v1", steps=2000, seed=7, checkpoint=500
    )
    outcome = gather(suite, tmp_path / "results")
    assert [(run.member.name, run.member.seed, run.state) for run in outcome.runs] == [
        ("easy", 1, "finished"),
        ("easy", 2, "failed"),
        ("easy", 3, "not started"),
        ("hard", 7, "interrupted"),
    ]
    page = markdown(outcome, "chart.png")
    assert "4 runs: 1 finished, 1 failed, 1 not started, 1 interrupted" in page
    assert "- easy, seed 2: no room (`easy/seed-2.log`)" in page
    assert len(run_grid(outcome).rows) == 4
    assert "seed train --preset cartpole_vtrace --steps 1000 --seed 3 --set training.batch_size=8" in page


def test_a_run_that_has_taken_its_steps_is_to_be_evaluated(tmp_path: Path) -> None:
    suite = write_suite(tmp_path)
    run = members(suite, tmp_path)["easy", 1]
    record = finish(run, {}, [40.0, 60.0])
    assert gather(suite, tmp_path).runs[0].state == "to be evaluated"
    run.write(replace(record, evaluations={"greedy": played([1.0, 1.0])}))
    assert gather(suite, tmp_path).runs[0].state == "to be evaluated"


def test_evaluations_of_another_length_are_made_again(tmp_path: Path) -> None:
    run = members(write_suite(tmp_path), tmp_path)["easy", 1]
    finish(run, {"greedy": played([90.0, 110.0]), "sampled": played([70.0, 90.0])}, [40.0, 60.0])
    suite = write_suite(tmp_path, SUITE.replace("episodes = 2", "episodes = 3"))
    outcome = gather(suite, tmp_path).runs[0]
    assert outcome.state == "to be evaluated" and outcome.to_dict()["evaluations"] == {}


def test_figures_of_a_task(tmp_path: Path) -> None:
    suite = write_suite(tmp_path)
    runs = members(suite, tmp_path)
    # 100 episodes have ended after 1,000 steps: only then may the threshold of 50 count as reached.
    for seed, means in ((1, [60.0, 60.0]), (2, [20.0, 55.0]), (3, [20.0, 30.0])):
        mean = float(100 * seed)
        finish(runs["easy", seed], {"greedy": played([mean] * 2), "sampled": played([mean / 2] * 2)}, means)
    outcome = gather(suite, tmp_path)
    assert [run.threshold_steps for run in outcome.tasks[0].runs] == [1000, 1000, np.inf]
    estimate = outcome.tasks[0].estimate("greedy")
    assert estimate is not None and estimate.value == 200 and 100 <= estimate.low < estimate.high <= 300
    row = task_grid(outcome).rows[0]
    assert row[:5] == ["easy", "cartpole_vtrace", "CartPole-v1", "1.00 k", "3 of 3"]
    assert row[5].startswith("200.0 [1") and row[6].startswith("100.0 [")
    assert row[7:] == ["500.0", "50.00", "1.00 k, 0.17 min (2 of 3 runs)"]
    third = run_grid(outcome).rows[2]
    assert third == ["easy", "finished", "3", "30.00", "300.0 ± 0.0000", "150.0 ± 0.0000",
                     "not reached in 1.00 k steps", "100", "0:10"]  # fmt: skip
    found = json.loads(json.dumps(outcome.to_dict(), allow_nan=False))
    assert [run["threshold_steps"] for run in found["tasks"][0]["runs"]] == [1000, 1000, None]
    assert found["tasks"][0]["reference"] == 500 and found["tasks"][0]["source"] == "made up, PPO"
    assert found["tasks"][0]["greedy"]["value"] == 200 and found["tasks"][1]["greedy"] is None


def test_names_with_brackets_are_no_markup() -> None:
    text = StringIO()
    Console(file=text, width=60).print(
        Grid(["task[lr]"], [["x[/b] of a long name"]], left=1).table("two [/b] tasks[lr=1]")
    )
    assert all(name in text.getvalue() for name in ("task[lr]", "x[/b]", "two [/b] tasks[lr=1]"))


ATARI = """
[suite]
description = "two games"
episodes = 1
scores = "atari57"
[defaults]
preset = "atari_vtrace"
steps = 1_000
seeds = [1, 2]
[tasks.alien]
env = "alien"
[tasks.pong]
env = "pong"
"""


def test_human_normalised_suites_have_statistics_over_tasks(tmp_path: Path) -> None:
    suite = write_suite(tmp_path, ATARI)
    shares = {("alien", 1): 0.5, ("alien", 2): 0.7, ("pong", 1): 1.0, ("pong", 2): 1.4}
    for key, member in members(suite, tmp_path).items():
        evaluation = played([1.0], shares[key])
        finish(member, {"greedy": evaluation, "sampled": evaluation}, [1.0, 1.0])
    outcome = gather(suite, tmp_path)
    assert outcome.tasks[0].reference == 7127.7
    found = outcome.aggregate("greedy")
    assert found["median"].value == pytest.approx(0.9) and found["mean"].value == pytest.approx(0.9)
    # rliable's interquartile mean is over the runs of all tasks, 0.5, 0.7, 1.0 and 1.4, not over the means of tasks.
    assert found["iqm"].value == pytest.approx(0.85)
    page = markdown(outcome, "chart.png")
    assert (
        "Human-normalised, greedy, over 2 of 2 tasks: median 90.0% [" in page and "interquartile mean 85.0% [" in page
    )
    written = write_files(outcome, tmp_path / "out")
    assert imread(written[2]).shape[1] == 1350


def test_unequal_numbers_of_seeds_have_statistics_too(tmp_path: Path) -> None:
    text = ATARI.replace('env = "alien"', 'env = "alien"\nseeds = [1, 2, 3, 4]')
    shares = {"alien": (0.1, 0.2, 0.4, 2.0), "pong": (1.0, 1.4)}
    suite = write_suite(tmp_path, text)
    for (name, seed), member in members(suite, tmp_path).items():
        evaluation = played([1.0], shares[name][seed - 1])
        finish(member, {"greedy": evaluation, "sampled": evaluation}, [1.0, 1.0])
    outcome = gather(suite, tmp_path)
    found = outcome.aggregate("greedy")
    assert found["mean"].value == pytest.approx((2.7 / 4 + 1.2) / 2) and found["iqm"].value == pytest.approx(0.75)
    assert all(each.low < each.value < each.high for each in found.values())
    # The cell also shows the interquartile mean of the scores: of 0.2 and 0.4, not of all four.
    assert task_grid(outcome).rows[0][5].endswith(", 30%")


def test_one_seed_a_task_has_no_interval(tmp_path: Path) -> None:
    suite = write_suite(tmp_path, ATARI.replace("[1, 2]", "[1]"))
    evaluation = played([1.0], 0.5)
    finish(members(suite, tmp_path)["alien", 1], {"greedy": evaluation, "sampled": evaluation}, [1.0, 1.0])
    outcome = gather(suite, tmp_path)
    for name in ("median", "mean", "iqm"):
        assert outcome.to_dict()["aggregate"]["greedy"][name] == {"value": 0.5, "low": None, "high": None}
    page = markdown(outcome, "chart.png")
    assert "greedy, over 1 of 2 tasks: median 50.0%, mean 50.0%, interquartile mean 50.0%." in page


def test_a_deterministic_run_has_no_duration(tmp_path: Path) -> None:
    suite = write_suite(tmp_path)
    run = members(suite, tmp_path)["easy", 1]
    lines = [line(500, 3.0, time=None), line(1000, 4.0, time=None)]
    make_run(run.folder, lines, preset="cartpole_vtrace", steps=1000, checkpoint=1000)
    row = run_grid(gather(suite, tmp_path)).rows[0]
    assert row == ["easy", "to be evaluated", "1", "4.000", "-", "-", "not reached in 1.00 k steps", "-", "-"]


def test_results_of_other_settings_are_refused(tmp_path: Path) -> None:
    suite = write_suite(tmp_path)
    finish(members(suite, tmp_path)["easy", 1], {}, [40.0])
    changed = write_suite(tmp_path, SUITE.replace("1_000", "5_000"))
    with pytest.raises(UsageError, match="was started as seed train .*--steps 1000 .*give another --results"):
        gather(changed, tmp_path)


def test_runs_of_jobs_are_refused_for_other_settings(tmp_path: Path) -> None:
    """They leave no record: their config.toml says how they were trained."""
    run = members(write_suite(tmp_path), tmp_path)["easy", 1]
    make_run(run.folder, [line(1000, 4.0)], preset="cartpole_vtrace", steps=1000, checkpoint=1000)
    assert is_trained(run) and gather(write_suite(tmp_path), tmp_path).runs[0].state == "to be evaluated"
    for old, new, sentence in (
        ("1_000", "5_000", "started with run.steps = 1000, but its file now says 5000: give another --results"),
        ('batch_size" = 8', 'batch_size" = 64', "started with training.batch_size = 8, but its file now says 64"),
        ("cartpole_vtrace", "gymnasium_vtrace", 'run.preset = "cartpole_vtrace", but its file now says "gymnasium'),
    ):
        changed = write_suite(
            tmp_path, SUITE.replace(old, new).replace("[tasks.easy]", '[tasks.easy]\nenv="CartPole-v1"')
        )
        with pytest.raises(UsageError, match=sentence):
            is_trained(members(changed, tmp_path)["easy", 1])
        with pytest.raises(UsageError, match=sentence):
            gather(changed, tmp_path)


def test_table_writes_page_json_and_chart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = write_suite(tmp_path)
    evaluation = played([90.0, 110.0])
    finish(members(suite, tmp_path)["easy", 1], {"greedy": evaluation, "sampled": evaluation}, [60.0, 60.0])
    arguments = ["benchmark", "table", str(suite.path), "--results", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    assert "| easy | finished | 1 | 60.00 |" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "mine.md", "mine.json", "mine.png", "mine-curves.png",
    }  # fmt: skip
    assert "![learning curves](mine-curves.png)" in (tmp_path / "out" / "mine.md").read_text()
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "out" / "mine.json").read_text())
    assert main([*arguments, "--only", "hard"]) == 0
    shown = capsys.readouterr().out
    assert "| hard | not started | 7 |" in shown and "easy" not in shown
    assert (tmp_path / "out" / "mine.md").read_text().count("1 run of 1 of 2 tasks: 1 not started") == 1
    assert main([*arguments, "--only", "heard"]) == 2
    assert "mine has no task 'heard': did you mean hard" in " ".join(capsys.readouterr().err.split())
    assert main(["benchmark", "table", str(suite.path), "--results", str(tmp_path / "none")]) == 2
    assert "is not a folder: seed benchmark run" in capsys.readouterr().err


def test_runs_of_another_machine_are_read_from_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The combined table of two machines equals that of one machine with all runs."""
    suite = write_suite(tmp_path)
    both, first, second = (tmp_path / name for name in ("both", "first", "second"))
    for seed, means in ((1, [60.0, 60.0]), (2, [20.0, 30.0])):
        for results in (both, first if seed == 1 else second):
            evaluation = played([60.0 + seed] * 2)
            finish(members(suite, results)["easy", seed], {"greedy": evaluation, "sampled": evaluation}, means)
    for results in (both, second):
        failed = members(suite, results)["hard", 7]
        failed.write(Record(failed.command(), error="no room"))
    command = ["benchmark", "table", str(suite.path), "--json", "--results"]
    assert main([*command, str(both)]) == 0
    expected = json.loads(capsys.readouterr().out)
    assert main([*command, str(second)]) == 0
    capsys.readouterr()
    assert main([*command, str(first), "--with", str(second / "mine.json")]) == 0
    assert json.loads(capsys.readouterr().out) == expected
    for name in ("mine.md", "mine.json"):
        assert (first / name).read_text() == (both / name).read_text()
    assert imread(first / "mine-curves.png").shape == imread(both / "mine-curves.png").shape
    # A table made from a table, without the folder of any run.
    assert main([*command, str(tmp_path / "none"), "--with", str(first / "mine.json"), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "mine.json").read_text() == (both / "mine.json").read_text()


def _axes_of_curves(suite: Suite, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Axes:
    """The axes on which finished runs of a suite of one environment are drawn."""
    for member in members(suite, folder).values():
        finish(member, {}, [10.0, 20.0])
    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *a, **k: (drawn.append(figure), save(figure, *a, **k)))
    assert write_curves(folder / "curves.png", gather(suite, folder))
    (axes,) = drawn[0].axes
    return axes


def test_tasks_with_one_preset_and_environment_have_colours_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SUITE.replace('env = "Acrobot-v1"', "").replace(
        "[tasks.hard]", '[tasks.hard]\nset = { "agent.discount" = 0.5 }'
    )
    suite = write_suite(tmp_path, text)
    axes = _axes_of_curves(suite, tmp_path, monkeypatch)
    lines = [line for line in axes.lines if len(line.get_xdata()) == 2 and line.get_linestyle() == "-"]
    colors = [line.get_color() for line in lines]
    assert len(set(colors[:3])) == 1 and len(colors) == 4 and colors[3] != colors[0]
    legend = axes.get_legend()
    assert legend is not None and [each.get_text() for each in legend.get_texts()] == ["easy", "hard"]


def test_the_title_fits_above_a_single_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = write_suite(tmp_path, SUITE.replace('env = "Acrobot-v1"', ""))
    figure = _axes_of_curves(suite, tmp_path, monkeypatch).figure
    (title,) = figure.texts
    extent = title.get_window_extent()
    assert "a line for a seed" in title.get_text().replace("\n", " ")
    assert figure.bbox.x0 <= extent.x0 < extent.x1 <= figure.bbox.x1


def test_more_tasks_than_colours_are_told_apart_by_dashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = len(COLORS) + 2
    tasks = [f'[tasks.t{n}]\nseeds = [1]\nset = {{ "agent.discount" = 0.{n + 1} }}\n' for n in range(count)]
    suite = write_suite(tmp_path, SUITE[: SUITE.index("[tasks.easy]")] + "\n".join(tasks))
    axes = _axes_of_curves(suite, tmp_path, monkeypatch)
    styles = [(line.get_color(), line.get_linestyle()) for line in axes.lines]
    assert len(styles) == len(set(styles)) == count


def test_curves_are_thinned_for_the_table(tmp_path: Path) -> None:
    suite = write_suite(tmp_path)
    finish(members(suite, tmp_path)["easy", 1], {}, [1 / 3 + number for number in range(1000)])
    curve = gather(suite, tmp_path).runs[0].curve
    assert {name: len(values) for name, values in curve.items()} == {"env_steps": 100, "minutes": 100, "returns": 100}
    assert curve["env_steps"][0] == 500 and curve["env_steps"][-1] == 500_000
    assert curve["returns"][0] == 0.33333 and curve["returns"][-1] == 999.33
    write_files(gather(suite, tmp_path), tmp_path)
    assert '"env_steps": [500.0, ' in (tmp_path / "mine.json").read_text()


def test_tables_of_other_settings_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = write_suite(tmp_path)
    finish(members(suite, tmp_path)["easy", 1], {}, [40.0])
    write_files(gather(suite, tmp_path), tmp_path)
    table = tmp_path / "mine.json"
    for old, new, sentence in (
        ("1_000", "5_000", "easy, seed 1 has the command seed train .* but the suite says seed train .*5000"),
        ("threshold = 50", "threshold = 60", "easy, seed 1 has the threshold 50.0, but the suite says 60.0"),
    ):
        changed = write_suite(tmp_path, SUITE.replace(old, new))
        with pytest.raises(UsageError, match=sentence):
            gather(changed, tmp_path / "none", Tables([table]))
    suite = write_suite(tmp_path)
    for content, sentence in (
        ("[]", "mine.json cannot be read"),
        ('{"tasks": 3}', "mine.json cannot be read"),
        (table.read_text().replace("env_steps_per_second", "speed"), "easy, seed 1 cannot be read"),
    ):
        table.write_text(content)
        with pytest.raises(UsageError, match=f"--with .*{sentence}"):
            gather(suite, tmp_path / "none", Tables([table]))
    arguments = ["benchmark", "table", str(suite.path), "--results", str(tmp_path / "none")]
    assert main([*arguments, "--with", str(tmp_path / "missing.json")]) == 2
    assert "missing.json cannot be read" in capsys.readouterr().err
