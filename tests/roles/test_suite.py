"""`seed eval --suite`: scores, statistics, the choice of runs, and the command on checkpoints created here."""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from seedcli.agents.registry import create_agent
from seedcli.cli.main import main
from seedcli.config.sources import load_config, to_toml
from seedcli.envs.dmlab.levels import DMLAB_30, DMLAB_30_TEST
from seedcli.envs.scores import Suite, Task, aggregate, capped_mean, interquartile_mean, load_suite
from seedcli.errors import CheckpointError, UsageError
from seedcli.roles.evaluator import suite_runs
from seedcli.roles.evaluator.suite_chart import write_chart
from seedcli.roles.evaluator.suite_runs import check_output
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec
from seedcli.training.checkpoint import Checkpointer, list_checkpoints
from tests.configs import env_config
from tests.envs.dmlab.lab_double import LOG
from tests.envs.dmlab.lab_double import install as install_lab
from tests.test_package import build

# Episodes of 100 steps and a network of a few hundred weights.
TINY = (
    "agent.network.torso=mlp",
    "agent.network.hidden=[4]",
    "agent.network.frame_stack=1",
    "environment.max_frames=400",
    "environment.height=16",
    "environment.width=16",
)


TINY_LAB = (
    "agent.network.torso=mlp",
    "agent.network.hidden=[4]",
    "agent.network.lstm=0",
    "environment.height=16",
    "environment.width=16",
    "environment.kwargs={episodeLengthSeconds = 1}",
    "environment.level_cache=",
)


def make_run(folder: Path, game: str, *steps: int, lab: bool = False) -> Path:
    """Create a run folder with an untrained agent's checkpoints at the given environment steps.

    The run is of an Atari game, or with `lab` of a DeepMind Lab level.
    """
    preset, sets = ("dmlab_vtrace", TINY_LAB) if lab else ("atari_vtrace", TINY)
    resolved = load_config(preset, sets=sets, flags={"--env": game}, environ={})
    config = resolved.config
    if lab:
        spec = EnvSpec(f"dmlab/{game}", ArraySpec((16, 16, 3), "uint8"), ActionSpec((9,)), frames_per_step=4)
    else:
        spec = EnvSpec(f"atari/{game}", ArraySpec((16, 16, 1), "uint8"), ActionSpec((18,)), frames_per_step=4)
    agent = create_agent(config.agent, config.training, spec, config.run.seed)
    groups = {"agent": agent.variables()}
    text = to_toml(resolved)
    writer = Checkpointer(folder / "checkpoints", text, spec, groups, keep=10, keep_every_hours=0)
    for count in steps:
        writer.save({"env_steps": count, "learner_updates": 1}, wait=True)
    (folder / "config.toml").write_text(text)
    return folder


def damage(run: Path) -> None:
    """Truncate the variables of every checkpoint of a run."""
    for checkpoint in list_checkpoints(run / "checkpoints"):
        next(checkpoint.glob("variables.data*")).write_bytes(b"")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two games at different depths, and a folder that is not a run."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "atari_vtrace" / "20250101-120000", "pong", 1000, 2000)
    make_run(folder / "assault", "assault", 300)
    (folder / "notes").mkdir()
    (folder / "notes" / "config.toml").write_text("[run]\n")
    return folder


