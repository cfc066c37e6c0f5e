"""Specifications: validation, JSON, and the layout of a row's arrays."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedcli.specs import ALIGNMENT, ActionSpec, ArraySpec, EnvSpec, RowLayout, aligned_empty, map_arrays

SHAPES = st.lists(st.integers(1, 5), max_size=3).map(tuple)
NUMBERS = st.builds(ArraySpec, SHAPES, st.sampled_from(["uint8", "int32", "int64", "float16", "float32", "bool"]))
CATEGORIES = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple)
MULTI_DISCRETE = CATEGORIES.map(lambda n: ArraySpec((len(n),), "int32", n))
ARRAYS = NUMBERS | MULTI_DISCRETE | st.just(ArraySpec((4, 3), "uint8", (), (0, 255)))
OBSERVATIONS = ARRAYS | st.dictionaries(st.text("abc/", min_size=1, max_size=4), ARRAYS, min_size=1, max_size=4)
ACTIONS = (
    CATEGORIES.map(ActionSpec)
    | st.integers(1, 9).map(lambda d: ActionSpec(size=d))
    | st.just(ActionSpec((3,), 0, True))
)
SPECS = st.builds(EnvSpec, st.just("test/any"), OBSERVATIONS, ACTIONS, st.integers(1, 4))


@given(SPECS)
def test_a_specification_round_trips_through_json(spec):
    again = EnvSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec and spec.difference(again) is None


@given(SPECS, st.integers(1, 5), st.integers(1, 3))
def test_arrays_of_a_row_do_not_overlap(spec, envs, records):
    layout = RowLayout(spec, envs)
    rows = aligned_empty(records * layout.nbytes).reshape(records, layout.nbytes)
    rows[...] = 0
    steps = layout.views(rows)
    arrays = [steps.reward, steps.terminated, steps.truncated]
    map_arrays(arrays.append, steps.observation)
    for array in arrays:
        assert array.shape[:2] == (records, envs) and array.base is not None
        array.view(np.uint8)[...] += 1
    assert rows.max() == 1, "two arrays share a byte"
    assert np.count_nonzero(rows) == sum(array.nbytes for array in arrays)
    assert all(offset % ALIGNMENT == 0 for offset in layout.offsets) and layout.offsets[-1] == layout.nbytes


def test_names_are_sorted():
    one, two = ArraySpec((2,), "float32"), ArraySpec((3,), "uint8")
    spec = EnvSpec("test/dict", {"b": two, "a": one}, ActionSpec((2,)))
    assert list(spec.arrays) == ["a", "b"] and spec == EnvSpec("test/dict", {"a": one, "b": two}, ActionSpec((2,)))
    assert spec.observation_bytes == 11


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ArraySpec((2,), "int32", (3,)),
        lambda: ArraySpec((), "int32", (0,)),
        lambda: ArraySpec((2,), "float32", (), (0, 1)),
        lambda: ArraySpec((2,), "uint8", (), (0, 256)),
        lambda: ArraySpec((0,), "uint8"),
        lambda: ArraySpec((), "complex64"),
        lambda: ActionSpec(),
        lambda: ActionSpec((2,), 1),
        lambda: ActionSpec((0,)),
        lambda: EnvSpec("test/none", {}, ActionSpec((2,))),
    ],
)
def test_contradictory_specifications_are_refused(wrong):
    with pytest.raises(ValueError):
        wrong()


@given(ACTIONS, st.integers(0, 2**31))
def test_random_actions_satisfy_the_specification(action, seed):
    drawn = action.sample(np.random.default_rng(seed), 50, 3)
    assert drawn.shape == (50, 3, *action.array.shape) and drawn.dtype == action.array.dtype
    if action.size:
        assert np.abs(drawn).max() <= 1
    else:
        categories = np.array(action.categories).reshape(action.array.shape)
        assert drawn.min() >= 0 and (drawn < categories).all()


def test_a_multi_discrete_action_of_one_part_is_a_vector():
    assert ActionSpec((3,)).array == ArraySpec((), "int32", (3,))
    assert ActionSpec((3,), vector=True).array == ArraySpec((1,), "int32", (3,))
    assert ActionSpec((3, 4)).array == ArraySpec((2,), "int32", (3, 4))
    assert ActionSpec(size=6).array == ArraySpec((6,), "float32")
    with pytest.raises(ValueError, match="indices of an action of size 2"):
        ActionSpec(size=2, unbounded=(2,))
