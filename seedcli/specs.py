"""The vocabulary every part shares: what an observation is, what an environment is, how a step lies in memory.

Axis conventions: E environments of one stream, N rows of an inference batch, B columns of a training
batch, T time. A *row* is what one stream sends for one step: all of its arrays, one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64  # bytes; a cache line, and what TensorFlow wants for tensors it reads without a copy

_DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool")


@dataclass(frozen=True)
class ArraySpec:
    """One array without its batch axis.

    Attributes:
        shape: dimensions of one element, e.g. (84, 84, 1).
        dtype: NumPy's name of the element type, e.g. "uint8".
        categories: for a Discrete value, the number of categories; 0 for anything else.
    """

    shape: tuple[int, ...]
    dtype: str
    categories: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise ValueError(f"dtype {self.dtype!r} is not one of {', '.join(_DTYPES)}")
        if any(not isinstance(n, int) or n < 1 for n in self.shape):
            raise ValueError(f"shape {self.shape!r} must hold positive integers")

    @property
    def nbytes(self) -> int:
        """Bytes of one element."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class EnvSpec:
    """What an agent must know of an environment to be built for it.

    Attributes:
        name: family and id, e.g. "atari/pong", "gymnasium/CartPole-v1".
        observation: one observation.
        num_actions: number of discrete actions.
        frames_per_step: simulator frames one environment step stands for (Atari: 4).
    """

    name: str
    observation: ArraySpec
    num_actions: int
    frames_per_step: int = 1

    def to_dict(self) -> dict[str, Any]:
        """A JSON-serialisable form."""
        return {
            "name": self.name,
            "observation": {
                "shape": list(self.observation.shape),
                "dtype": self.observation.dtype,
                "categories": self.observation.categories,
            },
            "num_actions": self.num_actions,
            "frames_per_step": self.frames_per_step,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EnvSpec:
        """Read back `to_dict`'s form; raises ValueError where it is not one."""
        try:
            observation = data["observation"]
            spec = cls(
                name=str(data["name"]),
                observation=ArraySpec(
                    shape=tuple(int(n) for n in observation["shape"]),
                    dtype=str(observation["dtype"]),
                    categories=int(observation.get("categories", 0)),
                ),
                num_actions=int(data["num_actions"]),
                frames_per_step=int(data.get("frames_per_step", 1)),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not an environment specification: {error!r}") from error
        if spec.num_actions < 1 or spec.frames_per_step < 1:
            raise ValueError("num_actions and frames_per_step must be positive")
        return spec

    def difference(self, other: EnvSpec) -> str | None:
        """Name the first field in which `other` differs, with both values, or None where they agree."""
        for field in ("name", "observation", "num_actions", "frames_per_step"):
            mine, theirs = getattr(self, field), getattr(other, field)
            if mine != theirs:
                return f"{field} is {theirs} where {mine} is expected"
        return None


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class StepBatch:
    """What one stream reports for one step: views into a row.

    Attributes:
        observation: [E, ...] in the spec's dtype.
        reward: [E] float32, raw (unclipped); 0 on the first record of an episode.
        terminated: [E] uint8, 0 or 1: the episode ended in the environment's own terms.
        truncated: [E] uint8, 0 or 1: it was cut off from outside (a time limit).
    """

    observation: npt.NDArray[Any]
    reward: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.uint8]
    truncated: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class RowLayout:
    """Where each array of a stream's row lies: offsets are multiples of 64 bytes, the order is fixed.

    Both sides compute it from the same specification, so that nothing about lengths, shapes or types
    is ever taken from a step message.

    Attributes:
        spec: the environment.
        num_envs: E.
    """

    spec: EnvSpec
    num_envs: int

    @property
    def offsets(self) -> tuple[int, int, int, int]:
        """Byte offsets of observation, reward, terminated, truncated."""
        reward = _aligned(self.spec.observation.nbytes * self.num_envs)
        terminated = reward + _aligned(4 * self.num_envs)
        return 0, reward, terminated, terminated + _aligned(self.num_envs)

    @property
    def nbytes(self) -> int:
        """Bytes of one row, padding included: the exact size of a step's payload."""
        return self.offsets[3] + _aligned(self.num_envs)

    def views(self, rows: npt.NDArray[np.uint8]) -> StepBatch:
        """View rows [..., nbytes] as arrays [..., E, ...] that share their memory.

        Args:
            rows: uint8 array whose last axis is `nbytes` long and contiguous.
        """
        if rows.dtype != np.uint8 or rows.shape[-1] != self.nbytes or rows.strides[-1] != 1:
            raise ValueError(f"rows must be contiguous uint8 [..., {self.nbytes}], not {rows.dtype} {rows.shape}")
        dtypes = (self.spec.observation.dtype, "float32", "uint8", "uint8")
        shapes = (self.spec.observation.shape, (), (), ())
        arrays = []
        for offset, dtype, shape in zip(self.offsets, dtypes, shapes, strict=True):
            nbytes = np.dtype(dtype).itemsize * self.num_envs * int(np.prod(shape, dtype=np.int64))
            part = rows[..., offset : offset + nbytes].view(dtype)
            if shape:
                # Splitting the last (contiguous) axis never copies, whatever the strides in front.
                part = part.reshape(*rows.shape[:-1], self.num_envs, *shape)
            arrays.append(part)
        return StepBatch(*arrays)


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