def evaluate(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of `seed eval --suite atari57`."""
    status = main(["eval", "--suite", "atari57", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Run `seed eval`, which must be refused with status 2; returns the message."""
    status = main(["eval", *map(str, arguments)])
    captured = capsys.readouterr()
    assert status == 2 and captured.out == "", captured
    assert captured.err.startswith("seed: ") and captured.err.count("\n") == 1, captured.err
    return captured.err


# Scores

# The benchmark of Bellemare et al., arXiv 1207.4708, in the 57 games of Wang et al., arXiv 1511.06581.
ATARI_57 = """
alien amidar assault asterix asteroids atlantis bank_heist battle_zone beam_rider berzerk bowling boxing breakout
centipede chopper_command crazy_climber defender demon_attack double_dunk enduro fishing_derby freeway frostbite
gopher gravitar hero ice_hockey jamesbond kangaroo krull kung_fu_master montezuma_revenge ms_pacman name_this_game
phoenix pitfall pong private_eye qbert riverraid road_runner robotank seaquest skiing solaris space_invaders
star_gunner surround tennis time_pilot tutankham up_n_down venture video_pinball wizard_of_wor yars_revenge zaxxon
""".split()


def test_the_suite_is_the_57_games_with_their_scores() -> None:
    suite = load_suite("atari57")
    assert (suite.name, suite.family) == ("atari57", "atari")
    assert sorted(task.name for task in suite.tasks) == ATARI_57
    assert all(task.human > task.random for task in suite.tasks)
    assert {task.name: (task.random, task.human) for task in suite.tasks}["pong"] == (-20.7, 14.6)


def test_dmlab30_is_the_30_levels_with_their_scores() -> None:
    suite = load_suite("dmlab30")
    assert (suite.name, suite.family) == ("dmlab30", "dmlab")
    assert tuple(task.name for task in suite.tasks) == DMLAB_30
    assert all(task.human > task.random for task in suite.tasks)
    tasks = {task.name: task for task in suite.tasks}
    assert (tasks["rooms_watermaze"].random, tasks["rooms_watermaze"].human) == (4.065, 54.0)
    assert {task.test for task in suite.tasks} - {""} == set(DMLAB_30_TEST)
    assert tasks["rooms_collect_good_objects_train"].test == "rooms_collect_good_objects_test"
    assert sum(task.test == "" for task in suite.tasks) == 28
    assert suite.statistics == ("median", "mean", "iqm", "capped_mean")
    assert load_suite("atari57").statistics == ("median", "mean", "iqm")
    assert (suite.count(1), suite.count(30)) == ("1 level", "30 levels")


def test_the_environment_that_a_run_is_evaluated_on() -> None:
    suite = load_suite("dmlab30")
    trained = env_config(family="dmlab", id="x", height=72, kwargs={"datasetPath": "/data"})
    held_out, same = (suite.test_environment(suite.tasks[i], trained) for i in (0, 3))
    assert (held_out.id, same.id) == ("rooms_collect_good_objects_test", "rooms_watermaze")
    for environment in (held_out, same):
        assert environment.kwargs == {"datasetPath": "/data", "allowHoldOutLevels": "true", "mixerSeed": "1611489005"}
        assert (environment.family, environment.height) == ("dmlab", 72)
    assert trained.kwargs == {"datasetPath": "/data"}
    atari = load_suite("atari57")
    trained = env_config(family="atari", id="pong")
    assert atari.test_environment(atari.tasks[0], trained) == env_config(family="atari", id="alien")


def test_an_unknown_suite_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="'atari75' is not a suite.*atari57, dmlab30"):
        load_suite("atari75")


def test_the_scores_are_in_a_wheel(tmp_path: Path) -> None:
    script = (
        "import seedcli.envs.scores as s;"
        "print(s.__file__, *(len(s.load_suite(name).tasks) for name in ('atari57', 'dmlab30')))"
    )
    site = build("build_wheel", tmp_path)
    environ = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=site, env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == [str(site / "seedcli" / "envs" / "scores.py"), "57", "30"], done.stderr


def test_random_play_is_0_and_a_human_1() -> None:
    task = Task("test", -20.0, 20.0)
    np.testing.assert_allclose(task.normalise([-20.0, 20.0, 0.0, 60.0, -40.0]), [0.0, 1.0, 0.5, 2.0, -0.5])
    assert float(Task("test", -17098.1, -4336.9).normalise(-4336.9)) == 1.0


