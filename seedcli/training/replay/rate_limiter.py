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

    Attributes:
        ratio: unrolls sampled for each unroll inserted.
        min_size: unrolls inserted before the first may be sampled.
        window: sampled unrolls.
    """

    ratio: float
    min_size: int
    window: float

    @classmethod
    def from_config(cls, config: ReplayConfig, batch_size: int) -> RateLimiter:
        """Make the limiter of a configuration; a window of 0 means 2 · batch_size + ratio.

        Raises:
            ValueError: the window is below (batch_size + ratio) / 2, so both sides could wait for each other.
        """
        window = config.window or 2 * batch_size + config.ratio
        if window < (batch_size + config.ratio) / 2:
            raise ValueError(f"window {window:g} must be at least {(batch_size + config.ratio) / 2:g}")
        return cls(config.ratio, config.min_size, window)

    def offset(self, inserted: int, sampled: int) -> float:
        """Correction of the sampled count that brings counts from other settings into the window.

        A run resumed with another ratio continues at that ratio, without catching up for earlier steps.
        """
        ahead = self.ratio * max(0, inserted - self.min_size) - sampled
        return min(0.0, ahead + self.window) + max(0.0, ahead - self.window)

    def can_insert(self, inserted: int, sampled: float, n: int = 1) -> bool:
        """Whether n more unrolls may be inserted."""
        after = inserted + n
        return after <= self.min_size or self.ratio * (after - self.min_size) - sampled <= self.window + _ROUNDING

    def can_sample(self, inserted: int, sampled: float, batch: int) -> bool:
        """Whether `batch` unrolls may be sampled."""
        if inserted < self.min_size:
            return False
        return self.ratio * (inserted - self.min_size) - (sampled + batch) >= -self.window - _ROUNDING
