"""A binary sum tree: draws by weight and updates of weights in O(log n), vectorised."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class SumTree:
    """A complete binary tree in one float64 array: node i has the children 2i and 2i+1, node 1 is the root.

    An inner node is always recomputed as the sum of its two children, never updated by a difference, so rounding
    errors do not accumulate.

    Attributes:
        size: number of leaves, a power of two; initially all are 0.
    """

    def __init__(self, size: int) -> None:
        """Build a tree of at least `size` leaves, rounded up to a power of two."""
        if size < 1:
            raise ValueError(f"a sum tree of {size} leaves; it needs at least one")
        self.size = 1 << (size - 1).bit_length()
        self._nodes = np.zeros(2 * self.size, np.float64)

    @property
    def total(self) -> float:
        """The sum of all leaves."""
        return float(self._nodes[1])

    def get(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The values [n] of leaves [n] in 0 to size-1."""
        return self._nodes[self.size + indices]

    def set(self, indices: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> None:
        """Set leaves [n] to values [n], finite and at least 0; the last value of a duplicate index counts.

        Raises:
            ValueError: a value or an index is out of range.
        """
        if len(indices) == 0:
            return
        if not (np.isfinite(values).all() and values.min() >= 0):
            raise ValueError("leaves of a sum tree must be finite and at least 0")
        if indices.min() < 0 or indices.max() >= self.size:
            raise ValueError(f"leaves must be in 0 to {self.size - 1}")
        nodes = self._nodes
        nodes[self.size + indices] = values
        parents = np.unique((self.size + indices) >> 1)
        while parents[0] > 0:  # all of one level, sorted
            children = parents << 1
            nodes[parents] = nodes[children] + nodes[children + 1]
            parents = parents >> 1
            if len(parents) > 1:
                parents = parents[np.concatenate(([True], parents[1:] != parents[:-1]))]

    def sample(self, rng: np.random.Generator, n: int) -> npt.NDArray[np.int64]:
        """Draw n leaves, each with probability value / total; a leaf of value 0 is never drawn.

        The draws are stratified: the i-th falls uniformly into the i-th of n equal parts of the total, as in
        Schaul et al., "Prioritized experience replay" (arXiv 1511.05952), appendix B.2.1.

        Args:
            rng: source of randomness; n doubles are drawn.
            n: number of draws.

        Returns:
            Leaf indices [n], ascending.

        Raises:
            ValueError: all leaves are 0.
        """
        if not self.total > 0:
            raise ValueError("nothing can be drawn: every leaf of the sum tree is 0")
        left_over = (np.arange(n) + rng.random(n)) * (self.total / n)
        node = np.ones(n, np.int64)
        for _ in range(self.size.bit_length() - 1):
            node <<= 1
            left = self._nodes[node]
            # If rounding leads past the left child, go right only if the right child has weight.
            right = (left_over >= left) & (self._nodes[node + 1] > 0)
            left_over -= np.where(right, left, 0.0)
            node += right
        return node - self.size
