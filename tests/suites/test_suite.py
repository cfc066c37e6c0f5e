"""Suites: valid files, and the errors of invalid ones."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from seedcli.envs import scores
from seedcli.errors import UsageError
from seedcli.suites.members import members_of
from seedcli.suites.suite import choose_tasks, load_suite, suite_names
from tests.suites.helpers import SUITE, write_suite

ROOT = Path(__file__).resolve().parents[2]


def test_suites_that_come_with_seed_are_valid_and_packaged() -> None:
    assert suite_names() == ["academy", "atari4", "atari57", "dmlab30", "football", "memory", "mujoco", "small"]
    for name in suite_names():
        suite = load_suite(name)
        assert suite.tasks and suite.description
        assert all(task.source for task in suite.tasks.values() if task.reference is not None)
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert built["force-include"]["benchmarks/suites"] == "seedcli/benchmarks"


@pytest.mark.parametrize("name", ["atari57", "dmlab30"])
def test_suites_of_scores_have_every_task(name: str) -> None:
    found = scores.load_suite(name)
    suite = load_suite(name)
    assert suite.scores == found
    assert [task.env for task in suite.tasks.values()] == [task.name for task in found.tasks]


def test_tasks_take_what_they_do_not_set_from_the_defaults(tmp_path: Path) -> None:
    suite = write_suite(tmp_path)
    easy, hard = suite.tasks["easy"], suite.tasks["hard"]
    assert (easy.preset, easy.steps, easy.seeds, easy.env) == ("cartpole_vtrace", 1000, (1, 2, 3), "")
    assert (hard.preset, hard.steps, hard.seeds, hard.env) == ("cartpole_vtrace", 2000, (7,), "Acrobot-v1")
    assert suite.default_results == Path("runs/benchmarks/mine")


def test_the_first_seed_of_every_task_comes_first(tmp_path: Path) -> None:
    suite = write_suite(tmp_path)
    found = [(member.name, member.seed) for member in members_of(suite.tasks, tmp_path)]
    assert found == [("easy", 1), ("hard", 7), ("easy", 2), ("easy", 3)]


def test_a_run_is_one_command_of_seed(tmp_path: Path) -> None:
    hard = list(members_of(write_suite(tmp_path).tasks, tmp_path))[1]
    assert hard.train_command() == [
        *["train", "--preset", "cartpole_vtrace", "--env", "Acrobot-v1", "--steps", "2000", "--seed", "7"],
        *["--set", "training.batch_size=8", "--logdir", f"{tmp_path}/hard/seed-7", "--continue", "--no-live"],
    ]


HEAD = '[suite]\ndescription = "x"\n'
TASK = HEAD + '[tasks.one]\npreset = "cartpole_vtrace"\nsteps = 10\nseeds = [1]\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (TASK.replace("cartpole_vtrace", "cartpole_vtrase"), "one: Unknown preset 'cartpole_vtrase'. Did you mean"),
        (TASK + "thresold = 3", "unknown key tasks.one.thresold: did you mean threshold?"),
        (TASK.replace("description", "descripton"), "unknown key suite.descripton: did you mean description?"),
        (TASK + "[defaults]\nstep = 1", "unknown key defaults.step: did you mean steps?"),
        (TASK.replace("steps = 10", ""), "tasks.one.steps is missing"),
        (TASK.replace("10", "0"), "tasks.one.steps = 0 must be at least 1"),
        (TASK.replace("[1]", "[]"), "tasks.one.seeds = [] must hold at least 1"),
        (TASK.replace("[1]", "[1, 1]"), "task one: seeds = [1, 1] must differ"),
        (TASK + "reference = 3.5", "task one: reference = 3.5 needs a source"),
        (TASK + 'set = { "training.batch" = 3 }', "task one: unknown key training.batch (from --set): did you mean"),
        (TASK + 'env = "CartPole-v9"', "task one: "),
        (TASK.replace("tasks.one", 'tasks."a/b"'), 'the name of a task may hold letters, digits'),
        (TASK.replace("[tasks", "[task"), "unknown key task: did you mean tasks?"),
        (HEAD + "[tasks]", "tasks = {} must hold at least 1"),
        (TASK.replace('"x"', '"x"\nscores = "atari57"'), 'env = "" of gymnasium is not a game of scores = "atari57"'),
        ("[suite", "is not valid TOML"),
    ],
)  # fmt: skip
def test_a_suite_that_cannot_be_run_is_refused_in_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        write_suite(tmp_path, text)
    assert sentence in str(refused.value)
    assert str(tmp_path / "mine.toml") in str(refused.value) and "\n" not in str(refused.value).strip()


def test_unknown_suites_and_tasks_name_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown suite 'smal': did you mean small"):
        load_suite("smal")
    with pytest.raises(UsageError, match="cannot be read"):
        load_suite("missing.toml")
    with pytest.raises(UsageError, match="mine has no task 'esy': did you mean easy"):
        choose_tasks(write_suite(tmp_path), ["esy"])
    assert list(choose_tasks(write_suite(tmp_path, SUITE), ["hard"])) == ["hard"]
