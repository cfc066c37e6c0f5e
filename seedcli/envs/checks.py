"""Checks and error messages shared by all families."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from seedcli.errors import EnvironmentFailed
from seedcli.specs import ActionSpec


def nearest(name: str, known: Iterable[str], *, count: int = 3, cutoff: float = 0.5) -> list[str]:
    """At most `count` known names that are most similar to `name`, best first; case is ignored.

    Args:
        name: what was given.
        known: the known names.
        count: the most names to return.
        cutoff: least similarity, from 0 to 1, by `difflib`.
    """
    by_lower = {each.lower(): each for each in known}
    return [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=count, cutoff=cutoff)]


def check_actions(actions: npt.NDArray[Any], num_envs: int, action: ActionSpec, name: str) -> None:
    """Refuse actions that are not [E, *action.array.shape]: categories that exist, or finite numbers.

    Simulators handle an invalid action in different ways: an assertion, another action, or no answer at all.

    Raises:
        EnvironmentFailed: names the first wrong action.
    """
    shape = (num_envs, *action.array.shape)
    kind, kinds = ("f", "floating-point numbers") if action.size else ("i", "signed integers")
    if actions.shape != shape or actions.dtype.kind != kind:
        raise EnvironmentFailed(
            f"actions for {name} must be {list(shape)} {kinds}, not {actions.dtype} {list(actions.shape)}"
        )
    if action.size:
        if not np.isfinite(actions).all():
            index, part = (int(n) for n in np.argwhere(~np.isfinite(actions))[0])
            raise EnvironmentFailed(f"action {actions[index, part]} for environment {index} of {name} is not finite")
        return
    counts = action.categories[0] if len(action.categories) == 1 else np.array(action.categories, np.int32)
    outside = (actions < 0) | (actions >= counts)
    if outside.any():
        index, part = (int(n) for n in np.argwhere(outside.reshape(num_envs, -1))[0])
        which = f"part {part} of the action" if actions.ndim > 1 else "action"
        value = actions.reshape(num_envs, -1)[index, part]
        raise EnvironmentFailed(
            f"{which} {value} for environment {index} of {name} is not one of 0 to {action.categories[part] - 1}"
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
        f"environment {index} of {name} returned the {what} {bad[index, column]}, which is not a finite {values.dtype}"
    )
