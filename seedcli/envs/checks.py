"""What every family checks, and how it words it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from seedcli.errors import EnvironmentFailed


def nearest(name: str, known: Iterable[str], *, count: int = 3) -> list[str]:
    """The up to `count` known names most like `name`, best first; case does not count."""
    by_lower = {each.lower(): each for each in known}
    return [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=count, cutoff=0.5)]


def check_actions(actions: npt.NDArray[Any], num_envs: int, num_actions: int, name: str) -> None:
    """Refuse actions that are not [E] integers in 0..num_actions-1.

    Simulators answer a wrong action in their own ways: an assertion, another action, or never.

    Raises:
        EnvironmentFailed: names the first wrong action.
    """
    if actions.shape != (num_envs,) or actions.dtype.kind != "i":
        raise EnvironmentFailed(
            f"actions for {name} must be [{num_envs}] signed integers, not {actions.dtype} {list(actions.shape)}"
        )
    if actions.min() < 0 or actions.max() >= num_actions:
        index = int(np.flatnonzero((actions < 0) | (actions >= num_actions))[0])
        raise EnvironmentFailed(
            f"action {actions[index]} for environment {index} of {name} is not one of 0 to {num_actions - 1}"
        )


def check_finite(values: npt.NDArray[Any], what: str, name: str) -> None:
    """Refuse values [E, ...] that hold an infinity or a NaN.

    Raises:
        EnvironmentFailed: names the first environment that gave one.
    """
    if np.isfinite(values).all():
        return
    bad = values.reshape(len(values), -1)
    index, column = (int(n) for n in np.argwhere(~np.isfinite(bad))[0])
    raise EnvironmentFailed(
        f"environment {index} of {name} gave the {what} {bad[index, column]}, which is no finite {values.dtype}"
    )


def first_line(error: BaseException) -> str:
    """An exception as part of a sentence: its type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__
