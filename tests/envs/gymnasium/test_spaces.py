"""Conversion of Gymnasium's spaces into arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gymnasium import spaces
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from seedcli.envs.gymnasium.spaces import Actions, Observations
from seedcli.envs.playing import every_action
from seedcli.errors import EnvironmentFailed, UsageError
from seedcli.net.messages import parse_spec
from seedcli.specs import ActionSpec, ArraySpec, EnvSpec, RowLayout, Rows

E = 3
SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)
INTEGERS = ("uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "bool")
FLOATS = ("float16", "float32", "float64")


@st.composite
def boxes(draw: st.DrawFn, dtypes: tuple[str, ...] = INTEGERS + FLOATS) -> spaces.Box:
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    if dtype.kind == "f":
        low = draw(st.sampled_from([-np.inf, -3.0, 0.0]))
        high = draw(st.sampled_from([np.inf, 0.5, 60.0]))
    elif dtype.kind == "b":
        low, high = 0, 1
    else:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return spaces.Box(low, high, draw(SHAPES), dtype.type)


@st.composite
def discrete(draw: st.DrawFn) -> spaces.Space[Any]:
    if draw(st.booleans()):
        return spaces.Discrete(draw(st.integers(1, 7)), start=draw(st.integers(-5, 5)))
    counts = np.array(draw(st.lists(st.integers(1, 7), min_size=1, max_size=6)))
    if len(counts) % 2 == 0 and draw(st.booleans()):
        counts = counts.reshape(2, -1)
    return spaces.MultiDiscrete(counts, start=draw(st.integers(-5, 5)) + np.arange(counts.size).reshape(counts.shape))


LEAVES = st.one_of(boxes(), discrete(), SHAPES.filter(bool).map(spaces.MultiBinary))
NAMES = st.text("abcß ", min_size=1, max_size=3)
ANY = st.recursive(LEAVES, lambda parts: st.dictionaries(NAMES, parts, min_size=1, max_size=3).map(spaces.Dict))


def row(observations: Observations, envs: int = E) -> Rows:
    layout = RowLayout(EnvSpec("test", observations.spec, ActionSpec((2,))), envs)
    return layout.views(np.full(layout.nbytes, 0xA5, np.uint8))


def leaves(space: spaces.Space[Any], value: Any, path: tuple[str, ...] = ()) -> dict[str, tuple[Any, Any]]:
    if isinstance(space, spaces.Dict):
        return {k: v for n, part in space.items() for k, v in leaves(part, value[n], (*path, n)).items()}
    return {"/".join(path): (space, value)}


@settings(max_examples=200)
@given(ANY, st.integers(0, 2**31 - 1))
def test_any_sample_of_a_space_round_trips(space: spaces.Space[Any], seed: int) -> None:
    space.seed(seed)
    observations = Observations(space, "test")
    values = [space.sample() for _ in range(E)]
    out = row(observations).observation
    observations.write(values, out)
    arrays = out if isinstance(space, spaces.Dict) else {"": out}
    assert list(arrays) == sorted(leaves(space, values[0]))
    for env, value in enumerate(values):
        for name, (part, expected) in leaves(space, value).items():
            start = getattr(part, "start", 0)
            written = arrays[name][env]
            np.testing.assert_array_equal(written, np.asarray(expected - start).astype(written.dtype))
            spec = observations.spec[name] if isinstance(observations.spec, Mapping) else observations.spec
            assert written.dtype == spec.dtype and written.shape == spec.shape
            if spec.categories:
                assert (written >= 0).all() and (written.reshape(-1) < spec.categories).all()
            elif spec.dtype != "bool":
                np.testing.assert_array_equal(written.astype(np.float64), np.asarray(expected, written.dtype))


def test_specifications_of_spaces() -> None:
    space = spaces.Dict(
        b=spaces.Discrete(4, start=2),
        a=spaces.Dict(deep=spaces.MultiDiscrete([[2, 3], [4, 5]]), flags=spaces.MultiBinary([2, 2])),
        c=spaces.Box(0, 1, (), np.float64),
    )
    assert Observations(space, "test").spec == {
        "a/deep": ArraySpec((2, 2), "int32", (2, 3, 4, 5)),
        "a/flags": ArraySpec((2, 2), "bool"),
        "b": ArraySpec((), "int32", (4,)),
        "c": ArraySpec((), "float32"),
    }
    assert Observations(spaces.Dict(only=spaces.Discrete(2)), "test").spec == {"only": ArraySpec((), "int32", (2,))}
    assert Actions(spaces.MultiDiscrete([[2, 3]]), "test").spec == ActionSpec((2, 3))
    assert Actions(spaces.MultiDiscrete([4]), "test").spec == ActionSpec((4,), vector=True)
    assert Actions(spaces.Box(-1, 1, (2, 3)), "test").spec == ActionSpec(size=6)
    assert Actions(spaces.Box(-1, 1, ()), "test").spec == ActionSpec(size=1)
    half = spaces.Box(np.array([-1.0, -np.inf, 0.0, -2.0]), np.array([1.0, 1.0, np.inf, 2.0]), dtype=np.float64)
    assert Actions(half, "test").spec == ActionSpec(size=4, unbounded=(1, 2))


SPACE = spaces.Dict(
    inner=spaces.Dict(speed=spaces.Box(-1, 1, (2,), np.float64), cell=spaces.Discrete(3, start=-1)),
    flags=spaces.MultiBinary(2),
    near=spaces.Box(-128, 127, (1,), np.int8),
    frame=spaces.Box(0, 255, (1,), np.uint8),
)


def good() -> dict[str, Any]:
    return {
        "inner": {"speed": np.zeros(2), "cell": np.int64(0)},
        "flags": np.ones(2, np.int8),
        "near": np.zeros(1, np.int8),
        "frame": np.zeros(1, np.uint8),
    }


def broken(path: str, value: Any) -> dict[str, Any]:
    observation = good()
    *outer, last = path.split("/")
    part = observation["inner"] if outer else observation
    if value is None:
        del part[last]
    else:
        part[last] = value
    return observation


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (broken("inner/speed", None), r"an observation without 'inner/speed', which its observation space has"),
        (broken("flags", None), r"an observation without 'flags'"),
        (broken("inner/more", 1), r"an observation with 'inner/more', which its observation space does not have"),
        (broken("inner", np.zeros(2)), r"the observation 'inner' as ndarray where its observation space says Dict"),
        (np.zeros(2), r"the observation as ndarray where its observation space says Dict"),
        (broken("inner/speed", np.zeros(3)), r"the observation 'inner/speed' of shape \(3,\) where .* says \(2,\)"),
        (broken("inner/speed", [[1], [2, 3]]), r"the observation 'inner/speed' as list of parts of different lengths"),
        (
            broken("inner/speed", np.array(["a", "b"])),
            r"the observation 'inner/speed' of type <U1 where .* says float64",
        ),
        (
            broken("inner/speed", np.array([0, np.nan])),
            r"the observation 'inner/speed' nan, which is not a finite float32",
        ),
        (broken("inner/cell", 2), r"the observation 'inner/cell' 2, which is not one of the categories -1 to 1"),
        (broken("inner/cell", 0.5), r"the observation 'inner/cell' of type float64 where .* says int64"),
        (broken("flags", np.array([0, 2], np.int8)), r"the observation 'flags' of type int8 where .* says"),
        (broken("near", np.array([200])), r"the observation 'near' of type int64 where .* says int8"),
        (broken("frame", np.array([0.5])), r"the observation 'frame' of type float64 where .* says uint8"),
    ],
)
@pytest.mark.parametrize("alone", [False, True])
def test_observation_outside_the_space_is_named(observation: Any, message: str, alone: bool) -> None:
    observations = Observations(SPACE, "test")
    values = [observation] if alone else [good(), observation, good()]
    out = row(observations, len(values)).observation
    with pytest.raises(
        EnvironmentFailed, match=f"environment {0 if alone else 1} of test returned {message}"
    ) as caught:
        observations.write(values, out)
    assert "\n" not in str(caught.value)
    observations.write([good() for _ in values], out)


def test_wider_integers_are_accepted_if_their_values_fit() -> None:
    observations = Observations(SPACE, "test")
    out = row(observations, 1).observation
    observations.write([broken("near", np.array([-128]))], out)
    assert out["near"].tolist() == [[-128]]


@settings(max_examples=200)
@given(discrete(), st.integers(0, 2**31))
def test_actions_are_shifted_to_the_categories_of_the_space(space: spaces.Space[Any], seed: int) -> None:
    actions = Actions(space, "test")
    for chosen in [*every_action(actions.spec), *actions.spec.sample(np.random.default_rng(seed), 5)]:
        (native,) = actions.read(chosen[None], 1)
        assert space.contains(native)
        np.testing.assert_array_equal(native.reshape(-1) - np.reshape(space.start, -1), chosen.reshape(-1))


BOUNDS = st.floats(-(2.0**90), 2.0**90, allow_nan=False, width=32)


@settings(max_examples=200)
@given(BOUNDS, BOUNDS, st.sampled_from(FLOATS[1:]), st.floats(-4, 4, width=32))
def test_actions_cover_a_box_from_bound_to_bound(one: float, other: float, dtype: str, action: float) -> None:
    low, high = min(one, other), max(one, other)
    assume(high > low)
    space = spaces.Box(low, high, (2, 1), np.dtype(dtype).type)
    actions = Actions(space, "test")
    given_actions = np.array([[-1, 1], [action, -action]], np.float32)
    native = actions.read(given_actions, 2)
    assert native.dtype == dtype and native.shape == (2, 2, 1)
    assert all(space.contains(each) for each in native)
    # Near 0 the spacing of subnormal numbers exceeds any relative tolerance.
    tolerance = max(1e-6 * max(abs(low), abs(high)), float(np.finfo(dtype).smallest_subnormal))
    np.testing.assert_allclose(native[0].reshape(-1), [low, high], atol=tolerance)
    expected = low + (np.clip(action, -1, 1) + 1) / 2 * (high - low)
    np.testing.assert_allclose(native[1, 0, 0], expected, atol=tolerance)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-np.inf, np.inf, [-5.0, 0.5, 5.0]),
        (-np.inf, 2.0, [-5.0, 0.5, 2.0]),
        (-2.0, np.inf, [-2.0, 0.5, 5.0]),
        (-np.finfo(np.float32).max, np.finfo(np.float32).max, [-5.0, 0.5, 5.0]),
        (0.0, 4.0, [0.0, 3.0, 4.0]),
    ],
)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_an_action_without_two_bounds_is_not_scaled(low: float, high: float, expected: list[float]) -> None:
    actions = Actions(spaces.Box(low, high, (1,), np.float32), "test")
    given_actions: npt.NDArray[np.float32] = np.array([[-5], [0.5], [5]], np.float32)
    assert actions.read(given_actions, 3)[:, 0].tolist() == expected


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_bounds_whose_distance_overflows() -> None:
    most = np.finfo(np.float64).max / 1.5
    actions = Actions(spaces.Box(-3e38, 3e38, (1,), np.float32), "test")
    assert actions.read(np.array([[1]], np.float32), 1)[0, 0] == np.float32(3e38)
    # A bound beyond the range of float32 counts as none.
    assert Actions(spaces.Box(-most, most, (1,), np.float64), "test").read(np.ones((1, 1), np.float32), 1)[0, 0] == 1


NAME = "n" * 100
FULL = spaces.Dict(
    {
        **{f"{n}": spaces.Discrete(2) for n in range(61)},
        NAME: spaces.Dict({"n" * 27: spaces.Discrete(2)}),
        "categories": spaces.Discrete(2**20),
        "parts": spaces.MultiDiscrete([256] * 4096),
    }
)


@pytest.mark.parametrize(
    "action",
    [spaces.Discrete(2**20), spaces.MultiDiscrete([256] * 4096), spaces.Box(-1, 1, (64, 64))],
    ids=["categories", "parts", "numbers"],
)
def test_learner_accepts_the_largest_spaces(action: spaces.Space[Any]) -> None:
    spec = EnvSpec("test", Observations(FULL, "test").spec, Actions(action, "test").spec)
    message = {**spec.to_dict(), "codecs": dict.fromkeys(spec.arrays, "raw")}
    assert parse_spec(message, 1).spec == spec


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(-1, 1, (0,)), "a Box of 0 numbers as action space"),
        (spaces.Box(-1, 1, (4097,)), "a Box of 4097 numbers as action space; there must be 1 to 4096"),
        (spaces.MultiDiscrete([]), "an action of 0 parts"),
        (spaces.MultiDiscrete([1] * 4097), "an action of 4097 parts; there must be 1 to 4096"),
        (spaces.Discrete(2**20 + 1), "an action of 1048577 categories in all, which is more than the limit of 1048576"),
        (spaces.Discrete(2**31), "an action of 2147483648 categories"),
        (spaces.MultiDiscrete([2**19, 2**19, 1]), "an action of 1048577 categories"),
        (spaces.MultiDiscrete([2, 2**62, 2**62]), "an action of 9223372036854775810 categories"),
    ],
)
def test_empty_and_too_large_action_spaces_are_refused(space: spaces.Space[Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^test has {message}"):
        Actions(space, "test")


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Discrete(2**20 + 1), "has an observation of 1048577 categories in all"),
        (spaces.MultiDiscrete([2**62] * 4), "has an observation of 18446744073709551616 categories"),
        (spaces.MultiDiscrete([1] * 4097), "has an observation of 4097 parts"),
        (spaces.Dict(a=spaces.Discrete(2**31)), "has an observation 'a' of 2147483648 categories"),
        (spaces.Dict({f"{n}": spaces.Discrete(2) for n in range(65)}), "observes 65 arrays, .* limit of 64"),
        (spaces.Dict({"": spaces.Discrete(2)}), "names a part of its observation ''; names must have 1 to 128"),
        (spaces.Dict({"n" * 129: spaces.Discrete(2)}), "names a part of its observation 'n+'; names"),
        (spaces.Dict({NAME: spaces.Dict({"n" * 28: spaces.Discrete(2)})}), "names a part .* printable characters"),
        (spaces.Dict({"a\nb": spaces.Discrete(2)}), r"names a part of its observation 'a\\nb'; names"),
    ],
)
def test_too_large_observation_spaces_are_refused(space: spaces.Space[Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^test {message}"):
        Observations(space, "test")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_numbers_are_refused(value: float) -> None:
    actions = Actions(spaces.Box(-1, 1, (2,)), "test")
    with pytest.raises(EnvironmentFailed, match=rf"action {value} for environment 1 of test is not finite"):
        actions.read(np.array([[0, 0], [0, value]], np.float32), 2)
