"""Which parts of a Dict observation are used: `environment.observation_keys`, and text, which is left out."""

from __future__ import annotations

import json
import logging
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from seedcli.envs.conformance import check_environment
from seedcli.envs.gymnasium.spaces import Observations
from seedcli.envs.registry import create_env
from seedcli.errors import EnvironmentFailed, UsageError
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec, RowLayout
from tests.envs.helpers import gymnasium_config


class CustomText(spaces.Space[str]):
    """A package's own space for text, as MiniGrid has for its missions."""

    def __init__(self) -> None:
        super().__init__(shape=None, dtype=str)


SPACE = spaces.Dict(
    image=spaces.Box(0, 255, (2,), np.uint8),
    mission=CustomText(),
    body=spaces.Dict(speed=spaces.Box(-1, 1, (1,), np.float32), name=spaces.Text(5), gear=spaces.Discrete(3)),
)
VALUE = {
    "image": np.ones(2, np.uint8),
    "mission": "go",
    "body": {"speed": np.zeros(1, np.float32), "name": "car", "gear": np.int64(2)},
}


@pytest.mark.parametrize(
    ("keys", "used", "warned"),
    [
        ((), {"image", "body/speed", "body/gear"}, "'body/name', 'mission' are left out"),
        (("image",), {"image"}, ""),
        (("body",), {"body/speed", "body/gear"}, "'body/name' is left out"),
        (("body/gear", "image"), {"image", "body/gear"}, ""),
        (("-mission", "-body/name"), {"image", "body/speed", "body/gear"}, ""),
        (("-mission",), {"image", "body/speed", "body/gear"}, "'body/name' is left out"),
        (("-body", "-mission"), {"image"}, ""),
    ],
)
def test_keys_choose_parts(keys: tuple[str, ...], used: set[str], warned: str) -> None:
    observations = Observations(SPACE, "test", keys)
    assert isinstance(observations.spec, dict) and set(observations.spec) == used
    assert set(observations.bounds) == used & {"image", "body/speed"}
    if warned:
        assert observations.notice.startswith(f"test observes text, which networks cannot read: {warned}")
    else:
        assert not observations.notice
    layout = RowLayout(EnvSpec("test", observations.spec, ActionSpec((2,))), 2)
    out = layout.views(np.full(layout.nbytes, 0xA5, np.uint8)).observation
    observations.write([VALUE, VALUE], out)
    if "image" in used:
        assert out["image"].tolist() == [[1, 1], [1, 1]]
    if "body/gear" in used:
        assert out["body/gear"].tolist() == [2, 2]


@pytest.mark.parametrize("keys", [(), ("body",), ("-mission",)])
def test_the_setting_that_a_warning_suggests_keeps_the_same_parts_without_warning(keys: tuple[str, ...]) -> None:
    warned = Observations(SPACE, "test", keys)
    setting = warned.notice.split("environment.observation_keys = ")[1].split(" does the same")[0]
    followed = Observations(SPACE, "test", tuple(json.loads(setting)))
    assert followed.spec == warned.spec and not followed.notice


@pytest.mark.parametrize(
    ("space", "keys", "message"),
    [
        (SPACE, ("imag",), r"observation_keys = \[\"imag\"\] names 'imag', which the observation of test does not have"
         r": did you mean 'image'\? It has 'body/gear', 'body/name', 'body/speed', 'image', 'mission'$"),
        (SPACE, ("-qqqq",), r"names 'qqqq', which the observation of test does not have: It has 'body/gear'"),
        (SPACE, ("-image", "-body", "-mission"), "leaves nothing of the observation of test: keep one of 'body/gear'"),
        (SPACE["image"], ("image",), "chooses among the keys of a Dict, and test observes a Box: leave the"),
        (SPACE, ("mission", "image"), r"CustomText as space .* 'mission'; .*: remove 'mission' from "),
        (spaces.Dict(a=spaces.Text(3), b=spaces.Text(3)), (), r"nothing but text \('a', 'b'\)"),
        (spaces.Dict(a=SPACE["image"], b=spaces.Sequence(SPACE["image"])), (),
         r"Sequence as space of its observation 'b'; .*: leave it out with environment.observation_keys = \[\"-b\"\]"),
        (spaces.Dict(a=SPACE["image"], b=spaces.Dict(c=spaces.Box(0, 1, (1,), np.uint64))), (),
         r"uint64.* not supported .*: leave it out with environment.observation_keys = \[\"-b/c\"\]"),
        (spaces.Sequence(SPACE["image"]), (), "Sequence as space .*: put gymnasium.wrappers.TransformObservation, or"),
        (spaces.Tuple((SPACE["image"], spaces.Discrete(3))), (), "Tuple .*: put gymnasium.wrappers.FlattenObservation"),
        (spaces.Tuple((SPACE["image"], CustomText())), (), "Tuple .*: put gymnasium.wrappers.TransformObservation"),
    ],
)  # fmt: skip
def test_invalid_keys_and_spaces_are_refused(space: spaces.Space[Any], keys: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        Observations(space, "test", keys)
    assert "\n" not in str(caught.value)


def test_the_advice_for_an_unsupported_part_works() -> None:
    space = spaces.Dict(a=SPACE["image"], b=spaces.Sequence(SPACE["image"]))
    assert Observations(space, "test", ("-b",)).spec == {"a": ArraySpec((2,), "uint8")}
    for bare in (spaces.Tuple((SPACE["image"], spaces.Discrete(3))), spaces.OneOf((SPACE["image"], SPACE["image"]))):
        with pytest.raises(UsageError, match="FlattenObservation"):
            Observations(bare, "test")
        Observations(spaces.flatten_space(bare), "test")


def test_excluded_part_is_not_checked_but_must_exist() -> None:
    observations = Observations(SPACE, "test", ("image",))
    out = {"image": np.zeros((1, 2), np.uint8)}
    observations.write([{**VALUE, "mission": None, "body": 3}], out)
    with pytest.raises(EnvironmentFailed, match="returned an observation without 'mission'"):
        observations.write([{"image": VALUE["image"], "body": 3}], out)


class Talking(gymnasium.Env[Any, Any]):
    """Observes text and numbers."""

    def __init__(self) -> None:
        self.observation_space = SPACE
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return VALUE, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return VALUE, 1.0, False, False, {}


gymnasium.register("SeedTalking-v0", entry_point=Talking)


def test_text_notice_is_set_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        env: Any = create_env(gymnasium_config("SeedTalking-v0"), 5)
        env.close()
    assert not caplog.records, "the caller reports the notice"
    assert env.notice.startswith("gymnasium/SeedTalking-v0 observes text")
    env = create_env(gymnasium_config("SeedTalking-v0", observation_keys=["-mission", "-body/name"]), 1)
    env.close()
    assert not env.notice


def test_the_conformance_checks_report_the_notice() -> None:
    def spaces_finding(**fields: Any) -> Any:
        config = gymnasium_config("SeedTalking-v0", **fields)
        findings = check_environment(lambda envs: create_env(config, envs), seconds=0.01)
        return next(finding for finding in findings if finding.name == "spaces")

    found = spaces_finding()
    assert found.status == "warning" and "'mission' are left out" in found.detail
    assert spaces_finding(observation_keys=["image"]).status == "ok"


def test_minigrid_needs_no_setting() -> None:
    env: Any = create_env(gymnasium_config("minigrid:MiniGrid-Empty-8x8-v0"), 2)
    env.close()
    assert set(env.spec.observation) == {"direction", "image"} and "'mission' is left out" in env.notice
