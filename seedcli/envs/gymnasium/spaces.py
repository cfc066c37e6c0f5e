"""Conversion of Gymnasium's spaces: observations into rows, agents' actions into the environment's own."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from seedcli.envs.checks import check_actions, check_finite
from seedcli.envs.gymnasium.observation_keys import SETTING, KeyChoice, choose_keys, wrapping
from seedcli.errors import EnvironmentFailed, UsageError
from seedcli.specs import ActionSpec, ArraySpec, ObservationSpec

# Double precision would only double the bytes on the wire; TensorFlow has few kernels for wide unsigned integers.
_SENT_AS = {"float64": "float32", "uint16": "int32", "uint32": "int64"}
# Limits of the learner (see net/handshake.py), checked here before anything is sent.
_MAX_ARRAYS = 64  # of an observation
_MAX_NAME = 128  # characters of an array's name
_MAX_PARTS = 4096  # of an action, and elements of a categorical array
_MAX_CATEGORIES = 2**20  # of an action or an array, all parts together: a network has as many outputs or inputs
# Counts as no bound: old spaces use the largest float32, because infinite bounds were not allowed.
_NO_BOUND = float(np.finfo(np.float32).max)


class Observations:
    """Converts observations of a space to arrays.

    A Box keeps its shape and type, but float64 is sent as float32, uint16 as int32 and uint32 as int64. Discrete and
    MultiDiscrete become int32 that count from 0, MultiBinary bool. A Dict becomes arrays by name; those of an inner
    Dict are named "outer/inner". Omitted keys must be present, but are not checked.

    Args:
        space: of one environment.
        name: of the environment, for errors.
        keys: `environment.observation_keys`, see `observation_keys.choose_keys`.

    Attributes:
        spec: one observation.
        leaves: its arrays by name; a single one is called "".
        notice: one sentence for the user about keys that are left out; "" if there are none.

    Raises:
        UsageError: the space, or a part of it, is not supported, empty or too large, or `keys` do not fit it.
    """

    def __init__(self, space: Space[Any], name: str, keys: Sequence[str] = ()) -> None:
        self._space = space
        self._name = name
        self.leaves: dict[str, Leaf] = {}
        # Keys that lead to a Dict, and how many entries it must have; keys that lead to each leaf.
        self._dicts: dict[tuple[str, ...], int] = {}
        self._paths: dict[str, tuple[str, ...]] = {}
        self._choice: KeyChoice | None = None
        if isinstance(space, Dict):
            self._choice = choose_keys(space, keys, name)
        elif keys:
            raise UsageError(
                f"{SETTING} chooses among the keys of a Dict, and {name} observes a {type(space).__name__}: leave the "
                "setting out"
            )
        self.notice = self._choice.notice(name) if self._choice else ""
        self._add(space, ())
        if not self.leaves:
            raise UsageError(f"{name} has an empty Dict as observation space: an agent needs something to observe")
        if len(self.leaves) > _MAX_ARRAYS:
            raise UsageError(
                f"{name} observes {len(self.leaves)} arrays, which is more than the limit of {_MAX_ARRAYS}: combine "
                "some into one Box"
            )
        self.spec: ObservationSpec
        if isinstance(space, Dict):
            self.spec = {leaf: self.leaves[leaf].spec for leaf in sorted(self.leaves)}
        else:
            self.spec = self.leaves[""].spec

    def _add(self, space: Space[Any], path: tuple[str, ...]) -> None:
        if isinstance(space, Dict):
            for key, part in space.spaces.items():
                self._add(part, (*path, key))
            if any(leaf[: len(path)] == path for leaf in self._paths.values()):
                self._dicts[path] = len(space.spaces)
            return
        leaf = "/".join(path)
        if self._choice and leaf not in self._choice.used:
            return
        if path and not (1 <= len(leaf) <= _MAX_NAME and leaf.isprintable()):
            raise UsageError(
                f"{self._name} names a part of its observation {leaf[:_MAX_NAME]!r}; names must have 1 to {_MAX_NAME} "
                "printable characters, including the names of outer Dicts"
            )
        if leaf in self.leaves:
            raise UsageError(f"{self._name} has two parts of its observation called {leaf!r}; rename one")
        what = f"observation {leaf!r}" if path else "observation"
        remedy = self._choice.remedy(leaf) if self._choice else wrapping(space)
        self.leaves[leaf] = Leaf(space, what, self._name, remedy)
        self._paths[leaf] = path

    @property
    def bounds(self) -> dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        """Lower and upper bounds of the Boxes by name, in the dtype that is sent; a single Box is "observation"."""
        found = {}
        for name, leaf in self.leaves.items():
            if isinstance(leaf.space, Box):
                with np.errstate(over="ignore"):
                    low, high = (bound.astype(leaf.spec.dtype) for bound in (leaf.space.low, leaf.space.high))
                found[name or "observation"] = low, high
        return found

    def write(self, observations: Sequence[Any], out: Any) -> None:
        """Write E environments' observations into `out`, an array [E, ...] or arrays by name.

        Raises:
            EnvironmentFailed: names the first environment whose observation is not in the space, and the difference.
        """
        try:
            for path, entries in self._dicts.items():
                # Keys that are missing are found below.
                if any(len(part) != entries for part in _select(observations, path)):
                    raise ValueError
            for name, leaf in self.leaves.items():
                path = self._paths[name]
                leaf.write(_select(observations, path), out[name] if path else out)
        except EnvironmentFailed:
            raise
        except Exception as error:
            for index, observation in enumerate(observations):
                wrong = self._difference(self._space, observation, ())
                if wrong:
                    raise EnvironmentFailed(f"environment {index} of {self._name} returned {wrong}") from error
            raise EnvironmentFailed(
                f"{self._name} returned observations that cannot be read: {type(error).__name__}: {error}"
            ) from error

    def write_batch(self, observations: Any, out: Any) -> None:
        """The same for observations that are batched: an array [E, ...], or a dict of them for a Dict.

        Raises:
            EnvironmentFailed: they are not in the space.
        """
        try:
            for name, leaf in self.leaves.items():
                path = self._paths[name]
                values = np.asarray(functools.reduce(operator.getitem, path, observations))
                leaf.write_batch(values, out[name] if path else out)
        except EnvironmentFailed:
            raise
        except Exception as error:
            raise EnvironmentFailed(
                f"{self._name} returned observations that its observation space {self._space} does not contain: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _difference(self, space: Space[Any], value: Any, path: tuple[str, ...]) -> str | None:
        if not isinstance(space, Dict):
            leaf = self.leaves.get("/".join(path))
            return leaf.difference(value) if leaf else None
        if path not in self._dicts:
            return None  # left out as a whole
        what = f"the observation {'/'.join(path)!r}" if path else "the observation"
        if not isinstance(value, Mapping):
            return f"{what} as {type(value).__name__} where its observation space says Dict"
        for key in space.spaces:
            if key not in value:
                return f"an observation without {'/'.join((*path, key))!r}, which its observation space has"
        for key in value:
            if key not in space.spaces:
                return f"an observation with {'/'.join((*path, str(key)))!r}, which its observation space does not have"
        differences = (self._difference(part, value[key], (*path, key)) for key, part in space.spaces.items())
        return next((each for each in differences if each), None)


def _select(observations: Sequence[Any], path: tuple[str, ...]) -> Sequence[Any]:
    for key in path:
        observations = [observation[key] for observation in observations]
    return observations


class Leaf:
    """One array of an observation.

    Args:
        space: any space but a Dict.
        what: description of the array, for errors.
        name: the environment, for errors.
        remedy: what to do if its space is not supported, as the end of a sentence.

    Attributes:
        spec: one value as it is sent.
        what: as given.
        dtype: the space's own type.
    """

    def __init__(self, space: Space[Any], what: str, name: str, remedy: str) -> None:
        self.space = space
        self.what = what
        self._name = name
        self._categories: npt.NDArray[np.int64] | None = None
        self._start: npt.NDArray[np.int64] = np.zeros((), np.int64)
        self.dtype = str(space.dtype)
        self.spec = self._make_spec(space, remedy)
        self._kind = np.dtype(self.spec.dtype).kind

    @property
    def start(self) -> list[int]:
        """The first category of each part, in C order; empty if the values are not categorical."""
        parts = len(self.spec.categories)
        first: list[int] = np.broadcast_to(self._start, self.spec.shape or (1,)).reshape(-1).tolist() if parts else []
        return first

    def _make_spec(self, space: Space[Any], remedy: str) -> ArraySpec:
        shape = tuple(int(n) for n in space.shape or ())
        if isinstance(space, (Discrete, MultiDiscrete)):
            self._categories = np.asarray(space.n if isinstance(space, Discrete) else space.nvec, np.int64)
            self._start = np.asarray(space.start, np.int64)
            return ArraySpec(shape, "int32", categories=_categories(space, self.what, self._name))
        if isinstance(space, MultiBinary):
            return ArraySpec(shape, "bool")
        if not isinstance(space, Box):
            raise UsageError(
                f"{self._name} has a {type(space).__name__} as space of its {self.what}; supported are Box, Discrete, "
                f"MultiDiscrete, MultiBinary and Dict: {remedy}"
            )
        dtype = str(space.dtype)
        try:
            return ArraySpec(shape, _SENT_AS.get(dtype, dtype))
        except ValueError as error:
            raise UsageError(
                f"{self._name} has the observation space {space}, which is not supported ({error}): {remedy}"
            ) from error

    def write(self, values: Sequence[Any], out: npt.NDArray[Any]) -> None:
        """Write E values into `out` [E, ...].

        Raises:
            EnvironmentFailed: a number is non-finite in float32.
            Exception: of any type; `difference` describes the error.
        """
        if self._kind == "f":
            with np.errstate(over="ignore"):  # values beyond float32 become infinite
                np.stack(values, out=out, casting="same_kind")
            check_finite(out, self.what, self._name)
            return
        # For scalars np.array has the same result in a fifth of the time.
        self.write_batch(np.stack(values) if self.spec.shape else np.array(values), out)

    def write_batch(self, stacked: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
        """The same for an array [E, ...]."""
        if stacked.shape != out.shape:
            raise ValueError(f"shape {stacked.shape[1:]}")
        if self._kind == "f":
            with np.errstate(over="ignore"):
                np.copyto(out, stacked, casting="same_kind")
            check_finite(out, self.what, self._name)
            return
        if self._categories is not None:
            if stacked.dtype.kind not in "iu":
                raise TypeError(f"type {stacked.dtype}")
            stacked = stacked - self._start
            if ((stacked < 0) | (stacked >= self._categories)).any():
                raise ValueError("a category that does not exist")
        elif stacked.dtype != out.dtype and not _fits(stacked, out.dtype):
            raise TypeError(f"type {stacked.dtype}")
        np.copyto(out, stacked, casting="unsafe")

    def difference(self, value: Any) -> str | None:
        """What is wrong with one value, as the end of "environment 1 gave …"; None if it is valid."""
        says = "where its observation space says"
        try:
            array = np.asarray(value)
        except ValueError:
            return f"the {self.what} as {type(value).__name__} of parts of different lengths {says} {self.spec.shape}"
        if array.shape != self.spec.shape:
            return f"the {self.what} of shape {array.shape} {says} {self.spec.shape}"
        if self._kind == "f":
            return None if array.dtype.kind in "iufb" else f"the {self.what} of type {array.dtype} {says} {self.dtype}"
        if self._categories is not None and array.dtype.kind in "iu":
            outside = (array - self._start < 0) | (array - self._start >= self._categories)
            if outside.any():
                at = tuple(np.argwhere(outside)[0])
                low, count = self._start[at], self._categories[at]
                return f"the {self.what} {array[at]}, which is not one of the categories {low} to {low + count - 1}"
        elif self._categories is not None or not _fits(array, np.dtype(self.spec.dtype)):
            return f"the {self.what} of type {array.dtype} {says} {self.dtype}"
        return None


def _categories(space: Discrete | MultiDiscrete, what: str, name: str) -> tuple[int, ...]:
    """Return the number of categories of each part, in C order.

    Raises:
        UsageError: there are no parts, or too many of them or of their categories.
    """
    counts = [space.n] if isinstance(space, Discrete) else space.nvec.reshape(-1)
    categories = tuple(int(n) for n in counts)  # Python's integers, because a sum of NumPy's may overflow
    if not 1 <= len(categories) <= _MAX_PARTS:
        raise UsageError(f"{name} has an {what} of {len(categories)} parts; there must be 1 to {_MAX_PARTS}")
    if sum(categories) > _MAX_CATEGORIES:
        raise UsageError(
            f"{name} has an {what} of {sum(categories)} categories in all, which is more than the limit of "
            f"{_MAX_CATEGORIES}: split it into smaller parts, or make it a Box"
        )
    return categories


def _fits(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Whether integers or booleans keep their values as `dtype`, an integer type or bool."""
    if values.dtype.kind not in "iub":
        return False
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return int(values.min()) >= low and int(values.max()) <= high


