"""Rewards of Google Research Football, computed from records (Kurach et al., arXiv 1907.11180, section 3.3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

PLANES = (72, 96, 4)  # rows over y, columns over x, and what a plane marks:
LEFT_TEAM, RIGHT_TEAM, BALL, ACTIVE = range(4)
MARKED = 255  # a cell with something in it; all others are 0

CHECKPOINT_REWARD = 0.1
# The ball's distance to the centre of the opponent's goal, (1, 0), at which a zone counts as reached.
CHECKPOINT_DISTANCES: npt.NDArray[np.float64] = np.linspace(0.99, 0.19, 10)


def cell_centres(shape: tuple[int, ...] = PLANES) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Pitch coordinates of the middle of each row (y) and of each column (x).

    The planes cover x from -1 (our goal) to 1 (the opponent's) and y from -1/2.25 to 1/2.25; what is outside is
    marked at the edge.
    """
    rows, columns = shape[:2]
    y = ((np.arange(rows) + 0.5) / rows * 2 - 1) / 2.25
    x = (np.arange(columns) + 0.5) / columns * 2 - 1
    return y, x


def _zones_by_cell() -> npt.NDArray[np.int64]:
    """For each cell of a plane, flattened, how many zones have been reached with the ball in its middle."""
    y, x = cell_centres()
    distance = np.hypot(x[None, :] - 1, y[:, None]).reshape(-1)
    zones: npt.NDArray[np.int64] = (distance[:, None] <= CHECKPOINT_DISTANCES).sum(axis=1)
    return zones


class FootballRewards:
    """Rewards of E matches, one record after the other.

    "scoring" is the goals our (left) team scored since the last record, minus those it let in. "checkpoints" adds 0.1
    for each of ten zones around the opponent's goal, once an episode, when our team holds the ball there (a zone
    includes those farther out), and on a goal of ours 0.1 for each zone not yet rewarded.

    Attributes:
        collected: [E] zones of the running episode that have been rewarded.
    """

    def __init__(self, num_envs: int, *, checkpoints: bool) -> None:
        self._checkpoints = checkpoints
        self._zones = _zones_by_cell()
        self._lead = np.zeros(num_envs, np.int64)
        self.collected = np.zeros(num_envs, np.int64)

    def start(self, which: npt.NDArray[np.bool_]) -> None:
        """Begin new episodes in the environments `which` [E]; their records are first ones, of reward 0."""
        self._lead[which] = 0
        self.collected[which] = 0

    def goals(self, score: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Goals for minus goals against since the last call, [E], from the score [E, 2], ours first."""
        lead = score[:, 0].astype(np.int64) - score[:, 1]
        goals: npt.NDArray[np.int64] = lead - self._lead
        self._lead = lead
        return goals

    def rewards(
        self, goals: npt.NDArray[np.int64], planes: npt.NDArray[np.uint8], owner: npt.NDArray[Any]
    ) -> npt.NDArray[np.float64]:
        """Rewards [E] of a record.

        Args:
            goals: [E] of this record.
            planes: [E, 72, 96, 4], of 0 and 255.
            owner: [E] team that holds the ball: 0 ours, 1 the opponent's, -1 none.
        """
        if not self._checkpoints:
            return goals.astype(np.float64)
        reached = self.collected.copy()
        held = np.flatnonzero(owner == 0)
        if len(held):
            ball = planes[held, :, :, BALL].reshape(len(held), -1).argmax(axis=1)
            reached[held] = np.maximum(reached[held], self._zones[ball])
        reached[goals > 0] = len(CHECKPOINT_DISTANCES)
        rewards: npt.NDArray[np.float64] = goals + CHECKPOINT_REWARD * (reached - self.collected)
        self.collected = reached
        return rewards
