"""Sweeps: their points, names, faults, ranking and job array; nothing is trained."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from seedcli.cli.main import main
from seedcli.errors import UsageError
from seedcli.suites.array import array_script
from seedcli.suites.members import members_of
from seedcli.suites.sweep import Range, Sweep, load_sweep
from tests.suites.helpers import finish, path_with, played

ROOT = Path(__file__).resolve().parents[2]
HEAD = '[sweep]\npreset = "cartpole_vtrace"\nsteps = 1_000\n'
GRID = """
[grid]
training.learning_rate = [1e-3, 2e-3]
agent.entropy_cost = [0.0, 0.01]
"""


def load(folder: Path, text: str, name: str = "mine") -> Sweep:
    path = folder / f"{name}.toml"
    path.write_text(text)
    return load_sweep(path)


def test_a_grid_has_every_combination_with_every_seed(tmp_path: Path) -> None:
    sweep = load(tmp_path, f"{HEAD}seeds = [3, 7]\n[set]\ntraining.batch_size = 8\n{GRID}")
    rates, costs = (1e-3, 2e-3), (0.0, 0.01)
    assert [tuple(values.values()) for values in sweep.points.values()] == list(itertools.product(rates, costs))
    runs = list(members_of(sweep.suite.tasks, tmp_path / "results"))
    assert len(runs) == 8 and len({run.folder for run in runs}) == 8
    assert runs[4].command() == [
        *("train", "--preset", "cartpole_vtrace", "--steps", "1000", "--seed", "7"),
        *("--set", "training.batch_size=8", "--set", "training.learning_rate=0.001", "--set", "agent.entropy_cost=0.0"),
    ]
    assert runs[4].folder == tmp_path / "results" / "learning_rate=0.001,entropy_cost=0.0" / "seed-7"


def test_more_values_leave_the_folders_of_the_others_as_they_are(tmp_path: Path) -> None:
    small = load(tmp_path, HEAD + GRID)
    large = load(tmp_path, HEAD + GRID.replace("[0.0,", "[0.1, 0.0,"))
    assert set(small.points) < set(large.points)


def test_quoted_keys_tables_and_lists_of_points(tmp_path: Path) -> None:
    text = """repetitions = 2
[grid]
"training.learning_rate" = [1e-3, 2e-3]

[[list]]
training.optimizer = "adam"
agent.network.hidden = [8]

[[list]]
training.optimizer = "rmsprop"
environment.kwargs = { sutton_barto_reward = true }
"""
    sweep = load(tmp_path, HEAD + text)
    assert [list(values.values()) for values in sweep.points.values()] == [
        [1e-3, "adam", [8]],
        [1e-3, "rmsprop", {"sutton_barto_reward": True}],
        [2e-3, "adam", [8]],
        [2e-3, "rmsprop", {"sutton_barto_reward": True}],
    ]
    assert {task.seeds for task in sweep.suite.tasks.values()} == {(1, 2)}
    assert all(Path(name).name == name and len(name) <= 100 for name in sweep.points), "names of folders"


def test_a_drawn_value_stays_in_its_range_when_rounded() -> None:
    shares = [number / 1000 for number in range(1000)]
    for low, high in ((0.99, 0.99999), (0.12344, 0.1238), (1e-5, 1.00004e-5)):
        values = [Range(low=low, high=high).value(share) for share in shares]
        assert low <= min(values) and max(values) <= high
        assert all(value in (low, high) or float(f"{value:.4g}") == value for value in values)


def test_random_values_cover_their_ranges_and_are_drawn_again(tmp_path: Path) -> None:
    text = """samples = 120
