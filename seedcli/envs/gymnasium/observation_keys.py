"""The parts of a Dict observation that an agent observes: the `environment.observation_keys`, without text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Dict, OneOf, Tuple

from seedcli.envs.checks import nearest
from seedcli.errors import UsageError

SETTING = "environment.observation_keys"


@dataclass(frozen=True)
class KeyChoice:
    """The parts of a Dict observation that are used.

    Attributes:
        keys: `environment.observation_keys`, as given.
        used: names of the leaves that an agent observes; those of inner Dicts are "outer/inner".
        text: names of the leaves that are left out because they are text, not because of a key.
    """

    keys: tuple[str, ...]
    used: frozenset[str]
    text: tuple[str, ...]

    def notice(self, name: str) -> str:
        """A sentence for the user if text was left out without a key that excludes it; else ""."""
        if not self.text:
            return ""
        return (
            f"{name} observes text, which networks cannot read: {_named(self.text)} {_is(self.text)} left out "
            f"({self._dropping(self.text)} does the same without this warning)"
        )

    def remedy(self, leaf: str) -> str:
        """How to exclude a leaf that cannot be used, as the end of a sentence."""
        if self.used == {leaf}:
            return wrapping(None)
        if leaf in self.keys:
            return f"remove {leaf!r} from {SETTING} = {json.dumps(self.keys)}, or wrap the environment"
        return f"leave it out with {self._dropping((leaf,))}, or wrap the environment"

    def _dropping(self, leaves: Sequence[str]) -> str:
        """The setting under which `leaves` are left out as well."""
        if self.keys and not self.keys[0].startswith("-"):
            return f"{SETTING} = {json.dumps(sorted(self.used - set(leaves)))}"
        return f"{SETTING} = {json.dumps([*self.keys, *(f'-{leaf}' for leaf in leaves)])}"


def choose_keys(space: Dict, keys: Sequence[str], name: str) -> KeyChoice:
    """Choose the leaves of a Dict observation.

    A key names a leaf, or an inner Dict with all its leaves; a "-" in front leaves it out. Text is left out unless a
    key names it.

    Args:
        space: of the observation.
        keys: `environment.observation_keys`: either all or none have a "-" in front; empty: all leaves.
        name: of the environment, for errors.

    Raises:
        UsageError: the observation lacks a key, or nothing is left.
    """
    leaves = {"/".join(path): part for path, part in _leaves(space, (), name)}
    groups = {leaf[:end] for leaf in leaves for end, letter in enumerate(leaf) if letter == "/"}
    named = [key.removeprefix("-") for key in keys]
    for key in named:
        if key not in leaves and key not in groups:
            near = nearest(key, [*leaves, *groups], count=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UsageError(
                f"{SETTING} = {json.dumps(list(keys))} names {key!r}, which the observation of {name} does not have: "
                f"{hint}It has {_named(leaves) or 'no keys'}"
            )
    dropping = not keys or keys[0].startswith("-")
    chosen = {leaf for leaf in leaves if any(leaf == key or leaf.startswith(f"{key}/") for key in named) != dropping}
    text = tuple(sorted(leaf for leaf in chosen if is_text(leaves[leaf]) and leaf not in named))
    used = frozenset(chosen.difference(text))
    if leaves and not used:
        if text:
            raise UsageError(
                f"{name} observes nothing but text ({_named(text)}), which networks cannot read: {wrapping(None)}"
            )
        raise UsageError(
            f"{SETTING} = {json.dumps(list(keys))} leaves nothing of the observation of {name}: keep one of "
            f"{_named(leaves)}"
        )
    return KeyChoice(tuple(keys), used, text)


def is_text(space: Space[Any]) -> bool:
    """Whether a space holds text: gymnasium.spaces.Text, or a custom one such as that of MiniGrid's missions."""
    return space.dtype is not None and np.dtype(space.dtype).kind in "US"


def wrapping(space: Space[Any] | None) -> str:
    """How to wrap an environment with an unsupported space, as the end of a sentence; None: any space."""
    wrapper = "gymnasium.wrappers.TransformObservation, or a wrapper of your own,"
    if isinstance(space, Tuple | OneOf) and _flattens(space):
        wrapper = "gymnasium.wrappers.FlattenObservation"
    return f"put {wrapper} around the environment where you register it"


def _flattens(space: Space[Any]) -> bool:
    try:
        return bool(space.is_np_flattenable)
    except NotImplementedError:  # a custom space
        return False


def _leaves(space: Dict, path: tuple[str, ...], name: str) -> Iterator[tuple[tuple[str, ...], Space[Any]]]:
    for key, part in space.spaces.items():
        if not isinstance(key, str):
            raise UsageError(f"{name} names a part of its observation {key!r}; names must be text")
        if isinstance(part, Dict):
            yield from _leaves(part, (*path, key), name)
        else:
            yield (*path, key), part


def _named(leaves: Sequence[str] | dict[str, Any]) -> str:
    return ", ".join(repr(leaf) for leaf in sorted(leaves))


def _is(leaves: Sequence[str]) -> str:
    return "is" if len(leaves) == 1 else "are"
