"""`seed eval` on runs of `seed train`."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import imageio.v3 as imageio
import numpy as np
import pytest

from seedcli.cli.main import main
from seedcli.config.sources import from_toml_file
from seedcli.roles import trained_agent
from seedcli.roles.evaluator import run as evaluator
from seedcli.roles.run_folder import LOCK
from seedcli.training.checkpoint import list_checkpoints, open_checkpoint
from tests.inference.test_device_memory import exhausted
from tests.system.harness import TINY, Fleet, Process, checkpoints, fleet_in, metrics, sets, wait_for

KEYS = {"checkpoint", "env_steps", "actions", "episodes", "return_mean", "return_std", "returns", "length_mean"}


class Run(NamedTuple):
    """A finished training and the `seed eval --watch` that followed it."""

    folder: Path
    train: Process
    watch: Process


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_in(tmp_path_factory.mktemp("eval")) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def run(processes: Fleet) -> Run:
    values = sets(*TINY, "actors.envs=8", "training.keep_checkpoints=100")
    train = processes.start("train", "--preset", "cartpole_vtrace", "--logdir", "run", "--steps", "6000", *values)
    folder = processes.folder / "run"
    wait_for(lambda: (folder / "config.toml").exists(), "the run begins")
    watch = processes.start("eval", "run", "--watch", "--episodes", "2", "--json")
    train.ends_with(0)
    watch.ends_with(0)
    return Run(folder, train, watch)


def test_a_training_writes_its_files(run: Run) -> None:
    lines = metrics(run.folder)
    assert lines[-1]["env_steps"] >= 6000
    assert lines[-1]["learner_updates"] > 0 and lines[-1]["episodes"] > 0 and lines[-1]["protocol_errors"] == 0
    assert checkpoints(run.folder)[-1] >= 6000
    assert {path.name for path in run.folder.iterdir()} >= {"config.toml", "metrics.jsonl", "learner.log"}
    assert "Traceback" not in run.train.stderr
    assert run.train.stdout == ""


def test_watch_plays_each_new_checkpoint_and_ends_with_the_training(run: Run) -> None:
    played = [json.loads(line) for line in run.watch.stdout.splitlines()]
    steps = [evaluation["env_steps"] for evaluation in played]
    assert steps == sorted(set(steps)) and set(steps) <= set(checkpoints(run.folder))
    assert steps[-1] == checkpoints(run.folder)[-1], "the last checkpoint was not played"
    for evaluation in played:
        assert evaluation.keys() == KEYS
        assert evaluation["episodes"] == len(evaluation["returns"]) == 2
        assert evaluation["return_mean"] == pytest.approx(np.mean(evaluation["returns"]))
        assert evaluation["return_mean"] == evaluation["length_mean"], "the reward of CartPole is 1 a step"


def evaluate(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of `seed eval`, run in this process, which has loaded TensorFlow already."""
    status = main(["eval", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_a_device_without_enough_memory_is_reported(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trained_agent, "AgentPolicy", exhausted)
    status, stdout, stderr = evaluate(capsys, str(run.folder))
    assert (status, stdout) == (1, "") and len(stderr.splitlines()) == 1
    assert "ran out of memory while building the evaluator" in stderr and "lower --envs" in stderr


def test_evaluating_a_run_is_evaluating_its_newest_checkpoint(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    newest = list_checkpoints(run.folder / "checkpoints")[-1]
    one, two = (evaluate(capsys, str(path), "--episodes", "3", "--json") for path in (run.folder, newest))
    assert one == two and one[0] == 0 and one[2] == ""
    evaluation = json.loads(one[1])
    assert evaluation.keys() == KEYS
    assert evaluation["checkpoint"] == str(newest) and evaluation["env_steps"] == int(newest.name)
    assert len(evaluation["returns"]) == evaluation["episodes"] == 3
    assert evaluation["actions"] == "greedy"


def _with_returns(checkpoint: Path, returns: list[float] | None) -> None:
    """Write returns of the last episodes of training into a checkpoint; None: as an older version wrote it."""
    state = json.loads((checkpoint / "state.json").read_text())
    del state["counters"]["recent_returns"], state["counters"]["episode_return_100"]
    if returns is not None:
        state["counters"] |= {"recent_returns": returns, "episode_return_100": float(np.mean(returns))}
    (checkpoint / "state.json").write_text(json.dumps(state))
    reseal(checkpoint, "state.json")


def test_a_hint_on_stderr_if_greedy_play_is_far_below_training(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(checkpoint), "--episodes", "4", "--json"]
    trained = json.loads((checkpoint / "state.json").read_text())["counters"]
    assert trained["episode_return_100"] == pytest.approx(np.mean(trained["recent_returns"]))
    assert len(trained["recent_returns"]) == 100
    _with_returns(checkpoint, [900.0] * 100)
    status, out, err = evaluate(capsys, *arguments)
    mean = json.loads(out)["return_mean"]
    hint = f"greedy actions reach {mean:.2f} where training reached 900.00 with sampled ones: try --sample"
    assert (status, err) == (0, f"seed: {hint}\n")
    status, out, err = evaluate(capsys, *arguments, "--sample")
    assert (status, err, json.loads(out)["actions"]) == (0, "", "sampled")


def test_returns_are_compared_only_for_the_same_task_and_sampled_training(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_returns(checkpoint, [900.0] * 100)
    opened = open_checkpoint(checkpoint)
    trained_on = from_toml_file(opened.config_path).environment

    def hint(**changed: Any) -> str:
        environment = trained_on.model_copy(update=changed)
        player = evaluator.Player(opened, sample=False, seed=1, envs=2, environment=environment)
        if not samples_actions:
            monkeypatch.setattr(player._agent, "algorithm", replace(player._agent.algorithm, samples_actions=False))
        env = player.build(2)
        try:
            return player.play(env, 2, 1).hint
        finally:
            env.close()

    samples_actions = True
    assert hint() and not hint(max_episode_steps=100)
    samples_actions = False
    assert not hint()


def test_a_checkpoint_of_an_earlier_version_is_played(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _with_returns(checkpoint, None)
    status, out, err = evaluate(capsys, str(checkpoint), "--episodes", "2", "--json")
    assert (status, err) == (0, "") and json.loads(out)["episodes"] == 2


def test_without_json_a_table_is_printed(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = evaluate(capsys, str(run.folder), "--episodes", "2", "--sample")
    assert status == 0 and "return mean" in out and "CartPole-v1, sampled actions" in out and "\x1b" not in out


def test_a_folder_with_a_run_is_not_overwritten(run: Run, fleet: Fleet) -> None:
    def written() -> dict[str, int]:
        # All files but the lock, which a learner takes first.
        return {path.name: path.stat().st_mtime_ns for path in run.folder.iterdir() if path.name != LOCK}

    before = written()
    for role in ("train", "learner"):
        process = fleet.start(role, "--preset", "cartpole_vtrace", "--logdir", str(run.folder))
        process.ends_with(2)
        assert "already holds a run" in process.sentence and str(run.folder) in process.sentence
    assert written() == before


def test_a_run_is_not_resumed_with_another_agent(run: Run, fleet: Fleet, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run.folder, tmp_path / "run"))
    config, lines = (folder / "config.toml").read_text(), metrics(folder)
    resumed = fleet.start(
        "train", "--resume", "--logdir", str(folder), "--steps", "1e9", *sets("agent.network.hidden=[16]")
    )
    resumed.ends_with(2)
    assert "another agent" in resumed.sentence
    assert ((folder / "config.toml").read_text(), metrics(folder)) == (config, lines), "the run must not change"


@pytest.fixture
def checkpoint(run: Run, tmp_path: Path) -> Path:
    """A copy of a checkpoint, to be damaged."""
    newest = list_checkpoints(run.folder / "checkpoints")[-1]
    return Path(shutil.copytree(newest, tmp_path / newest.name))


def refusal(capsys: pytest.CaptureFixture[str], path: Path) -> str:
    status, out, err = evaluate(capsys, str(path), "--episodes", "1", "--json")
    assert status == 2 and out == "" and err.startswith("seed: ") and err.count("\n") == 1, err
    assert str(path) in err
    return err


def reseal(checkpoint: Path, name: str) -> None:
    """Update the checksum of a changed file."""
    complete = json.loads((checkpoint / "COMPLETE").read_text())
    complete["blake2b"][name] = hashlib.blake2b((checkpoint / name).read_bytes()).hexdigest()
    (checkpoint / "COMPLETE").write_text(json.dumps(complete))


def test_a_folder_without_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "does not exist" in refusal(capsys, tmp_path / "absent")
    assert "no complete checkpoint" in refusal(capsys, tmp_path)


def test_an_incomplete_checkpoint(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkpoint / "COMPLETE").unlink()
    assert "incomplete" in refusal(capsys, checkpoint)


def test_a_damaged_checkpoint(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = next(checkpoint.glob("variables.data*"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    assert "damaged" in refusal(capsys, checkpoint)


def test_a_checkpoint_that_lacks_a_file(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    next(checkpoint.glob("variables.data*")).unlink()
    refusal(capsys, checkpoint)


def test_a_checkpoint_of_another_version(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = json.loads((checkpoint / "state.json").read_text())
    (checkpoint / "state.json").write_text(json.dumps(state | {"format": 99}))
    reseal(checkpoint, "state.json")
    assert "format 99" in refusal(capsys, checkpoint)


def test_a_checkpoint_of_another_agent(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = (checkpoint / "config.toml").read_text()
    assert "hidden = [8]" in config
    (checkpoint / "config.toml").write_text(config.replace("hidden = [8]", "hidden = [16]"))
    reseal(checkpoint, "config.toml")
    assert "another agent" in refusal(capsys, checkpoint)


def test_the_previous_checkpoint_is_played_if_the_newest_is_damaged(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(run.folder, tmp_path / "run"))
    newest = list_checkpoints(folder / "checkpoints")[-1]
    older = Path(shutil.copytree(newest, folder / "checkpoints" / "1"))
    next(newest.glob("variables.data*")).write_bytes(b"")
    for path in list_checkpoints(folder / "checkpoints"):
        if path not in (older, newest):
            shutil.rmtree(path)
    status, out, _ = evaluate(capsys, str(folder), "--episodes", "1", "--json")
    assert status == 0 and json.loads(out)["checkpoint"] == str(older)


def frames(path: Path) -> np.ndarray:
    pictures = np.stack(list(imageio.imiter(path)))
    assert pictures.ndim == 4 and pictures.shape[-1] == 3
    return pictures


def assert_pictures_change(path: Path) -> None:
    pictures = frames(path)
    assert len(pictures) > 10
    changes = np.abs(np.diff(pictures.astype(np.int16), axis=0)).max(axis=(1, 2, 3))
    assert (changes > 16).sum() > len(changes) // 2, "consecutive pictures hardly differ"


def test_a_video_of_cartpole(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    video = tmp_path / "cartpole.mp4"
    # Sampled actions: with them an untrained agent balances the pole for longer.
    status, out, err = evaluate(capsys, str(run.folder), "--sample", "--episodes", "1", "--json", "--video", str(video))
    assert status == 0 and json.loads(out)["episodes"] == 1
    assert str(video) in err
    assert_pictures_change(video)


def test_a_video_of_atari(fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = sets(*TINY, "agent.network.torso=mlp", "agent.network.frame_stack=1", "environment.max_frames=200")
    options = ["--logdir", "run", "--steps", "100", "--envs", "4", "--deterministic"]
    fleet.start("train", "--preset", "pong_vtrace", *options, *values).ends_with(0)
    video = tmp_path / "pong.mp4"
    run = fleet.folder / "run"
    status, out, _ = evaluate(capsys, str(run), "--episodes", "1", "--json", "--video", str(video))
    assert status == 0
    assert json.loads(out)["length_mean"] <= 50, "200 frames are 50 steps"
    assert open_checkpoint(list_checkpoints(run / "checkpoints")[-1]).spec.name == "atari/pong"
    assert_pictures_change(video)
    assert frames(video).shape[1:3] == (420, 320)


@pytest.mark.parametrize("name", ["video.avi", "absent/video.mp4"])
def test_a_video_that_cannot_be_written(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    status, out, err = evaluate(capsys, str(run.folder), "--video", str(tmp_path / name))
    assert status == 2 and out == "" and name in err