# Statistics


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8], 4.5),
        ([8, 1, 7, 2, 6, 3, 5, 4], 4.5),
        ([0, 0, 1, 3, 1000, 1000, 1, 3], 2.0),  # two lowest 0, two highest 1000
        ([1, 2, 3, 100], 2.5),
        ([1, 2, 3, 4, 100], 3.0),  # ⌊5/4⌋ = 1 value at each end
        ([1, 2, 30], 11.0),
        ([7], 7.0),
    ],
)
def test_interquartile_means_by_hand(scores: list[float], expected: float) -> None:
    assert interquartile_mean(np.array(scores, np.float64)) == expected
    stacked = np.array([scores, [2 * score for score in scores]], np.float64)
    np.testing.assert_array_equal(interquartile_mean(stacked), [expected, 2 * expected])


def test_the_capped_mean_caps_each_score_at_that_of_a_human() -> None:
    assert capped_mean(np.array([0.5, 1.0, 30.0, -0.5])) == 0.5
    np.testing.assert_array_equal(capped_mean(np.array([[2.0, 3.0], [0.0, 0.5]])), [1.0, 0.25])


def plain_iqm(scores: Sequence[float]) -> float:
    ordered = sorted(scores)
    for _ in range(len(scores) // 4):
        del ordered[0], ordered[-1]
    return statistics.fmean(ordered)


def plain_capped_mean(scores: Sequence[float]) -> float:
    return statistics.fmean(score if score < 1 else 1 for score in scores)


PLAIN = {
    "median": statistics.median,
    "mean": statistics.fmean,
    "iqm": plain_iqm,
    "capped_mean": plain_capped_mean,
}


def test_statistics_and_intervals_against_plain_loops() -> None:
    draw = np.random.default_rng(3)
    scores = draw.gamma(1.5, [[0.2], [0.5], [1.0], [1.2], [3.0], [9.0]], (6, 12))
    estimates = aggregate(scores, 1, list(PLAIN))
    assert list(estimates) == ["median", "mean", "iqm", "capped_mean"]
    games = scores.tolist()
    other = random.Random(5)
    for name, statistic in PLAIN.items():
        value, low, high = estimates[name]
        assert value == pytest.approx(statistic([statistics.fmean(game) for game in games]))
        resampled = sorted(
            statistic([statistics.fmean(other.choices(game, k=len(game))) for game in games]) for _ in range(4000)
        )
        # Two bootstraps of thousands of resamples agree within a small part of the interval.
        width = resampled[3900] - resampled[100]
        assert low == pytest.approx(resampled[100], abs=0.08 * width)
        assert high == pytest.approx(resampled[3900], abs=0.08 * width)
        assert low < value < high


def test_the_interval_of_the_mean_has_its_nominal_coverage() -> None:
    draw = np.random.default_rng(11)
    covered = 0
    for trial in range(100):
        _, low, high = aggregate(draw.normal([[0.0], [4.0], [20.0]], 1.0, (3, 20)), trial, ["mean"])["mean"]
        covered += low <= 8.0 <= high
        # Only the variance within games counts, not that between games: σ/√(G·N) is 0.129.
        assert 0.3 < high - low < 0.7
    assert 85 <= covered <= 100


def test_a_seed_repeats_its_interval_and_one_episode_has_none() -> None:
    scores = np.random.default_rng(0).normal(size=(4, 5))
    names = list(PLAIN)
    assert aggregate(scores, 1, names) == aggregate(scores, 1, names) != aggregate(scores, 2, names)
    assert set(aggregate(np.array([[0.25]]), 1, names).values()) == {(0.25, 0.25, 0.25)}
    assert list(aggregate(scores, 1, ["iqm"])) == ["iqm"]


# Choosing runs


def test_runs_are_found_down_to_six_levels(tmp_path: Path) -> None:
    sweep = "sweeps/lr/learning_rate=0.001/seed-1"
    for name in ("run", "run/checkpoints/of/another", "a/b/c/d/e/run", "a/b/c/d/e/f/run", ".hidden/run", sweep):
        folder = tmp_path / "x" / name
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "config.toml").touch()
    (tmp_path / "x" / "sweeps" / "link").symlink_to(tmp_path / "x" / "run")
    (tmp_path / "x" / "a" / "loop").symlink_to(tmp_path / "x")
    found = suite_runs.find_runs(tmp_path / "x")
    assert [str(path.relative_to(tmp_path / "x")) for path in found] == ["a/b/c/d/e/run", "run", sweep]
    assert suite_runs.find_runs(tmp_path / "x" / "run") == [tmp_path / "x" / "run"]


