"""DeepMind Lab without the simulator: names of levels, hashed instructions, the level cache, the preset."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seedcli.config.sources import load_config
from seedcli.envs.dmlab.config import LabConfig
from seedcli.envs.dmlab.env import INSTRUCTION_SIZE, hash_instruction
from seedcli.envs.dmlab.level_cache import LevelCache, open_level_cache
from seedcli.envs.dmlab.levels import DMLAB_30, DMLAB_30_TEST, FIRST_LEVELS, check_level, level_path
from seedcli.envs.registry import check_environment, create_env
from seedcli.errors import UsageError
from seedcli.specs import ArraySpec
from tests.envs.dmlab.lab_double import MAZE, Lab, lab_config
from tests.envs.helpers import Played

# Names


def test_the_levels() -> None:
    assert len(set(DMLAB_30)) == 30 and len(set(FIRST_LEVELS)) == 12
    assert {level.replace("_test", "_train") for level in DMLAB_30_TEST} < set(DMLAB_30)
    for level in (*DMLAB_30, *DMLAB_30_TEST, *FIRST_LEVELS, "tests/empty_room_test", "contributed/psychlab/harlow"):
        check_level(level)
    assert level_path("rooms_watermaze") == "contributed/dmlab30/rooms_watermaze"
    assert level_path("lt_chasm") == "lt_chasm" and level_path("a/b") == "a/b"


@pytest.mark.parametrize(
    ("level", "part"),
    [
        ("explore_goal_location_small", "did you mean explore_goal_locations_small or "),
        ("rooms_collect_good_objects", "rooms_collect_good_objects_t"),
        ("Watermaze", "did you mean rooms_watermaze"),
        ("zzz", "named by its path: my_folder/my_level"),
    ],
)
def test_unknown_levels(level: str, part: str) -> None:
    with pytest.raises(UsageError, match=f"environment.id '{level}' is not a level of DeepMind Lab; .*{part}"):
        check_environment(lab_config(level))


# Instructions


def test_hashed_instructions() -> None:
    one = hash_instruction("Pick the red object in the blue room.")
    assert one.shape == (INSTRUCTION_SIZE,) and one.dtype == np.float32
    assert 10 <= np.abs(one).sum() <= 15 and not one.flags.writeable  # 8 words and 7 pairs, of which some may cancel
    np.testing.assert_array_equal(one, hash_instruction("pick the RED object, in the blue room"))
    assert (one != hash_instruction("Pick the blue object in the red room.")).any(), "the order of words matters"
    assert not hash_instruction("").any() and not hash_instruction(" ?! ").any()
    colors = {hash_instruction(f"go to the {c} ball").tobytes() for c in ("red", "green", "blue", "black", "white")}
    assert len(colors) == 5


def test_hashes_are_the_same_in_every_process() -> None:
    """Trained networks depend on these numbers: they must never change."""
    red = hash_instruction("red")
    assert np.flatnonzero(red).tolist() == [134] and red[134] == 1


# The level cache


def test_level_cache(tmp_path: Path) -> None:
    cache = LevelCache(str(tmp_path / "deep" / "cache"))
    source, target = tmp_path / "source", tmp_path / "target"
    assert not cache.fetch("a key/with: signs", str(target)) and not target.exists()
    source.write_bytes(b"map" * 100_000)
    cache.write("a key/with: signs", str(source))
    assert cache.fetch("a key/with: signs", str(target)) and target.read_bytes() == source.read_bytes()
    assert not cache.fetch("another", str(target))
    source.write_bytes(b"other")
    cache.write("a key/with: signs", str(source))  # the first file is kept
    assert cache.fetch("a key/with: signs", str(target)) and len(target.read_bytes()) == 300_000
    files = [path for path in (tmp_path / "deep").rglob("*") if path.is_file()]
    assert len(files) == 1 and files[0].stat().st_mode & 0o777 == 0o644, "no temporary file is left"


def test_maps_are_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader does not see a file that a writer is still copying."""
    cache, other = LevelCache(str(tmp_path)), LevelCache(str(tmp_path))
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"x" * 10_000)
    half, go_on = threading.Event(), threading.Event()
    copy: Callable[..., None] = shutil.copyfileobj

    def slowly(read: Any, write: Any) -> None:
        write.write(read.read(5_000))
        write.flush()
        half.set()
        assert go_on.wait(20)
        copy(read, write)

    monkeypatch.setattr(shutil, "copyfileobj", slowly)
    writer = threading.Thread(target=cache.write, args=("key", str(source)))
    writer.start()
    assert half.wait(20)
    assert not other.fetch("key", str(target))
    monkeypatch.setattr(shutil, "copyfileobj", copy)
    other.write("key", str(source))  # finishes before the slow one
    assert other.fetch("key", str(target)) and target.stat().st_size == 10_000
    go_on.set()
    writer.join(20)
    assert not writer.is_alive()
    assert other.fetch("key", str(target)) and target.read_bytes() == source.read_bytes()


