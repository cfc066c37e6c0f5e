"""Videos of environments with their own rendering libraries, from a process that has loaded TensorFlow."""

from __future__ import annotations

from pathlib import Path

import imageio
import numpy as np
import pytest

from seedcli.envs.isolated import IsolatedEnv
from seedcli.errors import EnvironmentFailed, UsageError
from seedcli.specs import RowLayout, aligned_empty
from tests.configs import env_config
from tests.system.harness import Fleet, sets


def test_a_video_of_mujoco_follows_the_body(fleet: Fleet, tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    fleet.start(
        "train", "--preset", "mujoco_vtrace", "--env", "HalfCheetah-v5", "--steps", "2000", "--logdir", "run",
        *sets("environment.max_episode_steps=20", "training.batch_size=2", "training.minibatches=1", "actors.envs=4"),
    ).ends_with(0)  # fmt: skip
    video = tmp_path / "cheetah.mp4"
    played = fleet.start("eval", "run", "--episodes", "1", "--video", str(video))
    if played.wait() == 2 and "libegl1" in played.stderr:
        pytest.skip("this machine has no library for rendering without a screen")
    played.ends_with(0)
    with imageio.get_reader(video) as reader:
        frames = [np.asarray(frame) for frame in reader]
    assert len(frames) == 21 and frames[0].shape == (480, 480, 3)
    # The body is orange; the floor and the sky are not.
    for frame in (frames[0], frames[-1]):
        red, green, blue = (frame[..., i].astype(int) for i in range(3))
        assert np.count_nonzero((red - blue > 40) & (red > green)) > 200


def test_an_isolated_environment_behaves_like_a_local_one() -> None:
    config = env_config(id="CartPole-v1")
    env = IsolatedEnv(config, 2, render=True)
    try:
        layout = RowLayout(env.spec, 2)
        out = layout.views(aligned_empty(layout.nbytes))
        env.reset(1, out)
        first = out.observation.copy()
        for _ in range(60):
            env.step(np.array([0, 1], np.int32), out)
        assert out.terminated.max() <= 1 and np.isfinite(out.observation).all()
        assert env.render().shape == (400, 600, 3)
        with pytest.raises(EnvironmentFailed, match="action 7"):
            env.step(np.array([0, 7], np.int32), out)
        env.reset(1, out)
        np.testing.assert_array_equal(out.observation, first)
        env._process.kill()
        with pytest.raises(EnvironmentFailed, match="the process of gymnasium/CartPole-v1 ended with status -9"):
            env.reset(1, out)
    finally:
        env.close()
    env.close()


def test_an_isolated_environment_that_cannot_be_built_names_the_error() -> None:
    with pytest.raises(UsageError, match="CartPole-v1"):
        IsolatedEnv(env_config(id="CartPole-v9"), 1)
