"""What comes from environments is looked at before it is used: a batch as a whole, its streams only where it shows."""

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


def _named(observation: Any, name: str | None) -> Any:
    """An array of an observation by name; None: the only one."""
    return observation if name is None else observation[name]


class Inspector:
    """Finds rows that cannot be used.

    Args:
        spec: the environment.
    """

    def __init__(self, spec: EnvSpec) -> None:
        # Names of the arrays that could hold something that is not finite; None stands for an only array.
        floats = [name for name, array in spec.arrays.items() if np.dtype(array.dtype).kind == "f"]
        single = not isinstance(spec.observation, Mapping)
        self._floats: list[str | None] = [None if single else name for name in floats]

    def suspicious(self, batch: InferenceBatch) -> bool:
        """Whether something in the batch may be unusable."""
        # A sum is finite only where every part of it is.
        if batch.final.max() > 1 or not math.isfinite(batch.reward.sum()):
            return True
        return any(not math.isfinite(_named(batch.observation, name).sum()) for name in self._floats)

    def inspect(self, stream: Stream) -> str | None:
        """What makes a stream's row unusable, if anything does.

        A non-finite reward does not: it becomes 0, and no unroll that holds it is trained on.
        """
        row = stream.buffer.row[stream.cursor]
        if max(row.terminated.max(), row.truncated.max()) > 1:
            return "an end-of-episode flag that is neither 0 nor 1"
        for name in self._floats:
            if not np.isfinite(_named(row.observation, name)).all():
                return "an observation that is not finite" + (f" ({name})" if name else "")
        bad = ~np.isfinite(row.reward)
        if bad.any():
            row.reward[bad] = 0.0
            if stream.repaired is None:
                stream.repaired = np.full(stream.num_envs, -1, np.int64)
            stream.repaired[bad] = stream.records
            log_once_per(
                "rewards", 30.0, _log, logging.WARNING,
                "environment %d in stream %d of %s gave a reward that is not finite: it counts as 0, and unrolls with "
                "it are dropped; repair the environment", int(np.flatnonzero(bad)[0]), stream.index, stream.owner,
            )  # fmt: skip
        return None
