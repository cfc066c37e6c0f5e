"""The lines that every run writes, in the form of seed's metrics.jsonl."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path

_SECONDS = 0.5  # between two lines


class Progress:
    """Writes a line of progress, at most every half second.

    Args:
        path: the file.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._last = 0.0

    def write(self, env_steps: int, returns: Sequence[float]) -> None:
        """Write a line.

        Args:
            env_steps: environment steps so far.
            returns: raw returns of the last episodes, at most 100; NaN where a framework reports none.
        """
        now = time.time()
        if now - self._last < _SECONDS:
            return
        self._last = now
        returns = [each for each in returns if math.isfinite(each)]
        mean = sum(returns) / len(returns) if returns else None
        line = {"time": now, "env_steps": int(env_steps), "episodes": len(returns), "episode_return_100": mean}
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
