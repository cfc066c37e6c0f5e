"""Best returns without memory on CartPole positions: python docs/memory_ceiling.py (minutes, NumPy only)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

HIDDEN = 16
WEIGHTS = 4 * HIDDEN + 1
STEPS = 500


def returns(weights: Array, episodes: int, seed: int, sampled: bool) -> Array:
    """Mean return of each policy [P, WEIGHTS] over `episodes`, in CartPole-v1's dynamics (Barto et al., 1983)."""
    rng = np.random.default_rng(seed)
    inner = weights[:, : 2 * HIDDEN].reshape(-1, 2, HIDDEN)
    bias, outer, last = weights[:, 2 * HIDDEN : 3 * HIDDEN], weights[:, 3 * HIDDEN : 4 * HIDDEN], weights[:, -1]
    state = rng.uniform(-0.05, 0.05, (len(weights), episodes, 4))
    alive = np.ones(state.shape[:2], bool)
    total = np.zeros(state.shape[:2])
    for _ in range(STEPS):
        seen = state[..., [0, 2]] / np.array([2.4, 0.21])
        hidden = np.tanh(np.einsum("pni,pih->pnh", seen, inner) + bias[:, None])
        logit = np.clip(np.einsum("pnh,ph->pn", hidden, outer) + last[:, None], -30, 30)
        right = rng.random(logit.shape) < 1 / (1 + np.exp(-logit)) if sampled else logit > 0
        force = np.where(right, 10.0, -10.0)
        x, x_dot, angle, angle_dot = np.moveaxis(state, -1, 0)
        cosine, sine = np.cos(angle), np.sin(angle)
        push = (force + 0.05 * angle_dot**2 * sine) / 1.1
        angle_acc = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        x_acc = push - 0.05 * angle_acc * cosine / 1.1
        change = np.stack([x_dot, x_acc, angle_dot, angle_acc], -1)
        state = state + 0.02 * change
        total += alive
        alive &= (np.abs(state[..., 0]) <= 2.4) & (np.abs(state[..., 2]) <= 12 * np.pi / 180)
        if not alive.any():
            break
    return np.asarray(total.mean(1))


def main() -> None:
    """The cross-entropy method (Rubinstein, 1999) from six starts, for deterministic and for random policies."""
    rng = np.random.default_rng(0)
    for sampled in (False, True):
        found = []
        for _ in range(6):
            mean, deviation = np.zeros(WEIGHTS), np.full(WEIGHTS, 3.0)
            for generation in range(40):
                weights = mean + deviation * rng.standard_normal((100, WEIGHTS))
                best = weights[np.argsort(returns(weights, 20, generation, sampled))[-10:]]
                mean, deviation = best.mean(0), best.std(0) + 0.3 * 0.93**generation
            found.append(float(returns(mean[None], 1000, 999, sampled)[0]))
        print("random" if sampled else "deterministic", [round(value, 1) for value in found])


if __name__ == "__main__":
    main()
