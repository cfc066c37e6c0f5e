"""The vocabulary every part shares: what an observation is, what an environment is, how a step lies in memory.

Axis conventions: E environments of one stream, N rows of an inference batch, B columns of a training
batch, T time. A *row* is what one stream sends for one step: all of its arrays, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64  # bytes; a cache line, and what TensorFlow wants for tensors it reads without a copy

DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool")


@dataclass(frozen=True)
class ArraySpec:
    """One array without its batch axis.

    Attributes:
        shape: dimensions of one element, e.g. (84, 84, 1).
        dtype: NumPy's name of the element type, e.g. "uint8".
        categories: for categorical values, how many there are of each element, in C order: (n,) for a Discrete value
            of shape (), (n1, …, nk) for a MultiDiscrete one of shape (k,); () for anything else.
        binary: the two values that elements take, e.g. (0, 255) for planes of a uint8 image; () for anything else.
            "bool" arrays are binary without saying so.
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
        """Read back `to_dict`'s form; raises ValueError, TypeError, KeyError."""
        return cls(
            tuple(int(n) for n in data["shape"]),
            str(data["dtype"]),
            tuple(int(n) for n in data["categories"]),
            tuple(int(n) for n in data["binary"]),
        )


@dataclass(frozen=True)
class ActionSpec:
    """What an agent may choose: one category, several categories, or a vector of real numbers.

    Attributes:
        categories: choices of each part: (n,) for Discrete, (n1, …, nk) for MultiDiscrete; () for a Box.
        size: numbers of a Box action, d; 0 for anything else. The environment's array is flattened in C order.
        vector: a MultiDiscrete of one part, which is [1] where a Discrete action is a scalar.
        unbounded: which numbers of a Box action lack a bound, ascending.

    A Box action is float32 in units of the space: -1 stands for its lower bound, 1 for its upper one, and what lies
    beyond is clipped by the environment's adapter. A part of the space without bounds is taken as it is.
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
                f"an action is categories or a size, each positive, not {self.categories!r} and {self.size}"
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
        """Read back `to_dict`'s form; raises ValueError, TypeError, KeyError."""
        return cls(
            tuple(int(n) for n in data["categories"]),
            int(data["size"]),
            bool(data["vector"]),
            tuple(int(n) for n in data["unbounded"]),
        )


# One array, or arrays by name (a Dict observation, nested ones flattened to "outer/inner"), in the order of the names.
ObservationSpec = ArraySpec | Mapping[str, ArraySpec]


def map_arrays(function: Callable[..., Any], observation: Any, *others: Any) -> Any:
    """Apply `function` to every array of observations of one structure: to the one array, or name by name."""
    if isinstance(observation, Mapping):
        return {name: function(part, *(other[name] for other in others)) for name, part in observation.items()}
    return function(observation, *others)


@dataclass(frozen=True)
class EnvSpec:
    """What an agent must know of an environment to be built for it.

    Attributes:
        name: family and id, e.g. "atari/pong", "gymnasium/CartPole-v1".
        observation: one observation: an array, or arrays by name, sorted.
        action: one action.
        frames_per_step: simulator frames one environment step stands for (Atari: 4).
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
        """Read back `to_dict`'s form; raises ValueError where it is something else."""
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
        """Name the first field in which `other` differs, with both values, or None where they agree."""
        for field in ("name", "observation", "action", "frames_per_step"):
            mine, theirs = getattr(self, field), getattr(other, field)
            if mine != theirs:
                return f"{field} is {theirs} where {mine} is expected"
        return None


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Rows:
    """What a stream reports of its steps: views into one row, or into several.

    Attributes:
        observation: [..., E, ...] in the spec's dtype; by name where the spec has names.
        reward: [..., E] float32, raw (unclipped); 0 on the first record of an episode.
        terminated: [..., E] uint8, 0 or 1: the episode ended in the environment's own terms.
        truncated: [..., E] uint8, 0 or 1: it was cut off from outside (a time limit).
    """

    observation: Any
    reward: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.uint8]
    truncated: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class RowLayout:
    """Where each array of a stream's row lies: offsets are multiples of 64 bytes, the order is fixed.

    First the arrays of the observation in the order of their names, then reward, terminated and truncated. Both sides
    compute it from the same specification, so that nothing about lengths, shapes or types is ever taken from a step
    message.

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
                # Splitting the last (contiguous) axis never copies, whatever the strides in front.
                part = part.reshape(*rows.shape[:-1], self.num_envs, *array.shape)
            views.append(part)
        single = not isinstance(self.spec.observation, Mapping)
        observation = views[0] if single else dict(zip(self.spec.arrays, views, strict=False))
        return Rows(observation, *views[-3:])


def split_envs(envs: int, streams: int, evaluation: int = 0) -> list[int]:
    """Spread an actor's environments over its streams as evenly as possible, the larger ones first.

    The last `evaluation` environments, fewer than `envs`, are no part of that: they form one more stream at the end.
    """
    if not 0 <= evaluation < envs:
        raise ValueError(f"{evaluation} of {envs} environments cannot evaluate: one at least must train")
    training = envs - evaluation
    streams = min(streams, training)
    split = [training // streams + (i < training % streams) for i in range(streams)]
    return [*split, evaluation] if evaluation else split


def aligned_empty(nbytes: int) -> npt.NDArray[np.uint8]:
    """An uninitialised uint8 array of `nbytes` whose first byte lies on a 64-byte boundary."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]