def test_the_longer_of_two_runs_of_a_game_is_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short, long = make_run(tmp_path / "a", "pong", 500), make_run(tmp_path / "b", "pong", 100, 900)
    (run,) = suite_runs.choose_runs(tmp_path, load_suite("atari57"))
    assert (run.path, run.env_steps, run.task.name) == (long, 900, "pong")
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and str(short) in err and "left out" in err and str(long) in err
    short.rename(tmp_path / "c")
    assert suite_runs.choose_runs(tmp_path, load_suite("atari57"))[0].path == long


def test_a_game_outside_the_suite_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "a", "pong", 1)
    make_run(tmp_path / "b", "adventure", 1)
    (run,) = suite_runs.choose_runs(tmp_path, load_suite("atari57"))
    assert run.task.name == "pong"
    assert "atari/adventure is not a game of atari57" in capsys.readouterr().err
    other = Suite("other", "gymnasium", (Task("pong", 0, 1),))
    assert main(["eval", "--suite", "atari57", str(tmp_path / "b")]) == 2
    with pytest.raises(CheckpointError, match="none of the 2 runs"):
        suite_runs.choose_runs(tmp_path, other)


# The command


def test_json_holds_games_statistics_and_missing_games(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (runs, "--episodes", "3", "--sample", "--envs", "2", "--json")
    status, out, err = evaluate(capsys, *arguments)
    assert status == 0 and out.count("\n") == 1
    found: dict[str, Any] = json.loads(out)
    assert found.keys() == {"suite", "actions", "games", "aggregate", "missing"}
    assert found["actions"] == "sampled"
    assert found["suite"] == "atari57"
    assault, pong = found["games"]
    keys = {"game", "environment", "run", "env_steps", "frames", "returns", "return_mean", "human_normalised"}
    assert assault.keys() == pong.keys() == keys
    assert (assault["game"], assault["env_steps"], assault["frames"]) == ("assault", 300, 1200)
    assert (pong["game"], pong["env_steps"], pong["frames"]) == ("pong", 2000, 8000)
    assert pong["run"] == str(runs / "atari_vtrace" / "20250101-120000")
    for game, low, human in ((assault, 222.4, 742.0), (pong, -20.7, 14.6)):
        assert len(game["returns"]) == 3
        assert game["return_mean"] == pytest.approx(statistics.fmean(game["returns"]))
        assert game["human_normalised"] == pytest.approx((game["return_mean"] - low) / (human - low))
    assert any(pong["returns"] + assault["returns"]), "no episode scored"
    means = [game["human_normalised"] for game in found["games"]]
    assert list(found["aggregate"]) == ["median", "mean", "iqm"]
    for name in found["aggregate"]:
        statistic = PLAIN[name]
        estimate = found["aggregate"][name]
        assert estimate.keys() == {"value", "low", "high"}
        assert estimate["value"] == pytest.approx(statistic(means))
        assert estimate["low"] <= estimate["value"] <= estimate["high"]
    assert len(found["missing"]) == 55 and not {"pong", "assault"} & set(found["missing"])
    # One line of progress per game; a second call has the same result.
    progress = [line for line in err.splitlines() if line.startswith("[")]
    assert [game["environment"] for game in found["games"]] == ["assault", "pong"]
    assert [line.split(":")[0] for line in progress] == ["[1/2] assault", "[2/2] pong"]
    assert "of human" in progress[0] and progress[0].endswith(" s")
    assert evaluate(capsys, *arguments)[1] == out


def test_returns_equal_those_of_evaluating_one_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--episodes", "2", "--seed", "4", "--json")
    status, out, _ = evaluate(capsys, runs / "assault", *options)
    assert status == 0
    (game,) = json.loads(out)["games"]
    assert main(["eval", str(runs / "assault"), *options]) == 0
    assert json.loads(capsys.readouterr().out)["returns"] == game["returns"]


def test_without_json_there_are_tables(runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    chart = tmp_path / "chart.png"
    status, out, err = evaluate(capsys, runs, "--episodes", "1", "--chart", chart)
    assert status == 0 and "\x1b" not in out
    for word in ("assault", "pong", "env steps", "8,000", "human-normalised", "interquartile mean", "95 % interval"):
        assert word in out
    assert "greedy" in out and "missing, 55 of 57: alien, amidar, asterix" in out
    assert f"{chart}: bar chart of 2 games" in err
    with Image.open(chart) as image:
        assert image.format == "PNG" and image.width >= 800


def test_unreadable_runs_count_as_missing(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(shutil.copytree(runs, tmp_path / "runs"))
    damage(folder / "assault")
    # The newest good checkpoint is played.
    pong = folder / "atari_vtrace" / "20250101-120000"
    next((pong / "checkpoints" / "2000").glob("variables.data*")).write_bytes(b"")
    status, out, err = evaluate(capsys, folder, "--episodes", "1", "--json")
    assert status == 0
    found = json.loads(out)
    assert [(game["game"], game["env_steps"]) for game in found["games"]] == [("pong", 1000)]
    assert "assault" in found["missing"]
    assert any(str(folder / "assault") in line for line in err.splitlines() if line.startswith("seed: "))
    damage(pong)
    status, out, err = evaluate(capsys, folder, "--episodes", "1", "--json")
    assert status == 2 and out == "" and "none of the 2 runs" in err.splitlines()[-1]


def test_a_run_of_another_environment_version_counts_as_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "pong", "pong", 1)
    monkeypatch.setattr(EnvSpec, "difference", lambda self, other: "num_actions is 6 where 18 is expected")
    status, out, err = evaluate(capsys, tmp_path, "--episodes", "1")
    assert status == 2 and out == ""
    warning, ending = err.splitlines()
    assert "pong counts as missing" in warning and "num_actions" in warning
    assert "could be played" in ending


def test_folders_without_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "not a folder" in refusal(capsys, "--suite", "atari57", tmp_path / "absent")
    assert "holds no run" in refusal(capsys, "--suite", "atari57", tmp_path)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--suite", "atari57", "--video", "v.mp4"], "--video is for one run"),
        (["--suite", "atari57", "--watch"], "--watch is for one run"),
        (["--suite", "atari58"], "atari57"),
        (["--chart", "c.png"], "--suite"),
        (["--suite", "atari57", "--chart", "c.pdf"], ".png"),
        (["--suite", "atari57", "--chart", "absent/c.png"], "create it first"),
    ],
)
def test_wrong_options_are_refused_before_playing(
    runs: Path, capsys: pytest.CaptureFixture[str], options: list[str], part: str
) -> None:
    assert part in refusal(capsys, runs, *options)


