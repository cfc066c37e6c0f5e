"""The rate limiter, which keeps sampling and insertion at a fixed ratio."""

from __future__ import annotations

from dataclasses import dataclass

from seedcli.config.sections import ReplayConfig

_ROUNDING = 1e-6  # unrolls; far above the rounding of counts up to 10⁹, far below the size of a step


@dataclass(frozen=True)
class RateLimiter:
    """Keeps training and insertion in a fixed ratio, as the limiters of Reverb (Cassirer et al., 2021) do.

    The invariant, once `min_size` unrolls are in: ratio · (inserted − min_size) − sampled lies within
    [−window, window]. A step is allowed if the invariant holds after it. One side can always proceed if
    window ≥ (batch + ratio) / 2: if neither could, the difference would be both above window − ratio and below
    batch − window.

    A column of n of an unroll's T transitions counts as n / T unrolls sampled, so the ratio is that of transitions.

    Attributes:
        ratio: unrolls sampled for each unroll inserted.
        min_size: unrolls inserted before the first may be sampled.
        window: sampled unrolls.
    """

    ratio: float
    min_size: int
    window: float

    @classmethod
    def from_config(cls, config: ReplayConfig, batch: float) -> RateLimiter:
        """Make the limiter of a configuration; a window of 0 means 2 · batch + ratio.

        Args:
            config: the section `replay`.
            batch: unrolls that a batch counts as.

        Raises:
            ValueError: the window is below (batch + ratio) / 2, so both sides could wait for each other.
        """
        window = config.window or 2 * batch + config.ratio
        if window < (batch + config.ratio) / 2:
            raise ValueError(f"window {window:g} must be at least {(batch + config.ratio) / 2:g}")
        return cls(config.ratio, config.min_size, window)

    def offset(self, inserted: int, sampled: float) -> float:
        """Correction of the sampled count that brings counts from other settings into the window.

        A run resumed with another ratio continues at that ratio, without catching up for earlier steps.
        """
        ahead = self.ratio * max(0, inserted - self.min_size) - sampled
        return min(0.0, ahead + self.window) + max(0.0, ahead - self.window)

    def can_insert(self, inserted: int, sampled: float, n: int = 1) -> bool:
        """Whether n more unrolls may be inserted."""
        after = inserted + n
        return after <= self.min_size or self.ratio * (after - self.min_size) - sampled <= self.window + _ROUNDING

    def insertable(self, inserted: int, sampled: float, most: int) -> int:
        """How many more unrolls may be inserted, at most `most`: the largest n for which `can_insert` holds, or 0."""
        before_start = self.min_size - inserted
        after_start = before_start + (sampled + self.window) / self.ratio
        count = int(max(0.0, min(most, max(before_start, after_start))))
        # The quotient may be rounded differently from the products in `can_insert`.
        while count < most and self.can_insert(inserted, sampled, count + 1):
            count += 1
        while count and not self.can_insert(inserted, sampled, count):
            count -= 1
        return count

    def can_sample(self, inserted: int, sampled: float, batch: float) -> bool:
        """Whether a batch that counts as `batch` unrolls may be sampled."""
        if inserted < self.min_size:
            return False
        return self.ratio * (inserted - self.min_size) - (sampled + batch) >= -self.window - _ROUNDING
