"""Messages and recovery of runs with damaged checkpoints, and of runs on full and read-only disks."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from seedcli.training.checkpoint import find_checkpoint
from tests.mounts import fill, read_only, tmpfs
from tests.system.harness import TINY, Fleet, Process, checkpoints, counting, fleet_in, last, metrics, sets, wait_for

ENDLESS = ("--preset", "cartpole_vtrace", "--steps", "1e12", "--actors", "1", "--envs", "8")


# The run whose checkpoints are damaged is deterministic; a learner resumes it with threads.
THREADED = sets("run.deterministic=false")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a run with several checkpoints, however long the disk takes to write one."""
    with fleet_in(tmp_path_factory.mktemp("stopped")) as fleet:
        values = sets(*TINY, *counting(), "training.checkpoint_seconds=0.1", "training.keep_checkpoints=4")
        train = fleet.start("train", *ENDLESS, "--logdir", "run", "--deterministic", *values)
        run = fleet.folder / "run"
        wait_for(lambda: len(checkpoints(run)) >= 3 or not train.running, "three checkpoints")
        train.send(signal.SIGTERM)
        train.ends_with(143)
        yield run


@pytest.fixture
def run(stopped: Path, fleet: Fleet) -> Path:
    """A copy of the run, to be damaged."""
    path = fleet.folder / "run"
    shutil.copytree(stopped, path)
    assert len(checkpoints(path)) >= 3
    return path


def _tear(run: Path, env_steps: int) -> Path:
    path = run / "checkpoints" / str(env_steps)
    data = next(path.glob("variables.data-*"))
    os.truncate(data, data.stat().st_size // 2)
    return path


def test_torn_checkpoint_is_reported_and_the_one_before_it_resumed(fleet: Fleet, run: Path) -> None:
    *_, older, newer = checkpoints(run)
    torn = _tear(run, newer)
    said = f"the checkpoint {torn} is damaged (checksum of variables.data-00000-of-00001): "
    instead = f"{run / 'checkpoints' / str(older)} is used instead"

    played = fleet.start("eval", str(run), "--episodes", "1", "--envs", "1")
    played.ends_with(0)
    assert (
        [line for line in played.stderr.splitlines() if said in line and line.endswith(instead)]
        == [line for line in played.stderr.splitlines() if "damaged" in line]
        != []
    )

    resumed = fleet.learner("--resume", "--logdir", str(run), "--steps", "1e12", *THREADED)
    resumed.wait_until_it_serves()
    wait_for(lambda: f"resuming from {run / 'checkpoints' / str(older)} at {older:,}" in resumed.stderr, "the learner")
    for text in (resumed.stderr, (run / "learner.log").read_text()):
        (line,) = [line for line in text.splitlines() if said in line]
        assert f"it is set aside as damaged-{torn.name}" in line
    resumed.kill()
    assert checkpoints(run)[-1] == older and (run / "checkpoints" / f"damaged-{newer}").is_dir()
    assert all(line["env_steps"] <= older for line in metrics(run)), "metrics continue from the same point"


def test_a_run_without_a_good_checkpoint_is_refused_and_unchanged(fleet: Fleet, run: Path) -> None:
    for env_steps in checkpoints(run):
        _tear(run, env_steps)
    kept = [path for path in sorted(run.rglob("*")) if path.name not in ("learner.log", "learner.lock", run.name)]
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in kept}
    for arguments in (["learner", "--resume", "--logdir", str(run), *THREADED], ["eval", str(run)]):
        process = fleet.start(*arguments, *(["--grpc-port", "0", "--zmq-port", "0"] if "learner" in arguments else []))
        process.ends_with(2)
        assert f"none of its {len(checkpoints(run))} checkpoints can be read" in process.sentence
        assert f"checkpoint {run / 'checkpoints' / str(checkpoints(run)[-1])} is damaged" in process.sentence
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in kept} == before
    assert checkpoints(run) and not list((run / "checkpoints").glob(".*"))


def test_remains_of_a_killed_writer_are_repaired_and_removed(fleet: Fleet, run: Path) -> None:
    folder = run / "checkpoints"
    newest = checkpoints(run)[-1]
    # As if killed between renaming the old checkpoint of this number and the new one.
    (folder / str(newest)).rename(folder / f".{newest}.replaced")
    for name in (f".{newest}.partial", ".7.removed"):
        (folder / name).mkdir()
        (folder / name / "variables.index").write_bytes(b"half")
    resumed = fleet.learner("--resume", "--logdir", str(run), "--steps", "1e12", *THREADED)
    resumed.wait_until_it_serves()
    wait_for(lambda: f"at {newest:,} environment steps" in resumed.stderr, "the newest is resumed")
    assert "damaged" not in resumed.stderr and not list(folder.glob(".*"))
    resumed.kill()


def _until(process: Process, run: Path, env_steps: int) -> None:
    def there() -> bool:
        assert process.running, process.stderr
        return last(run, "env_steps") > env_steps and len(checkpoints(run)) > 0

    wait_for(there, f"a checkpoint, and more than {env_steps} environment steps")


def test_training_continues_on_a_full_disk(fleet: Fleet) -> None:
    with tmpfs(fleet.folder / "disk", "size=3m") as disk:
        run = disk / "run"
        values = sets(*TINY, *counting(pause=0.001), "training.checkpoint_seconds=0.3")
        train = fleet.start("train", *ENDLESS, "--logdir", str(run), *values)
        try:
            _until(train, run, 500)
            ballast = fill(disk)
            wait_for(lambda: "could not be written: " in train.stderr or not train.running, "a checkpoint that fails")
            wait_for(lambda: "metrics cannot be written" in train.stderr or not train.running, "a line that fails")
            stood = checkpoints(run)
            assert find_checkpoint(run).env_steps == stood[-1]
            said = train.stderr.count("could not be written: ")
            wait_for(lambda: train.stderr.count("could not be written: ") >= said + 3 or not train.running, "more")
            assert train.running, train.stderr
            assert checkpoints(run) == stood and find_checkpoint(run).env_steps == stood[-1]
            ballast.unlink()
            wait_for(lambda: checkpoints(run)[-1] > stood[-1] or not train.running, "a checkpoint once there is room")
            env_steps = checkpoints(run)[-1]
            _until(train, run, env_steps)
            assert find_checkpoint(run).env_steps >= env_steps
            train.popen.terminate()
            train.ends_with(143, limit=30)
            train.killed = True
            assert "Traceback" not in train.stderr, train.stderr
            assert metrics(run)[-1]["env_steps"] == find_checkpoint(run).env_steps
            assert not list((run / "checkpoints").glob(".*"))
        finally:
            train.kill()


def test_a_run_on_a_read_only_disk_is_refused(fleet: Fleet, stopped: Path) -> None:
    with tmpfs(fleet.folder / "disk", "size=8m") as disk:
        shutil.copytree(stopped, disk / "run")
        read_only(disk)
        for arguments in (["--resume", "--logdir", str(disk / "run")], [*ENDLESS, "--logdir", str(disk / "new")]):
            train = fleet.start("train", *arguments)
            train.ends_with(2)
            assert len(train.stderr.splitlines()) == 1 and "Read-only file system" in train.sentence
            assert "--logdir" in train.sentence


def test_a_run_on_a_full_disk_is_refused(fleet: Fleet) -> None:
    with tmpfs(fleet.folder / "disk", "size=1m") as disk:
        fill(disk)
        train = fleet.start("train", *ENDLESS, "--logdir", str(disk / "run"), *sets(*TINY, *counting()))
        train.ends_with(2)
        assert "No space left on device" in train.sentence and str(disk / "run") in train.sentence