# DMLab-30


def test_levels_are_evaluated_on_their_held_out_versions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a double of the simulator: levels trained on _train are played on _test, with other episodes."""
    runs = tmp_path / "runs"
    make_run(runs / "a", "rooms_collect_good_objects_train", 100, lab=True)
    make_run(runs / "b", "rooms_watermaze", 200, lab=True)
    make_run(runs / "c", "rooms_exploit_deferred_effects_test", 300, lab=True)
    make_run(runs / "d", "lt_chasm", 300, lab=True)
    install_lab(monkeypatch, tmp_path)
    monkeypatch.setenv(LOG, str(tmp_path / "labs"))  # they run in other processes, separate from TensorFlow
    chart = tmp_path / "chart.png"
    arguments = ["--suite", "dmlab30", str(runs), "--episodes", "4", "--envs", "2", "--sample", "--chart", str(chart)]
    assert main(["eval", *arguments, "--json"]) == 0
    captured = capsys.readouterr()
    labs = [json.loads(line) for line in (tmp_path / "labs").read_text().splitlines()]
    levels = [(level, settings["mixerSeed"], settings["episodeLengthSeconds"]) for level, settings in labs]
    one, other = "contributed/dmlab30/rooms_collect_good_objects_test", "contributed/dmlab30/rooms_watermaze"
    assert levels == [(level, "1611489005", "1") for level in (one, one, other, other)]
    found = json.loads(captured.out)
    assert found["suite"] == "dmlab30" and len(found["missing"]) == 28
    held_out, same = found["games"]
    assert held_out["game"] == "rooms_collect_good_objects_train"
    assert held_out["environment"] == "rooms_collect_good_objects_test"
    assert same["game"] == same["environment"] == "rooms_watermaze"
    assert (held_out["frames"], len(held_out["returns"])) == (400, 4)
    for game, low, human in ((held_out, 0.073, 10), (same, 4.065, 54)):
        assert game["human_normalised"] == pytest.approx((game["return_mean"] - low) / (human - low))
    scores = [game["human_normalised"] for game in found["games"]]
    assert found["aggregate"]["capped_mean"]["value"] == pytest.approx(plain_capped_mean(scores))
    for level in ("rooms_exploit_deferred_effects_test", "lt_chasm"):
        assert f"dmlab/{level} is not a level of dmlab30" in captured.err
    assert "bar chart of 2 levels" in captured.err and chart.stat().st_size > 0
    assert main(["eval", *arguments]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "4 episodes a level" in out and "mean, each capped at 100 %" in out and "missing, 28 of 30" in out


# The chart


def picture(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        image.load()
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB")).astype(np.int16)


def blue_rows(pixels: np.ndarray) -> int:
    """Number of bars: runs of rows with many pixels that are more blue than red."""
    filled = (pixels[..., 2] - pixels[..., 0] > 40).sum(axis=1) > 60
    return int((np.diff(filled.astype(np.int8)) == 1).sum())


@pytest.mark.parametrize("games", [1, 2, 57])
def test_a_chart_has_a_bar_for_each_game(tmp_path: Path, games: int) -> None:
    suite = load_suite("atari57")
    scores = {task.name: 0.5 + 0.02 * i for i, task in enumerate(suite.tasks[:games])}
    path = tmp_path / "chart.png"
    write_chart(path, suite, scores, aggregate(np.array([[score] for score in scores.values()]), 1, suite.statistics))
    pixels = picture(path)
    height, width, _ = pixels.shape
    assert width == 1350 and 250 < height < 3000
    assert blue_rows(pixels) == games
    # Each bar has enough rows for a line of text, its name.
    assert height / games >= 35


def test_a_chart_shows_extreme_scores(tmp_path: Path) -> None:
    suite = load_suite("atari57")
    scores = {"boxing": -11.5, "pong": 0.5, "atlantis": 142.0, "alien": 1.5}
    path = tmp_path / "chart.png"
    write_chart(path, suite, scores, aggregate(np.array([[score] for score in scores.values()]), 1, suite.statistics))
    assert blue_rows(picture(path)) == 4, "a small score is visible next to a large one"


def test_charts_that_cannot_be_written(tmp_path: Path) -> None:
    check_output("--chart", tmp_path / "chart.PNG", ".png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UsageError, match="cannot be written"):
        check_output("--chart", tmp_path / "folder.png", ".png")
    with pytest.raises(UsageError, match="must end in .png"):
        check_output("--chart", tmp_path / "chart.svg", ".png")
    with pytest.raises(UsageError, match="create it first"):
        check_output("--chart", tmp_path / "absent" / "chart.png", ".png")
