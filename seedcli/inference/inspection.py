"""Checks of environment data before use: first the whole batch, then single streams if the batch is suspicious."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from seedcli.inference.lane import InferenceBatch
from seedcli.inference.streams import Stream
from seedcli.specs import EnvSpec
from seedcli.telemetry.logs import log_once_per

_log = logging.getLogger(__name__)
_FLAGS = b"\0\1"


def _named(observation: Any, name: str | None) -> Any:
    """Return an array of an observation by name; None: the observation is the array."""
    return observation if name is None else observation[name]


class Inspector:
    """Finds unusable rows.

    Args:
        spec: the environment.
    """

    def __init__(self, spec: EnvSpec) -> None:
        # Names of the arrays that can hold non-finite values; None: the observation is one array.
        floats = [name for name, array in spec.arrays.items() if np.dtype(array.dtype).kind == "f"]
        single = not isinstance(spec.observation, Mapping)
        self._floats: list[str | None] = [None if single else name for name in floats]

    def suspicious(self, batch: InferenceBatch) -> bool:
        """Whether some row of the batch may be unusable."""
        # Bytes, because on few values every NumPy reduction takes longer than the rest of this method.
        if (batch.terminated.tobytes() + batch.truncated.tobytes()).translate(None, _FLAGS):
            return True
        # A sum is finite only if every term is.
        if not math.isfinite(batch.reward.sum()):
            return True
        return any(not math.isfinite(_named(batch.observation, name).sum()) for name in self._floats)

    def inspect(self, stream: Stream) -> str | None:
        """Return why a stream's row is unusable, or None.

        A non-finite reward is usable: it becomes 0, and unrolls that contain it are dropped.
        """
        row = stream.buffer.row[stream.cursor]
        if max(row.terminated.max(), row.truncated.max()) > 1:
            return "an end-of-episode flag that is neither 0 nor 1"
        for name in self._floats:
            if not np.isfinite(_named(row.observation, name)).all():
                return "a non-finite observation" + (f" ({name})" if name else "")
        bad = ~np.isfinite(row.reward)
        if bad.any():
            row.reward[bad] = 0.0
            if stream.last_bad_reward is None:
                stream.last_bad_reward = np.full(stream.num_envs, -1, np.int64)
            stream.last_bad_reward[bad] = stream.records
            log_once_per(
                "rewards", 30.0, _log, logging.WARNING,
                "environment %d in stream %d of %s returned a non-finite reward: it counts as 0, and unrolls that "
                "contain it are dropped; fix the environment", int(np.flatnonzero(bad)[0]), stream.index, stream.owner,
            )  # fmt: skip
        return None
