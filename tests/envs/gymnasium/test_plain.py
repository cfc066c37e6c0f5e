"""Observations and actions of plain environments, single or in batches, against the adapter's arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import assume, given, settings

from seedcli.envs.gymnasium.plain import PlainSpaces, spaces_from, spaces_of, unbatched
from seedcli.envs.gymnasium.spaces import Actions, Observations
from seedcli.envs.placement import plain_spaces
from seedcli.envs.registry import create_env
from seedcli.errors import UsageError
from seedcli.specs import DTYPES, ActionSpec, ArraySpec, EnvSpec, map_arrays
from tests.configs import env_config
from tests.envs.gymnasium.test_spaces import ANY, row

CARTPOLE = spaces.Box(-1.0, 1.0, (4,), np.float32)
PARTS = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (2, 3), np.uint8),
        "arm": spaces.Dict({"joints": spaces.Box(-5.0, 5.0, (2,), np.float64), "tool": spaces.Discrete(3, start=-1)}),
        "task": spaces.Text(10),
    }
)
PICTURE = np.zeros((2, 3), np.uint8)


def plain(observation: spaces.Space[Any], action: spaces.Space[Any] | None = None, keys: Any = ()) -> PlainSpaces:
    observations = Observations(observation, "test/env", keys)
    actions = Actions(action or spaces.Discrete(2), "test/env")
    return PlainSpaces(EnvSpec("test/env", observations.spec, actions.spec), observations, actions)


def stacked(values: list[Any]) -> Any:
    """Observations as a vector environment stacks them."""
    if isinstance(values[0], Mapping):
        return {key: stacked([value[key] for value in values]) for key in values[0]}
    return np.stack(values)


@settings(max_examples=60)
@given(ANY)
def test_observations_become_the_arrays_that_the_adapter_sends(space: spaces.Space[Any]) -> None:
    assume(not isinstance(space, spaces.Discrete) or space.n > 0)
    space.seed(3)
    samples = [space.sample() for _ in range(3)]
    observations = Observations(space, "test/env")
    sent = row(observations).observation
    observations.write(samples, sent)
    ours = plain(space)
    arrays, batch = ours.read(stacked(samples))
    assert batch == 3
    map_arrays(np.testing.assert_array_equal, arrays, sent)
    for index, sample in enumerate(samples):
        single, batch = ours.read(sample)
        assert batch is None
        map_arrays(lambda mine, theirs, i=index: np.testing.assert_array_equal(mine, theirs[i : i + 1]), single, sent)
        map_arrays(
            lambda mine, array: mine.dtype == array.dtype or pytest.fail(str(mine.dtype)), single, ours.spec.observation
        )


def test_parts_that_are_left_out_may_be_missing_and_inner_ones_named_in_full() -> None:
    ours = plain(PARTS, keys=("camera", "arm/tool"))
    given_so = {"camera": PICTURE, "arm/tool": 1}
    as_observed = {"camera": PICTURE, "arm": {"tool": 1, "joints": np.zeros(7)}, "task": "lift"}
    for observation in (given_so, as_observed):
        arrays, batch = ours.read(observation)
        assert batch is None and sorted(arrays) == ["arm/tool", "camera"]
        assert arrays["arm/tool"].tolist() == [2]  # counted from 0


WRONG = [
    (CARTPOLE, np.zeros(3), "the observation has shape (3,): it must be of shape (4,) and type float32, or (N, 4) "),
    (CARTPOLE, np.zeros((0, 4)), "the observation has shape (0, 4): it must be of shape (4,)"),
    (CARTPOLE, np.zeros((2, 2, 4)), "the observation has shape (2, 2, 4): it must be of shape (4,)"),
    (CARTPOLE, 0.5, "the observation has shape (): it must be of shape (4,)"),
    (CARTPOLE, [[0.0], [0.0, 1.0]], "the observation is not an array: it must be of shape (4,)"),
    (CARTPOLE, {"position": np.zeros(4)}, "the observation is a dict: it must be of shape (4,)"),
    (CARTPOLE, ["a", "b", "c", "d"], "the policy was given the observation of type <U1 where its observation space"),
    (CARTPOLE, [0.0, np.nan, 0.0, 0.0], "the policy was given the observation with a number that is not a finite"),
    (CARTPOLE, [[0.0] * 4, [1e60] * 4], "row 1 of the batch holds the observation with a number that is not a finite"),
    (spaces.Discrete(3, start=-1), 2, "the observation 2, which is not one of the categories -1 to 1"),
    (spaces.Discrete(3), [0, 5], "row 1 of the batch holds the observation 5, which is not one of the categories 0"),
    (spaces.Discrete(3), 1.0, "the observation of type float64 where its observation space says int64"),
    (PARTS, PICTURE, "the observation is ndarray: it must be a dict of 'arm/joints', 'arm/tool', 'camera'"),
    (PARTS, {"camera": PICTURE, "arm": {"tool": 1}}, "the observation has no 'arm/joints': it must be a dict of"),
    (
        PARTS,
        {"camera": PICTURE + 0.5, "arm": {"tool": 1, "joints": [0.0, 0.0]}},
        "the observation 'camera' of type float64 where its observation space says uint8",
    ),
    (
        PARTS,
        {"camera": [PICTURE] * 2, "arm": {"tool": [1, 1], "joints": [0.0, 0.0]}},
        "the observation 'arm/joints' is for one environment and 'arm/tool' for a batch of 2: all parts must be ",
    ),
]  # fmt: skip


@pytest.mark.parametrize("space, observation, sentence", WRONG)
def test_a_wrong_observation_is_refused_by_name(space: Any, observation: Any, sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        plain(space, keys=("-task",) if space is PARTS else ()).read(observation)
    assert sentence in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=5),
        spaces.MultiDiscrete([2, 3], start=[1, -1]),
        spaces.MultiDiscrete([4]),
        spaces.Box(-2.0, 6.0, (2, 2), np.float32),
        spaces.Box(0.0, np.inf, (1,), np.float64),
        spaces.Box(-1.0, 3.0, (), np.float32),
    ],
)
def test_actions_are_those_of_the_space(space: Any) -> None:
    actions = Actions(space, "test/env")
    chosen = actions.spec.sample(np.random.default_rng(1), 5)
    ours = plain(CARTPOLE, space)
    batch = ours.write(chosen)
    assert batch.shape == (5, *space.shape) and batch.dtype == space.dtype
    np.testing.assert_array_equal(batch, actions.read(chosen, 5))
    for index in range(5):
        one = unbatched(ours.write(chosen[index : index + 1]))
        assert space.contains(one) and type(one) is (int if isinstance(space, spaces.Discrete) else np.ndarray)
        np.testing.assert_array_equal(one, batch[index])


@pytest.mark.parametrize("dtype", DTYPES)
def test_families_without_plain_environments_take_the_arrays_of_their_specification(dtype: str) -> None:
    observation = {"a/b": ArraySpec((2, 3), dtype), "c": ArraySpec((), "int32", (4,)), "d": ArraySpec((2,), dtype)}
    ours = spaces_of(EnvSpec("test/env", observation, ActionSpec(size=3, unbounded=(1,))))
    value = np.arange(6).reshape(2, 3).astype(dtype)
    arrays, batch = ours.read({"a/b": value, "c": 3, "d": value[0, :2]})
    assert batch is None and arrays["a/b"].dtype == dtype and arrays["c"].dtype == np.int32
    np.testing.assert_array_equal(arrays["a/b"][0], value)
    actions = np.array([[0.5, 70.0, -4.0]], np.float32)
    np.testing.assert_array_equal(unbatched(ours.write(actions)), [0.5, 70.0, -1.0])


@pytest.mark.parametrize("action", [ActionSpec((6,)), ActionSpec((6,), vector=True), ActionSpec((2, 3))])
def test_families_without_plain_environments_take_the_actions_of_their_specification(action: ActionSpec) -> None:
    ours = spaces_of(EnvSpec("test/env", ArraySpec((84, 84, 1), "uint8"), action))
    chosen = action.sample(np.random.default_rng(2), 4)
    np.testing.assert_array_equal(ours.write(chosen), chosen)
    one = unbatched(ours.write(chosen[:1]))
    assert type(one) is (np.ndarray if action.array.shape else int)


def test_spaces_are_those_of_the_configured_environment() -> None:
    config = env_config(family="gymnasium", id="Pendulum-v1")
    env = create_env(config, 1)
    ours = plain_spaces(config, env.spec)
    assert ours.spec == env.spec
    env.close()
    pendulum = gymnasium.make("Pendulum-v1")
    _, batch = ours.read(pendulum.reset(seed=1)[0])
    assert batch is None
    np.testing.assert_array_equal(unbatched(ours.write(np.array([[0.5]], np.float32))), np.array([1.0], np.float32))


@settings(max_examples=60)
@given(ANY)
def test_spaces_are_made_again_from_what_is_kept_of_them(space: spaces.Space[Any]) -> None:
    assume(not isinstance(space, spaces.Discrete) or space.n > 0)
    space.seed(3)
    values = stacked([space.sample() for _ in range(3)])
    ours = plain(space)
    again = spaces_from(ours.spec, json.loads(json.dumps(ours.forms)))
    assert again.forms == ours.forms
    map_arrays(np.testing.assert_array_equal, again.read(values)[0], ours.read(values)[0])


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=-1),
        spaces.MultiDiscrete([2, 3], start=[5, -2]),
        spaces.MultiDiscrete([4]),
        spaces.Box(np.array([[-2.0, 0.0]]), np.array([[6.0, np.inf]]), dtype=np.float32),
        spaces.Box(0.0, 500.0, (2, 2), np.float64),
    ],
)
def test_actions_are_made_again_and_inverted(space: spaces.Space[Any]) -> None:
    ours = plain(CARTPOLE, space)
    again = spaces_from(ours.spec, json.loads(json.dumps(ours.forms)))
    chosen = ours.spec.action.sample(np.random.default_rng(1), 20)
    native = again.write(chosen)
    np.testing.assert_array_equal(native, ours.write(chosen))
    assert native.dtype == space.dtype and all(space.contains(each) for each in native)
    inverted = again.from_native(native)
    assert inverted.dtype == chosen.dtype and inverted.shape == chosen.shape
    np.testing.assert_allclose(again.write(inverted), native, rtol=1e-6)


def test_forms_of_another_specification_are_refused() -> None:
    ours, other = plain(CARTPOLE), plain(PARTS)
    for spec, forms in ((ours.spec, other.forms), (other.spec, ours.forms)):
        with pytest.raises((KeyError, ValueError)):
            spaces_from(spec, forms)
