"""Returns and lengths of running episodes by slot, updated after each batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from seedcli.agents.base import Role
from seedcli.inference.streams import EngineStats, SlotIndex


def _ended(
    returns: npt.NDArray[np.float64], lengths: npt.NDArray[np.int64], ended: npt.NDArray[np.bool_]
) -> Iterator[tuple[float, int]]:
    return zip(returns[ended].tolist(), lengths[ended].tolist(), strict=True)


class Episodes:
    """Returns and lengths of running episodes.

    Args:
        slots: maximum number of environments.
        stats: receives the counts of steps and episodes.

    Attributes:
        final: [slots] bool, whether the slot's previous record was final (a new slot starts an episode).
        trains: [slots] bool, whether the slot's environment trains.
        evaluation_envs: number of evaluation environments.
    """

    def __init__(self, slots: int, stats: EngineStats) -> None:
        self._stats = stats
        self.final: npt.NDArray[np.bool_] = np.ones(slots, np.bool_)
        self._return: npt.NDArray[np.float64] = np.zeros(slots, np.float64)
        self._length: npt.NDArray[np.int64] = np.zeros(slots, np.int64)
        self._evaluates: npt.NDArray[np.bool_] = np.zeros(slots, np.bool_)
        self.trains: npt.NDArray[np.bool_] = np.zeros(slots, np.bool_)
        self.evaluation_envs = 0

    def open(self, slots: npt.NDArray[np.int32], role: Role) -> None:
        """Start counting for slots."""
        self.trains[slots] = role == "training"
        self._evaluates[slots] = role == "evaluation"
        self.final[slots] = True
        if role == "evaluation":
            self.evaluation_envs += len(slots)

    def close(self, slots: npt.NDArray[np.int32], role: Role) -> None:
        """Stop counting for slots."""
        self.trains[slots] = self._evaluates[slots] = False
        if role == "evaluation":
            self.evaluation_envs -= len(slots)

    def count(self, slots: SlotIndex, reward: Any, first: Any, final: Any) -> None:
        """Count environment steps and episodes of the slots, with raw rewards."""
        ongoing = ~first
        returns = self._return[slots] * ongoing
        returns += reward
        lengths = self._length[slots] * ongoing
        lengths += ongoing
        self._return[slots] = returns
        self._length[slots] = lengths
        self.final[slots] = final
        stats = self._stats
        steps = int(np.count_nonzero(ongoing))
        if self.evaluation_envs:
            evaluates = self._evaluates[slots]
            watched = int(np.count_nonzero(ongoing & evaluates))
            stats.evaluation_steps += watched
            steps -= watched
        stats.env_steps += steps
        if not np.count_nonzero(final):
            return
        ended = final != 0
        if self.evaluation_envs:
            watched = int(np.count_nonzero(ended & evaluates))
            if watched:
                stats.evaluation_episodes += watched
                stats.finished_evaluation.extend(_ended(returns, lengths, ended & evaluates))
                stats.recent_evaluation_returns.extend(returns[ended & evaluates].tolist())
            ended &= ~evaluates
        stats.episodes += int(np.count_nonzero(ended))
        stats.finished.extend(_ended(returns, lengths, ended))
        stats.recent_returns.extend(returns[ended].tolist())