[random]
training.learning_rate = { low = 1e-4, high = 1e-2, log = true }
training.unroll_length = { low = 5, high = 8 }
agent.discount = { low = 0.9, high = 1.0 }
training.optimizer = { choices = ["adam", "rmsprop"] }
"""
    points = list(load(tmp_path, HEAD + text).points.values())
    rates = np.array([point["training.learning_rate"] for point in points])
    assert rates.min() >= 1e-4 and rates.max() <= 1e-2
    assert abs((rates < 1e-3).mean() - 0.5) < 0.15, "half of the draws in each decade"
    lengths = [point["training.unroll_length"] for point in points]
    assert {type(length) for length in lengths} == {int} and set(lengths) == {5, 6, 7, 8}
    assert min(map(lengths.count, (5, 6, 7, 8))) > 15
    discounts = np.array([point["agent.discount"] for point in points])
    assert discounts.min() >= 0.9 and discounts.max() <= 1.0 and abs(discounts.mean() - 0.95) < 0.02
    assert {point["training.optimizer"] for point in points} == {"adam", "rmsprop"}
    fewer = list(load(tmp_path, HEAD + text.replace("120", "20")).points.values())
    assert fewer == points[:20], "the same file has the same points, and more samples change none"
    assert list(load(tmp_path, HEAD + "draw = 2\n" + text).points.values()) != points


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "varies nothing: give it a table [grid], [[list]] or [random], or several sweep.seeds"),
        ("[grid]\n", "[grid] is empty"),
        ("[grid]\ntraining.batch_size = []\n", "grid.training.batch_size = [] must be a list of at least one value"),
        ("[grid]\ntraining.batch_size = 8\n", "grid.training.batch_size = 8 must be a list"),
        ("[grid]\ntraining.batch_size = [8, 8]\n", "has the same point twice"),
        (
            "[grid]\ntraining.batch_sise = [8]\n",
            "unknown key training.batch_sise (from --set): did you mean training.b",
        ),
        ("[grid]\ntraining.batch_size = [0]\n", "point batch_size=0: training.batch_size = 0 (from --set) must be at"),
        ("[grid]\nrun.seed = [1, 2]\n", "run.seed = 1 must not be set: give sweep.seeds instead"),
        ("[set]\nrun.steps = 9\n" + GRID, "run.steps = 9 must not be set: give sweep.steps instead"),
        ("[gird]\ntraining.batch_size = [8]\n", "unknown key gird: did you mean grid?"),
        ("step = 3\n" + GRID, "unknown key sweep.step: did you mean steps?"),
        ("seeds = [1]\nrepetitions = 2\n" + GRID, "seeds and repetitions both say how many runs a point has"),
        ("repetitions = 0\n" + GRID, "sweep.repetitions = 0 must be at least 1"),
        ("[random]\nagent.discount = { low = 0.1, high = 1 }\n", "[random] needs sweep.samples, how many points to"),
        ("samples = 3\n[random]\n", "[random] needs keys, such as"),
        ("samples = 3\n" + GRID, "sweep.samples = 3 draws points from [random]: add that table"),
        ("samples = 3\n[random]\nagent.discount = { low = 1 }\n", "must have a low below its high, not low = 1 and"),
        ("samples = 3\n[random]\nagent.discount = { low = 0, high = 1, log = true }\n", "must have a low above 0 with"),
        ("samples = 3\n[random]\nagent.discount = { lo = 0, high = 1 }\n", "unknown key lo: did you mean low?"),
        ("samples = 3\n[random]\nagent.discount = 0.9\n", "random.agent.discount = 0.9 must be a table, such as { low"),
        ("[[list]]\ntraining.batch_size = 8\n[grid]\ntraining.batch_size = [8]\n", "batch_size is in two of [grid]"),
        ("[slurm]\ncpu = 3\n" + GRID, "unknown key slurm.cpu: did you mean cpus?"),
    ],
)
def test_wrong_sweeps_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        load(tmp_path, HEAD + text)
    assert sentence in str(refused.value) and "mine.toml" in str(refused.value)


def test_the_best_point_is_shown_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = load(tmp_path, f"{HEAD}repetitions = 2\nepisodes = 2\n{GRID}")
    results = tmp_path / "results"
    for index, member in enumerate(members_of(sweep.suite.tasks, results)):
        if index != 3:  # the last point with the first seed is still to be trained
            evaluations = {"greedy": played([index, index + 2]), "sampled": played([10 * index] * 2)}
            finish(member, evaluations, [float(index), float(index)])
    arguments = ["sweep", str(tmp_path / "mine.toml"), "--results", str(results), "--dry-run"]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [point["values"]["training.learning_rate"] for point in found["points"]] == [2e-3, 2e-3, 1e-3, 1e-3]
    # Run i is point i % 4: point 3 has run 7, point 2 runs 2 and 6, and so on.
    assert [point["training"] for point in found["points"]] == [7, 4, 3, 2]
    assert [point["greedy"] for point in found["points"]] == [8, 5, 4, 3]
    assert [point["sampled"] for point in found["points"]] == [70, 40, 30, 20]
    assert [len(point["runs"]) for point in found["points"]] == [2, 2, 2, 2]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "1 of 2" in shown and shown.index("1 of 2") < shown.index("2 of 2")
    assert "learning_rate" in shown and "8 runs: 7 finished, 1 not started" in " ".join(shown.split())


SLURM = """[slurm]
cpus = 4
gpus = 1
time = "1:00:00"
at_once = 3
sbatch = ["--qos=long"]
setup = ["setup_line() { :; }"]
"""


def test_a_job_array_runs_each_run_once(tmp_path: Path) -> None:
    """With fake programs: `srun` runs its command, and `seed` records its arguments."""
    sweep = load(tmp_path, HEAD + GRID + SLURM, name="two words")
    results = tmp_path / "it's here"
    first, *others = members_of(sweep.suite.tasks, results)
    finish(first, {}, [1.0, 1.0])
    script = array_script(sweep, results)
    for option in (
        "--array=0-2%3",
        "--job-name=two_words",
        "--cpus-per-task=4",
        "--gpus=1",
        "--time=1:00:00",
        "--qos=long",
    ):
        assert f"\n#SBATCH {option}\n" in script
    written = tmp_path / "written"
    programs = {
        "srun": 'shift\nexec "$@"',
        "seed": f'printf "%s\\n" "$@" > {written}\nexit ${{STATUS:-0}}',
        "squeue": "echo RUNNING",
        "scontrol": f'echo "$@" >> {written}',
    }
    environ = {**os.environ, "PATH": path_with(tmp_path / "bin", programs), "SLURM_JOB_ID": "77"}
    for index, member in enumerate(others):
        done = subprocess.run(
            ["bash"],
            input=script,
            text=True,
            env={**environ, "SLURM_ARRAY_TASK_ID": str(index)},
            timeout=60,
            check=True,
        )
        assert written.read_text().splitlines() == member.train_command() and done.returncode == 0
    stopped = subprocess.run(
        ["bash"], input=script, text=True, env={**environ, "SLURM_ARRAY_TASK_ID": "0", "STATUS": "143"}, timeout=60
    )
    assert stopped.returncode == 143 and written.read_text().endswith("requeue 77\n")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('time = "soon"', "slurm.time: --time 'soon' must be a time limit"),
        ('time = "2"', "slurm.time = 2 must be at least 150 s, or each run is stopped and requeued as it begins"),
        ('mem = "much"', "slurm.mem 'much' must be a size as SLURM writes it, such as 16G"),
        ('sbatch = ["qos"]', "slurm.sbatch 'qos' must be an option of sbatch, such as --qos=long"),
    ],
)
def test_wrong_options_of_the_array_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        array_script(load(tmp_path, f"{HEAD}{GRID}[slurm]\n{text}\n"), tmp_path)
    assert sentence in str(refused.value)


def test_an_array_of_nothing_and_flags_of_local_runs_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = load(tmp_path, HEAD + GRID)
    for member in members_of(sweep.suite.tasks, tmp_path / "results"):
        finish(member, {}, [1.0, 1.0])
    arguments = ["sweep", str(tmp_path / "mine.toml"), "--results", str(tmp_path / "results"), "--slurm"]
    assert main(arguments) == 2
    assert "is trained: seed sweep" in capsys.readouterr().err
    assert main([*arguments, "--json"]) == 2
    assert "--json is for runs on this machine, and --slurm prints jobs" in capsys.readouterr().err


def test_the_example_is_a_sweep_and_needs_no_tensorflow() -> None:
    code = (
        "import sys; from pathlib import Path; from seedcli.suites.sweep import load_sweep;"
        "s = load_sweep(Path('examples/sweeps/cartpole.toml')); print(len(s.points), 'tensorflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["4", "False"]
