"""DeepMind Lab, against a double of its interface and, if it is installed, the real module."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from pydantic import ValidationError

from seedcli.envs.dmlab.env import ACTIONS, INSTRUCTION_SIZE
from seedcli.envs.dmlab.levels import DMLAB_30_TEST, lab_settings
from seedcli.envs.placement import check_simulator, create_env_beside_tensorflow, create_env_in_actor
from seedcli.envs.registry import check_environment, create_env
from seedcli.errors import EnvironmentFailed, UsageError
from seedcli.specs import ActionSpec, ArraySpec, RowLayout, aligned_empty, map_arrays
from seedcli.tensorflow_import import import_tensorflow
from tests.envs.dmlab.lab_double import ABORTS, EXITS, LEVEL, MAZE, Lab, lab_config
from tests.envs.helpers import Played, assert_same, play

ALWAYS = {"fps": "60", "logLevel": "WARN", "appendCommand": "+set net_enabled 0"}


@pytest.fixture(params=["double", "real"])
def either(request: pytest.FixtureRequest) -> None:
    """Run a test on the double and, if it is installed, on the real module."""
    if request.param == "double":
        request.getfixturevalue("lab_double")
    else:
        pytest.importorskip("deepmind_lab")


# On the double and the real module


@pytest.mark.parametrize("render", [False, True])
def test_spec_and_pictures(either: None, render: bool) -> None:
    with Played(lab_config(), 2, render=render) as played:
        spec = played.env.spec
        assert spec.name == f"dmlab/{LEVEL}"
        assert spec.observation == ArraySpec((24, 32, 3), "uint8")
        assert spec.action == ActionSpec((9,)) and len(ACTIONS) == 9
        assert spec.frames_per_step == 4
        first = played.reset(1)
        assert first.observation.std() > 0
        if render:
            np.testing.assert_array_equal(played.env.render(), first.observation[0])
        for action in range(9):
            record = played.step(action)
            assert not record.terminated.any() and (record.observation != first.observation).any()


def test_an_episode_ends_by_its_clock_and_repeats_the_last_observation(either: None) -> None:
    run = play(lab_config(), 2, seed=3, steps=40)
    assert not run.truncated.any()
    for env in range(2):
        ends = np.flatnonzero(run.terminated[:, env])
        assert len(ends) >= 2
        np.testing.assert_array_equal(run.observation[ends, env], run.observation[ends - 1, env])
        # A second has 60 frames, 15 steps of 4; a first record follows each final one.
        lengths = np.diff([-1, *ends]) - 1
        assert (lengths <= 15).all() and (lengths >= 13).all()
        running = np.setdiff1d(np.arange(1, 41), [*ends, *(ends + 1)])
        still = (run.observation[running, env] == run.observation[running - 1, env]).reshape(len(running), -1)
        assert not still.all(axis=1).all(), "frames must change"


def test_episodes_of_a_seed_differ_from_one_another(either: None) -> None:
    with Played(lab_config(MAZE), 2) as played:
        first = played.reset(5)
        while not (record := played.step(0)).terminated[0]:
            pass
        second = played.step(0)
        assert (second.observation[0] != first.observation[0]).any()
        assert (first.observation[0] != first.observation[1]).any() and record.reward.dtype == np.float32
        assert_same(played.reset(5), first)


def test_a_second_reset_repeats_the_first_in_later_episodes_too(either: None) -> None:
    with Played(lab_config(MAZE), 2) as played:
        first = played.run(5, 40)
        assert first.terminated.any(axis=0).all()
        assert_same(played.run(5, 40), first)
    assert_same(play(lab_config(MAZE), 2, seed=5, steps=40), first)


def test_no_port_is_opened(either: None) -> None:
    before = psutil.Process().net_connections("inet")
    with Played(lab_config(), 2) as played:
        played.reset(1)
        assert psutil.Process().net_connections("inet") == before


def test_an_unknown_setting_is_refused_as_the_level_is_built(either: None) -> None:
    with pytest.raises(EnvironmentFailed, match="cannot be built: .*Invalid setting: .*foo.*; remove it from env"):
        create_env(lab_config(kwargs={"foo": 1}), 1)


def test_eight_simulators_in_one_process(either: None) -> None:
    alone = play(lab_config(), 1, seed=7, steps=20)
    with Played(lab_config(), 8) as played:
        many = played.run(0, 0)
        assert len({picture.tobytes() for picture in many.observation[0]}) == 8
        np.testing.assert_array_equal(many.observation[0, 7], alone.observation[0, 0])


def test_a_level_without_its_data_fails_in_reset(either: None) -> None:
    with Played(lab_config("psychlab_continuous_recognition", kwargs={}), 1) as played:
        with pytest.raises(EnvironmentFailed, match="^environment 0 of dmlab/psychlab_.* failed in reset: "):
            played.reset(1)


@pytest.mark.parametrize("size", [{"width": 98}, {"height": 30}])
def test_pictures_have_sides_of_multiples_of_4(size: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match="multiple of 4"):
        lab_config(**size)


def test_instructions(either: None) -> None:
    level = "language_select_located_object"
    with Played(lab_config(level, instructions="hashed"), 2) as played:
        assert played.env.spec.observation == {
            "frame": ArraySpec((24, 32, 3), "uint8"),
            "instruction": ArraySpec((256,), "float32"),
        }
        records = [played.reset(seed) for seed in range(6)]
        while not (final := played.step(4)).terminated[0]:
            last = final
        map_arrays(
            lambda one, other: np.testing.assert_array_equal(one[0], other[0]), final.observation, last.observation
        )
    texts = {record.observation["instruction"][env].tobytes() for record in records for env in range(2)}
    assert len(texts) > 1 and bytes(4 * INSTRUCTION_SIZE) not in texts


def test_a_level_cache_saves_compiling(either: None, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    with Played(lab_config(MAZE, level_cache=str(folder)), 1) as played:
        first = played.reset(1)
        kept = sorted(path for path in folder.rglob("*") if path.is_file())
        assert len(kept) == 1 and kept[0].stat().st_size > 0
        assert_same(played.reset(1), first)
    with Played(lab_config(MAZE, level_cache=str(folder)), 1) as other:
        assert_same(other.reset(1), first)
    assert sorted(path for path in folder.rglob("*") if path.is_file()) == kept


def test_a_level_that_does_not_load(either: None) -> None:
    with pytest.raises(EnvironmentFailed, match=r"^dmlab/my_folder/no_such_level cannot be built: RuntimeError: "):
        create_env(lab_config("my_folder/no_such_level"), 1)


def test_a_level_may_ignore_its_length(lab_double: type[Lab]) -> None:
    assert not play(lab_config("tests/empty_room_test"), 1, seed=1, steps=40).terminated.any()


def test_console_commands_are_kept() -> None:
    settings = lab_settings(lab_config(kwargs={"appendCommand": "+set r_gamma 2"}))
    assert settings["appendCommand"] == "+set net_enabled 0 +set r_gamma 2"


# In a separate process


@pytest.mark.parametrize(("level", "status"), [(EXITS, "1"), (ABORTS, r"-6 \(SIGABRT\)")])
def test_a_simulator_that_ends_its_process_is_a_failure(lab_double: type[Lab], level: str, status: str) -> None:
    env = create_env_in_actor(lab_config(level), 3)
    try:
        layout = RowLayout(env.spec, 3)
        expected = f"^the process of dmlab/{level} ended with status {status} in reset of environment 0$"
        with pytest.raises(EnvironmentFailed, match=expected):
            env.reset(1, layout.views(aligned_empty(layout.nbytes)))
    finally:
        env.close()


def test_its_temporary_files_are_removed_when_it_is_killed(lab_double: type[Lab], tmp_path: Path) -> None:
    def temporary() -> list[str]:
        return [path.name for path in (tmp_path / "scratch").rglob("dmlab_temp_folder_*")]

    env = create_env_in_actor(lab_config(), 2)
    try:
        assert len(temporary()) == 2
        env._process.kill()  # type: ignore[attr-defined]
    finally:
        env.close()
    assert temporary() == [] and list((tmp_path / "scratch").iterdir()) == []


def test_temporary_files_of_killed_actors_are_removed_by_the_next(lab_double: type[Lab], tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom seedcli.envs.placement import create_env_in_actor\n"
        "from tests.envs.dmlab.lab_double import lab_config\n"
        "if __name__ == '__main__':\n    env = create_env_in_actor(lab_config(), 1)\n"
        "    print('built', flush=True)\n    time.sleep(600)\n"
    )
    script = tmp_path / "actor.py"
    script.write_text(code)
    actor = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "scratch")},
    )
    try:
        assert actor.stdout is not None and actor.stdout.readline() == "built\n"
        (folder,) = (tmp_path / "scratch").iterdir()
        create_env_in_actor(lab_config(), 1).close()
        assert list(folder.glob("dmlab_temp_folder_*")), "those of a running actor stay"
    finally:
        actor.kill()
        actor.communicate()
    create_env_in_actor(lab_config(), 1).close()
    assert list((tmp_path / "scratch").iterdir()) == []


def test_environments_beside_tensorflow_are_in_a_process_of_their_own(lab_double: type[Lab]) -> None:
    """The double, like the real module, does not survive TensorFlow: it would end this process."""
    import_tensorflow()
    lab_double.crashes_beside_tensorflow = True
    env = create_env_beside_tensorflow(lab_config(), 1)
    env.close()
    check_simulator(lab_config())
    assert not lab_double.made


# Calls of the simulator


def test_levels_and_settings_reach_the_simulator(lab_double: type[Lab]) -> None:
    create_env(lab_config(MAZE, height=72, width=96, renderer="hardware", kwargs={}), 2).close()
    one, other = lab_double.made
    assert one.level == other.level == "contributed/dmlab30/explore_goal_locations_small"
    assert one.settings == {"width": "96", "height": "72", **ALWAYS}
    assert one.renderer == "hardware" and one.observation_names == ["RGB_INTERLEAVED"]
    assert not one.is_running()


@pytest.mark.parametrize("level", [*DMLAB_30_TEST, "contributed/dmlab30/rooms_collect_good_objects_test"])
def test_test_levels_get_their_settings(lab_double: type[Lab], level: str) -> None:
    play(lab_config(level), 1, seed=1, steps=1)
    settings = lab_double.made[0].settings
    assert settings["allowHoldOutLevels"] == "true" and settings["mixerSeed"] == str(0x600D5EED)
    assert lab_double.made[0].level.startswith("contributed/dmlab30/rooms_")


def test_further_settings_are_passed_on_as_strings() -> None:
    kwargs = {"datasetPath": "/data/brady", "botCount": 2, "gadgetSelect": False, "episodeLengthSeconds": 1.5}
    settings = lab_settings(lab_config(kwargs=kwargs))
    assert settings == {
        **{"width": "32", "height": "24", **ALWAYS},
        **{"datasetPath": "/data/brady", "botCount": "2", "gadgetSelect": "false", "episodeLengthSeconds": "1.5"},
    }


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"kwargs": {"width": 3}}, "set environment.width"),
        ({"kwargs": {"levelName": "x"}}, "set environment.id"),
        ({"kwargs": {"bots": [1]}}, "bots = \\[1\\]"),
        ({"kwargs": {"a b": 1}}, "a setting of DeepMind Lab is text"),
    ],
)
def test_unsupported_fields_are_refused(lab_double: type[Lab], fields: dict[str, Any], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        create_env(lab_config(**fields), 1)
    assert not lab_double.made


@pytest.mark.parametrize("skip", [1, 4, 7])
def test_actions_are_repeated_and_rewards_summed(lab_double: type[Lab], skip: int) -> None:
    with Played(lab_config(frame_skip=skip), 1) as played:
        assert played.env.spec.frames_per_step == skip
        played.reset(1)
        lab = lab_double.made[0]
        for action, (move, reward) in {0: (1, skip / 64), 1: (-1, 0.0), 8: (0, float(skip))}.items():
            record = played.step(action)
            assert record.reward[0] == reward
            name, (given, repeats) = lab.calls[-2]
            assert name == "step" and repeats == skip and given[3] == move and given == ACTIONS[action].tolist()
        # The episode ends in the middle of a step: only its own frames count.
        while not (record := played.step(8)).terminated[0]:
            frames = lab.num_steps()
            assert record.reward[0] == skip
        assert record.reward[0] == lab.num_steps() - frames <= skip


def test_seeds_and_episode_numbers(lab_double: type[Lab]) -> None:
    def resets(lab: Lab) -> list[tuple[int, int]]:
        return [arguments for name, arguments in lab.calls if name == "reset"]

    with Played(lab_config(), 2) as played:
        played.run(7, 60)
        expected = [np.random.RandomState(7 + i).randint(0, 2**31 - 1, size=9).tolist() for i in range(2)]
        for lab, seeds in zip(lab_double.made, expected, strict=True):
            found = resets(lab)
            assert len(found) >= 4
            assert found == list(enumerate(seeds))[: len(found)]
        assert len(lab_double.made) == 2, "no simulator is built between episodes"
        played.reset(7)
        assert [lab.is_running() for lab in lab_double.made] == [False, False, True, True]
        for lab, seeds in zip(lab_double.made[2:], expected, strict=True):
            assert resets(lab) == [(0, seeds[0])], "episodes are counted from the reset"


def test_simulator_does_not_write_to_stdout(lab_double: type[Lab], capfd: pytest.CaptureFixture[str]) -> None:
    """Levels write their log to C's stdout; Python's output is not lost."""
    print("before", flush=True)
    play(lab_config(), 2, seed=1, steps=40)
    print("after", flush=True)
    captured = capfd.readouterr()
    assert captured.out == "before\nafter\n"
    assert captured.err.count("Starting episode") >= 4


# Failures


@pytest.mark.parametrize("where", ["reset", "step", "observations"])
def test_an_error_of_the_simulator_names_the_environment(lab_double: type[Lab], where: str) -> None:
    with Played(lab_config(), 3) as played:
        played.reset(1)
        lab_double.made[1].fail = where
        expected = f"^environment 1 of dmlab/{LEVEL} failed in (reset|step): ValueError: Failed to {where} .*error:$"
        with pytest.raises(EnvironmentFailed, match=expected) as caught:
            for _ in range(40):
                played.step(0)
        assert "\n" not in str(caught.value)
        lab_double.made[1].fail = None
        played.reset(1)


def test_environments_built_before_a_failure_are_closed(
    lab_double: type[Lab],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[Lab] = []

    class Third(lab_double):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **options: Any) -> None:
            if len(lab_double.made) == 2:
                raise RuntimeError("Failed to connect RL API")
            super().__init__(*args, **options)

        def close(self) -> bool:
            closed.append(self)
            return super().close()

    monkeypatch.setattr(sys.modules["deepmind_lab"], "Lab", Third)
    with pytest.raises(EnvironmentFailed, match=f"^dmlab/{LEVEL} cannot be built: RuntimeError: Failed to connect"):
        create_env(lab_config(), 4)
    assert len(closed) == 2


def test_unknown_controls_are_refused(lab_double: type[Lab]) -> None:
    with pytest.raises(EnvironmentFailed, match="has the controls .*SWITCH_GADGET where LOOK"):
        create_env(lab_config(kwargs={"gadgetSwitch": True}), 1)


def test_a_picture_of_another_shape_is_named(
    lab_double: type[Lab],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Played(lab_config(), 2) as played:
        monkeypatch.setattr(Lab, "_draw", lambda self: np.zeros((3, 24, 32), np.uint8))
        with pytest.raises(EnvironmentFailed, match=r"environment 0 of .* frame uint8 \[3, 24, 32\] where uint8 \[24"):
            played.reset(1)


def test_a_missing_module_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepmind_lab", None)
    with pytest.raises(EnvironmentFailed) as caught:
        create_env(lab_config(), 1)
    message = str(caught.value)
    assert message.startswith("environment.family dmlab cannot be used on this machine (") and "\n" not in message
    assert "deepmind_lab" in message and "dmlab-gym" in message
    check_environment(lab_config())  # names are checked without it