class ActionUnits(NamedTuple):
    """How an agent's action a becomes the environment's: clip(a · scale + offset, low, high), reshaped.

    Attributes:
        scale, offset, low, high: [n] float64, of the n numbers or categories in C order; infinite without a bound.
        shape: of the environment's action.
        dtype: its type.
    """

    scale: npt.NDArray[np.float64]
    offset: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]
    shape: tuple[int, ...]
    dtype: str


class Actions:
    """Converts agents' actions to those of a space.

    A Discrete or MultiDiscrete action counts from 0 in the agent and from the space's start in the environment. For a
    Box, -1 is the lower bound and 1 the upper one; values beyond are clipped. An element without two bounds is not
    scaled, only clipped to the bound it may have.

    Args:
        space: of one environment.
        name: of the environment, for errors.

    Attributes:
        spec: one action.

    Raises:
        UsageError: the space is not supported, empty or too large.
    """

    def __init__(self, space: Space[Any], name: str) -> None:
        self._name = name
        self._shape: tuple[int, ...] = tuple(int(n) for n in space.shape or ())
        self._dtype: np.dtype[Any] = np.dtype(space.dtype)
        if isinstance(space, Discrete):
            self._start = np.asarray(space.start, np.int64)
            self.spec = ActionSpec(_categories(space, "action", name))
        elif isinstance(space, MultiDiscrete):
            self._start = np.asarray(space.start, np.int64)
            categories = _categories(space, "action", name)
            self.spec = ActionSpec(categories, vector=len(categories) == 1)
        elif isinstance(space, Box) and self._dtype.kind == "f":
            size = math.prod(self._shape)
            if not 1 <= size <= _MAX_PARTS:
                raise UsageError(f"{name} has a Box of {size} numbers as action space; there must be 1 to {_MAX_PARTS}")
            low, high = (np.asarray(bound, np.float64).reshape(-1) for bound in (space.low, space.high))
            low, high = np.where(low <= -_NO_BOUND, -np.inf, low), np.where(high >= _NO_BOUND, np.inf, high)
            bounded = np.isfinite(low) & np.isfinite(high)
            self.spec = ActionSpec(size=size, unbounded=tuple(np.flatnonzero(~bounded).tolist()))
            self._low, self._high = low, high
            # Halved first, because the distance of two float64 bounds may overflow.
            above, below = np.where(bounded, high / 2, 0.5), np.where(bounded, low / 2, -0.5)
            self._middle, self._half = above + below, above - below
        elif isinstance(space, Box):
            raise UsageError(
                f"{name} has a Box of {self._dtype} as action space; use floating-point numbers, or MultiDiscrete "
                "for integers"
            )
        else:
            raise UsageError(
                f"{name} has a {type(space).__name__} action space; supported are Discrete, MultiDiscrete and Box"
            )

    @property
    def units(self) -> ActionUnits:
        """The conversion in numbers."""
        shape, dtype = self._shape, str(self._dtype)
        if self.spec.size:
            return ActionUnits(self._half, self._middle, self._low, self._high, shape, dtype)
        start = np.broadcast_to(self._start, shape).reshape(-1).astype(np.float64)
        last = start + np.asarray(self.spec.categories) - 1
        return ActionUnits(np.ones(len(start)), start, start, last, shape, dtype)

    def read(self, actions: npt.NDArray[Any], num_envs: int) -> npt.NDArray[Any]:
        """Convert agents' actions [E, *spec.array.shape] to the environments' [E, *space.shape], in the space's dtype.

        Raises:
            EnvironmentFailed: an action does not match `spec`, or is non-finite.
        """
        check_actions(actions, num_envs, self.spec, self._name)
        if self.spec.size:
            native = np.clip(actions * self._half + self._middle, self._low, self._high)
        else:
            native = actions.reshape(num_envs, *self._shape) + self._start
        reshaped: npt.NDArray[Any] = native.reshape(num_envs, *self._shape).astype(self._dtype)
        return reshaped
