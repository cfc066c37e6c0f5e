"""Environment specifications: observations and actions, and the memory layout of a step.

Axis conventions: E environments of one stream, N rows of an inference batch, B columns of a training batch, T time. A
*row* holds all arrays that one stream sends for one step, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64  # bytes; a cache line, and required by TensorFlow to read a tensor without a copy

DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool")


@dataclass(frozen=True)
class ArraySpec:
    """One array without its batch axis.

    Attributes:
        shape: dimensions of one element, e.g. (84, 84, 1).
        dtype: NumPy's name of the element type, e.g. "uint8".
        categories: number of categories of each element, in C order: (n,) for a Discrete value of shape (),
            (n1, …, nk) for a MultiDiscrete value of shape (k,); () if the values are not categorical.
        binary: the two values of a uint8 array with only two, e.g. (0, 255) for planes of an image; else (), also for
            "bool" arrays.
    """

    shape: tuple[int, ...]
    dtype: str
    categories: tuple[int, ...] = ()
    binary: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        if any(not isinstance(n, int) or n < 1 for n in self.shape):
            raise ValueError(f"shape {self.shape!r} must hold positive integers")
        if self.categories and (min(self.categories) < 1 or len(self.categories) != math.prod(self.shape)):
            raise ValueError(f"categories {self.categories!r} must be positive, one for each element of {self.shape!r}")
        if self.binary and (
            self.dtype != "uint8" or len(self.binary) != 2 or not 0 <= min(self.binary) <= max(self.binary) <= 255
        ):
            raise ValueError(f"binary {self.binary!r} must be two values of an array of uint8")

    @cached_property
    def nbytes(self) -> int:
        """Bytes of one element."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def to_dict(self) -> dict[str, Any]:
        """A JSON-serialisable form."""
        return {
            "shape": list(self.shape),
            "dtype": self.dtype,
            "categories": list(self.categories),
            "binary": list(self.binary),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ArraySpec:
        """The inverse of `to_dict`; raises ValueError, TypeError or KeyError."""
        return cls(
            tuple(int(n) for n in data["shape"]),
            str(data["dtype"]),
            tuple(int(n) for n in data["categories"]),
            tuple(int(n) for n in data["binary"]),
        )


@dataclass(frozen=True)
class ActionSpec:
    """An action: one category, several categories, or a vector of real numbers.

    A Box action is float32 in units of the space: -1 is the lower bound and 1 the upper one. The environment's adapter
    clips values outside the bounds. Numbers without two bounds are not rescaled.

    Attributes:
        categories: number of choices of each part: (n,) for Discrete, (n1, …, nk) for MultiDiscrete; () for a Box.
        size: d, number of elements of a Box action, flattened in C order; 0 otherwise.
        vector: True for a MultiDiscrete of one part, whose actions have shape (1,), unlike those of a Discrete.
        unbounded: indices of the numbers of a Box action that lack a bound, ascending.
    """

    categories: tuple[int, ...] = ()
    size: int = 0
    vector: bool = False
    unbounded: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if any(not 0 <= index < self.size for index in self.unbounded):
            raise ValueError(f"unbounded {self.unbounded!r} must be indices of an action of size {self.size}")
        if (not self.categories) == (self.size < 1) or (self.categories and min(self.categories) < 1):
            raise ValueError(
                f"an action must have positive categories or a positive size, not {self.categories!r} and {self.size}"
            )

    @cached_property
    def array(self) -> ArraySpec:
        """One action as an array: int32 of shape () or (k,), or float32 of shape (d,)."""
        if self.size:
            return ArraySpec((self.size,), "float32")
        scalar = len(self.categories) == 1 and not self.vector
        return ArraySpec(() if scalar else (len(self.categories),), "int32", self.categories)

    def sample(self, rng: np.random.Generator, *shape: int) -> npt.NDArray[Any]:
        """Random actions [*shape, ...], uniform over all categories, or over a Box's bounds."""
        array = self.array
        if self.size:
            return rng.uniform(-1.0, 1.0, (*shape, *array.shape)).astype(array.dtype)
        categories = np.array(self.categories).reshape(array.shape)
        return rng.integers(0, categories, (*shape, *array.shape)).astype(array.dtype)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-serialisable form."""
        return {
            "categories": list(self.categories),
            "size": self.size,
            "vector": self.vector,
            "unbounded": list(self.unbounded),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ActionSpec:
        """The inverse of `to_dict`; raises ValueError, TypeError or KeyError."""
        return cls(
            tuple(int(n) for n in data["categories"]),
            int(data["size"]),
            bool(data["vector"]),
            tuple(int(n) for n in data["unbounded"]),
        )


# One array, or arrays by name (a Dict observation, nested ones flattened to "outer/inner"), sorted by name.
ObservationSpec = ArraySpec | Mapping[str, ArraySpec]


def map_arrays(function: Callable[..., Any], observation: Any, *others: Any) -> Any:
    """Apply `function` to the arrays of observations with the same structure: a single array, or arrays by name."""
    if isinstance(observation, Mapping):
        return {name: function(part, *(other[name] for other in others)) for name, part in observation.items()}
    return function(observation, *others)


@dataclass(frozen=True)
class EnvSpec:
    """The specification of an environment from which an agent is built.

    Attributes:
        name: family and id, e.g. "atari/pong", "gymnasium/CartPole-v1".
        observation: one observation: an array, or arrays by name, sorted.
        action: one action.
        frames_per_step: simulator frames per environment step (Atari: 4).
    """

    name: str
    observation: ObservationSpec
    action: ActionSpec
    frames_per_step: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.observation, Mapping):
            if not self.observation:
                raise ValueError("an observation must hold at least one array")
            object.__setattr__(self, "observation", dict(sorted(self.observation.items())))

    @property
    def arrays(self) -> dict[str, ArraySpec]:
        """The arrays of an observation by name; a single one is called "observation"."""
        return dict(self.observation) if isinstance(self.observation, Mapping) else {"observation": self.observation}

    @property
    def observation_bytes(self) -> int:
        """Bytes of one observation."""
        return sum(array.nbytes for array in self.arrays.values())

    def to_dict(self) -> dict[str, Any]:
        """A JSON-serialisable form."""
        single = not isinstance(self.observation, Mapping)
        arrays = {name: array.to_dict() for name, array in self.arrays.items()}
        return {
            "name": self.name,
            **({"observation": arrays["observation"]} if single else {"observations": arrays}),
            "action": self.action.to_dict(),
            "frames_per_step": self.frames_per_step,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EnvSpec:
        """The inverse of `to_dict`; raises ValueError for any other data."""
        try:
            observation: ObservationSpec
            if "observations" in data:
                observation = {str(k): ArraySpec.from_dict(v) for k, v in data["observations"].items()}
            else:
                observation = ArraySpec.from_dict(data["observation"])
            action = ActionSpec.from_dict(data["action"])
            spec = cls(str(data["name"]), observation, action, int(data["frames_per_step"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not an environment specification: {error!r}") from error
        if spec.frames_per_step < 1:
            raise ValueError("frames_per_step must be positive")
        return spec

    def difference(self, other: EnvSpec) -> str | None:
        """The first field in which `other` differs, with both values, or None if they are equal."""
        for field in ("name", "observation", "action", "frames_per_step"):
            mine, theirs = getattr(self, field), getattr(other, field)
            if mine != theirs:
                return f"{field} is {theirs} where {mine} is expected"
        return None


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Rows:
    """The arrays of a stream's steps: views into one or several rows.

    Attributes:
        observation: [..., E, ...] in the spec's dtype; by name if the spec has names.
        reward: [..., E] float32, raw (unclipped); 0 on the first record of an episode.
        terminated: [..., E] uint8, 0 or 1: the episode reached a terminal state.
        truncated: [..., E] uint8, 0 or 1: the episode was cut off, e.g. by a time limit.
    """

    observation: Any
    reward: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.uint8]
    truncated: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class RowLayout:
    """Memory layout of a stream's row; offsets are multiples of 64 bytes.

    The arrays of the observation, sorted by name, come first, then reward, terminated and truncated. Both sides compute
    the layout from the same specification: step messages carry no lengths, shapes or types.

    Attributes:
        spec: the environment.
        num_envs: E.
    """

    spec: EnvSpec
    num_envs: int

    @property
    def offsets(self) -> tuple[int, ...]:
        """Byte offsets of the observation's arrays, of reward, terminated and truncated, and the end of the row."""
        offsets = [0]
        for nbytes in [*(array.nbytes for array in self.spec.arrays.values()), 4, 1, 1]:
            offsets.append(offsets[-1] + _aligned(nbytes * self.num_envs))
        return tuple(offsets)

    @property
    def nbytes(self) -> int:
        """Bytes of one row, padding included."""
        return self.offsets[-1]

    def views(self, rows: npt.NDArray[np.uint8]) -> Rows:
        """View rows [..., nbytes] as arrays [..., E, ...] that share their memory.

        Args:
            rows: uint8 array whose last axis is `nbytes` long and contiguous.
        """
        if rows.dtype != np.uint8 or rows.shape[-1] != self.nbytes or rows.strides[-1] != 1:
            raise ValueError(f"rows must be contiguous uint8 [..., {self.nbytes}], not {rows.dtype} {rows.shape}")
        scalars = (ArraySpec((), "float32"), ArraySpec((), "uint8"), ArraySpec((), "uint8"))
        views = []
        for offset, array in zip(self.offsets, (*self.spec.arrays.values(), *scalars), strict=False):
            part = rows[..., offset : offset + array.nbytes * self.num_envs].view(array.dtype)
            if array.shape:
                # Splitting the last (contiguous) axis never copies, regardless of the other axes' strides.
                part = part.reshape(*rows.shape[:-1], self.num_envs, *array.shape)
            views.append(part)
        single = not isinstance(self.spec.observation, Mapping)
        observation = views[0] if single else dict(zip(self.spec.arrays, views, strict=False))
        return Rows(observation, *views[-3:])


def split_envs(envs: int, streams: int, evaluation: int = 0) -> list[int]:
    """Spread an actor's environments over its streams as evenly as possible, the larger ones first.

    The last `evaluation` environments, fewer than `envs`, form an additional stream at the end.
    """
    if not 0 <= evaluation < envs:
        raise ValueError(f"{evaluation} of {envs} environments cannot evaluate: at least one must train")
    training = envs - evaluation
    streams = min(streams, training)
    split = [training // streams + (i < training % streams) for i in range(streams)]
    return [*split, evaluation] if evaluation else split


def aligned_empty(nbytes: int) -> npt.NDArray[np.uint8]:
    """An uninitialised uint8 array of `nbytes`, aligned to 64 bytes."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]