def test_a_failing_cache_is_logged_once_and_does_not_end_the_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = LevelCache(str(tmp_path / "cache"))
    source = tmp_path / "source"
    source.write_bytes(b"map")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with caplog.at_level(logging.WARNING):
        cache.write("key", str(source))
        cache.write("key", str(source))
    assert len(caplog.records) == 1 and "No space left on device" in caplog.text
    assert not cache.fetch("key", str(tmp_path / "target"))
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_an_unusable_cache_folder_is_refused(tmp_path: Path, lab_double: type[Lab]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"environment.level_cache '.*file' cannot be used: name a folder"):
        create_env(lab_config(MAZE, level_cache=str(tmp_path / "file")), 1)
    assert not lab_double.made


def test_the_default_cache_is_in_the_users_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    cache = open_level_cache(LabConfig().level_cache)
    assert cache is not None and (tmp_path / "mine" / "seed" / "dmlab").is_dir()
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored according to the XDG specification
    monkeypatch.setenv("HOME", str(tmp_path))
    open_level_cache("auto")
    assert (tmp_path / ".cache" / "seed" / "dmlab").is_dir()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        assert open_level_cache("auto") is None
    assert "compiled maps are not cached" in caplog.text
    assert open_level_cache("") is None


def test_a_limited_cache_keeps_the_maps_used_last(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(1000))
    folder = tmp_path / "cache"
    cache = LevelCache(str(folder), most_bytes=3000)
    for key in ("a", "b", "c"):
        cache.write(key, str(source))
    for path in folder.glob("*/*"):
        os.utime(path, (1, 1))
    assert cache.fetch("a", str(target))
    for key in ("d", "e"):
        cache.write(key, str(source))
    again = LevelCache(str(folder), most_bytes=3000)
    assert [key for key in "abcde" if again.fetch(key, str(target))] == ["a", "d", "e"]
    assert len(list(folder.glob("*/*"))) == 3


# The preset

# SEED RL's settings for DeepMind Lab (Espeholt et al., arXiv 1910.06591, with its repository).
PUBLISHED = {
    "run.steps": 250_000_000,  # 1e9 frames of 4 a step
    "environment.frame_skip": 4,
    "environment.height": 72,
    "environment.width": 96,
    "agent.network.torso": "impala_deep",
    "agent.network.channels": (16, 32, 32),
    "agent.network.lstm": 256,
    "agent.network.frame_stack": 1,
    "agent.network.previous_action_reward": True,
    "agent.network.reward_input_clip": 1.0,
    "agent.discount": 0.99,
    "agent.reward_clip": 1.0,
    "agent.baseline_cost": 0.5,
    "agent.lambda": 1.0,
    "training.unroll_length": 100,
    "training.batch_size": 32,
    "training.optimizer": "adam",
    "training.learning_rate": 4.8e-4,
    "training.learning_rate_end": 0.0,
    "training.adam_beta1": 0.0,
    "training.adam_beta2": 0.999,
    "training.epsilon": 3.125e-7,
    "training.clip_norm": 0.0,
    "actors.envs": 8,
}


def test_the_preset_has_the_published_settings() -> None:
    resolved = load_config("dmlab_vtrace", flags={"--env": MAZE}, environ={})
    config = resolved.config
    for key, value in PUBLISHED.items():
        found = config.model_dump(by_alias=True)
        for part in key.split("."):
            found = found[part]
        assert found == value, key
        assert resolved.sources[key] == "preset dmlab_vtrace", key
    assert (config.environment.family, config.environment.id) == ("dmlab", MAZE)
    assert 1e-5 <= config.agent.entropy_cost <= 2e-3
    assert config.actors.count * config.actors.envs < 64, "a laptop must be able to start it"


def test_preset_builds_its_environment(lab_double: type[Lab]) -> None:
    environment = load_config("dmlab_vtrace", environ={}).config.environment
    with Played(environment, 1) as played:
        assert played.env.spec.observation == ArraySpec((72, 96, 3), "uint8")
        assert played.env.spec.frames_per_step == 4
        assert played.reset(1).observation.std() > 0
