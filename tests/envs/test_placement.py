"""Environments that run in a separate process because their family declares that they need it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from seedcli.config.schema import make_environment_config
from seedcli.envs.gymnasium.family import GymnasiumFamily
from seedcli.envs.isolated import IsolatedEnv
from seedcli.envs.placement import check_simulator, create_env_beside_tensorflow, create_env_in_actor, plain_spaces
from seedcli.envs.registry import create_env
from seedcli.envs.scratch import ScratchFolder
from seedcli.errors import EnvironmentFailed
from seedcli.specs import RowLayout, Rows, aligned_empty


class Elsewhere(CartPoleEnv):
    """Cannot be built in the process of the tests."""

    def __init__(self, **options: Any) -> None:
        assert os.getpid() != int(os.environ["TEST_PLACEMENT"]), "built in the process of the tests"
        super().__init__(**options)


class Ends(CartPoleEnv):
    """Ends its process, or blocks it, in its third step."""

    def __init__(self, how: str, **options: Any) -> None:
        self.how, self.count = how, 0
        super().__init__(**options)

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count == 3:
            if self.how == "exits":
                os._exit(7)
            time.sleep(600)
        return super().step(action)


gymnasium.register("Elsewhere-v0", entry_point=Elsewhere)
gymnasium.register("Ends-v0", entry_point=Ends)


class Apart(GymnasiumFamily):
    isolation: ClassVar[Literal["never", "rendering", "always"]] = "always"


class Ending(GymnasiumFamily):
    may_end_process: ClassVar[bool] = True


def config(family: str, env: str, **fields: Any) -> Any:
    name = "tests.envs.test_placement:"
    return make_environment_config({"family": name + family, "id": name + env, **fields})


def rows(env: Any) -> Rows:
    layout = RowLayout(env.spec, env.num_envs)
    return layout.views(aligned_empty(layout.nbytes))


def test_all_that_needs_an_environment_beside_tensorflow_builds_it_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    from seedcli.bench.generated import environment_spec

    monkeypatch.setenv("TEST_PLACEMENT", str(os.getpid()))
    apart = config("Apart", "Elsewhere-v0")
    with pytest.raises(EnvironmentFailed, match="built in the process of the tests"):
        create_env(apart, 1)
    env = create_env_beside_tensorflow(apart, 2)
    try:
        out = rows(env)
        env.reset(1, out)
        env.step(np.array([0, 1], np.int32), out)
    finally:
        env.close()
    check_simulator(apart)
    spaces = plain_spaces(apart, env.spec)
    observation, count = spaces.read(np.zeros((3, 4), np.float32))
    assert count == 3 and observation.shape == (3, 4)
    assert environment_spec(apart) == env.spec


def test_a_bare_loop_beside_tensorflow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from seedcli.bench.bare_envs import environment_turn
    from seedcli.config.sources import load_config
    from seedcli.errors import UsageError

    apart = config("Apart", "Elsewhere-v0")
    whole = load_config("cartpole_vtrace", environ={}).config.model_copy(update={"environment": apart})
    with pytest.raises(UsageError, match="must not share a process with TensorFlow"), environment_turn(whole, 1):
        pass


def test_the_end_of_a_process_is_a_failure_in_an_actor() -> None:
    env = create_env_in_actor(config("Ending", "Ends-v0", kwargs={"how": "exits"}), 2)
    try:
        out = rows(env)
        env.reset(1, out)
        for _ in range(2):
            env.step(np.zeros(2, np.int32), out)
        with pytest.raises(EnvironmentFailed, match=r"^the process of .*Ends-v0 ended with status 7 in step$"):
            env.step(np.zeros(2, np.int32), out)
    finally:
        env.close()
    assert not isinstance(create_env_beside_tensorflow(config("Ending", "CartPole-v1"), 1), IsolatedEnv)


def test_a_call_in_another_process_that_does_not_return_is_a_failure() -> None:
    env = create_env_in_actor(config("Ending", "Ends-v0", kwargs={"how": "blocks"}, step_timeout=2), 1)
    try:
        out = rows(env)
        env.reset(1, out)
        with pytest.raises(EnvironmentFailed, match=r"has not returned for 2 s in step \(environment.step_timeout\)$"):
            for _ in range(3):
                env.step(np.zeros(1, np.int32), out)
    finally:
        env.close()  # at once, although the process is blocked
    assert isinstance(env, IsolatedEnv) and env._process.exitcode == -9


def test_a_scratch_folder_in_use_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "seed-simulator-left").mkdir()
    (tmp_path / "seed-simulator-left" / "file").touch()
    one = ScratchFolder()
    other = ScratchFolder()
    assert {one.path, other.path} == set(tmp_path.iterdir())
    one.remove()
    one.remove()
    assert set(tmp_path.iterdir()) == {other.path}
    other.remove()
    assert not list(tmp_path.iterdir())
