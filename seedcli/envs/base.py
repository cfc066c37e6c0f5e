"""The interface of every family: a vector environment in next-step autoreset mode."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from seedcli.specs import EnvSpec, Rows


class VectorEnv(Protocol):
    """E environments stepped in lock-step.

    Next-step autoreset: the record after a final one (terminated or truncated) is the first of a new
    episode, with reward 0 and both flags 0; the action given on the final record is ignored.

    Attributes:
        spec: the specification of one environment.
        num_envs: E.
    """

    spec: EnvSpec
    num_envs: int

    def reset(self, seed: int, out: Rows) -> None:
        """Seed every environment (consecutive seeds from `seed`), start new episodes, write the first records."""

    def step(self, actions: npt.NDArray[Any], out: Rows) -> None:
        """Take actions [E, *spec.action.array.shape] in its dtype and write the next records into `out`.

        Box actions are in units of the space (see `ActionSpec`): the adapter clips and rescales them.

        Raises:
            EnvironmentFailed: the environment broke, or returned something outside its specification.
        """

    def render(self) -> npt.NDArray[np.uint8]:
        """The first environment as an RGB picture [height, width, 3]; only where built with rendering."""

    def close(self) -> None:
        """Free what the environments hold; safe to call twice."""
