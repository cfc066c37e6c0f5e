"""How a replay is sampled: the choice of unrolls and of where columns begin in them, by priority or uniformly."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from seedcli.config.sections import ReplayConfig
from seedcli.training.replay.sum_tree import SumTree

# A TD error of exactly 0 must not keep an unroll from ever being drawn again.
MIN_PRIORITY = 1e-6
# Bounds of a weight in the tree, priority to the power of the exponent: sums of them neither overflow nor vanish.
_WEIGHTS = (1e-280, 1e280)

Serials = npt.NDArray[np.int64]


class Drawn(NamedTuple):
    """The columns of a batch.

    Attributes:
        serials: int64 [B].
        starts: int64 [B], index of each column's first record in its unroll.
        weights: float32 [B], importance weights in (0, 1].
    """

    serials: Serials
    starts: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]


class Draws(Protocol):
    """Chooses among the rows held; called with the replay's lock held.

    Attributes:
        places: places of its ring: the place of serial s is s mod places.
        needs_final: whether `add` needs to know which records are final.
    """

    places: int
    needs_final: bool

    @property
    def possible(self) -> bool:
        """Whether there is anything to draw."""

    def reserve(self, oldest: int, following: int, count: int) -> None:
        """Make room for `count` more rows than those of serials oldest to following-1."""

    def add(
        self,
        serials: Serials,
        priorities: npt.NDArray[np.float64] | None,
        final: npt.NDArray[np.bool_] | None,
    ) -> None:
        """Add rows [n].

        Args:
            serials: of the rows.
            priorities: [n], 0 for rows that are never drawn; None: as high as any before.
            final: [n, T], whether a record is the last of its episode; None if `needs_final` is false.
        """

    def remove(self, serials: Serials) -> None:
        """Never draw these rows again; they are the oldest, or were dropped."""

    def draw(self, rng: np.random.Generator, count: int, oldest: int, following: int) -> Drawn:
        """Draw `count` columns from the rows of serials oldest to following-1."""


class PrioritizedDraws:
    """Draws unrolls by priority (Schaul et al., arXiv 1511.05952, proportional variant).

    Unroll i is drawn with probability P(i) = p_i^α / Σ p^α and weighs (N · P(i))^−β, divided by the largest weight
    of its batch.

    Args:
        places: minimum number of places of the ring; it grows.
        config: exponents.

    Attributes:
        highest: the highest priority so far, 1 at first; that of new rows for which none is given (Algorithm 1).
    """

    needs_final = False

    def __init__(self, places: int, config: ReplayConfig) -> None:
        self._config = config
        self.highest = 1.0
        self._allocate(places)

    def _allocate(self, places: int) -> None:
        self._tree = SumTree(places)
        self.places = self._tree.size
        self._priorities = np.zeros(self.places, np.float64)

    @property
    def possible(self) -> bool:
        return self._tree.total > 0

    def reserve(self, oldest: int, following: int, count: int) -> None:
        places = self.places
        while following - oldest + count > places:
            places *= 2
        if places > self.places:
            serials = np.arange(oldest, following)
            priorities = self.get(serials)
            self._allocate(places)
            self._set(serials, priorities)

    def add(
        self,
        serials: Serials,
        priorities: npt.NDArray[np.float64] | None,
        final: npt.NDArray[np.bool_] | None,
    ) -> None:
        self.set(serials, np.full(len(serials), self.highest) if priorities is None else priorities)

    def remove(self, serials: Serials) -> None:
        self._set(serials, np.zeros(len(serials)))

    def draw(self, rng: np.random.Generator, count: int, oldest: int, following: int) -> Drawn:
        places = self._tree.sample(rng, count)
        weights = self._tree.get(places)
        # N and the total cancel, because weights are divided by the largest of the batch (its least probable row).
        importance = (weights / weights.min()) ** -self._config.importance_exponent
        serials = oldest + (places - oldest) % self.places
        return Drawn(serials, np.zeros(count, np.int64), importance.astype(np.float32))

    def get(self, serials: Serials) -> npt.NDArray[np.float64]:
        """The priorities [n] of rows [n]; 0 for those that are never drawn again."""
        return self._priorities[serials % self.places]

    def set(self, serials: Serials, priorities: npt.NDArray[np.float64]) -> None:
        """Set the priorities [n] of rows [n]; the last value of a duplicate row counts.

        Args:
            serials: of rows held.
            priorities: finite; 0 (never drawn again) or at least MIN_PRIORITY.
        """
        self._set(serials, priorities)
        self.highest = max(self.highest, float(priorities.max(initial=0.0)))

    def _set(self, serials: Serials, priorities: npt.NDArray[np.float64]) -> None:
        places = serials % self.places
        self._priorities[places] = priorities
        with np.errstate(over="ignore", under="ignore"):
            weights = np.clip(priorities**self._config.priority_exponent, *_WEIGHTS)
        self._tree.set(places, np.where(priorities > 0, weights, 0.0))

    def stats(self) -> dict[str, float]:
        """Metrics by name; 0 without rows."""
        priorities = self._priorities[self._priorities > 0]
        return {
            "priority_mean": float(priorities.mean()) if len(priorities) else 0.0,
            "priority_max": float(priorities.max()) if len(priorities) else 0.0,
        }


class UniformDraws:
    """Draws every column with equal probability and weight 1.

    Columns of one transition never start at a final record: the transition from there to the first record of the next
    episode is masked in every loss, so it would only make the batch smaller.

    Args:
        places: the largest number of rows.
        transitions: T, of an unroll.
        length: transitions of a column.
    """

    def __init__(self, places: int, transitions: int, length: int) -> None:
        self.places = places
        self._starts = transitions - length + 1
        self.needs_final = length == 1
        self._final = np.empty((places, transitions), np.bool_) if self.needs_final else None
        self._possible = 0  # columns that can be drawn

    @property
    def possible(self) -> bool:
        return self._possible > 0

    def reserve(self, oldest: int, following: int, count: int) -> None:
        """Nothing to do."""

    def add(
        self,
        serials: Serials,
        priorities: npt.NDArray[np.float64] | None,
        final: npt.NDArray[np.bool_] | None,
    ) -> None:
        if self._final is not None and final is not None:
            self._final[serials % self.places] = final
        self._possible += self._columns(serials)

    def remove(self, serials: Serials) -> None:
        self._possible -= self._columns(serials)

    def _columns(self, serials: Serials) -> int:
        """Columns that can be drawn from rows."""
        if self._final is None:
            return len(serials) * self._starts
        return int(np.count_nonzero(~self._final[serials % self.places]))

    def draw(self, rng: np.random.Generator, count: int, oldest: int, following: int) -> Drawn:
        serials, starts = self._draw_any(rng, count, oldest, following)
        if self._final is not None:
            # Redrawing final records makes the draws uniform over the others.
            while len(final := np.flatnonzero(self._final[serials % self.places, starts])):
                serials[final], starts[final] = self._draw_any(rng, len(final), oldest, following)
        return Drawn(serials, starts, np.ones(count, np.float32))

    def _draw_any(
        self, rng: np.random.Generator, count: int, oldest: int, following: int
    ) -> tuple[Serials, npt.NDArray[np.int64]]:
        column = rng.integers(0, (following - oldest) * self._starts, count)
        return oldest + column // self._starts, column % self._starts
