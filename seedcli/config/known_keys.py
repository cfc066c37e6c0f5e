"""Keys that some choice of algorithm, torso or family has, and hints for keys that do not exist."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache

from pydantic.fields import FieldInfo

from seedcli.config.choices import CHOICES
from seedcli.config.schema import chosen, config_class, default_choice, keys_of
from seedcli.errors import UsageError


@cache
def owners() -> Mapping[str, tuple[str, ...]]:
    """Key that only some choices have → these choices, such as 'agent.algorithm = "r2d2"'.

    Those of built-in and installed choices that can be imported here.
    """
    found: dict[str, list[str]] = {}
    default = {table: default_choice(table) for table in CHOICES}
    for table, registry in CHOICES.items():
        for name in registry.names():
            try:
                model = config_class({**default, table: name})
            except UsageError:  # an installed package that does not work here
                continue
            for key in keys_of(model):
                if key.rsplit(".", 1)[0] == table:
                    found.setdefault(key, []).append(f'{registry.key} = "{name}"')
    return {key: tuple(choices) for key, choices in found.items()}


@cache
def all_keys() -> frozenset[str]:
    """Every key that some built-in or installed choice has."""
    return frozenset((*keys_of(chosen({})), *owners()))


def nearest(key: str, keys: Mapping[str, FieldInfo]) -> str:
    """A hint for a key that is not among `keys`: the choices that have it, or the nearest known keys."""
    if key in owners():
        return f"it belongs to {' and '.join(owners()[key])}"
    by_leaf: dict[str, list[str]] = {}
    for each in (*keys, *sorted(all_keys().difference(keys))):
        by_leaf.setdefault(each.rsplit(".", 1)[1], []).append(each)
    table, _, leaf = key.rpartition(".")
    matches = difflib.get_close_matches(leaf, by_leaf, n=1)
    if not matches:
        return "seed presets show NAME lists every key"
    near = by_leaf[matches[0]]
    # If several tables have it: the table that was named, else those of the chosen algorithm, torso or family.
    named = [each for each in near if each.rpartition(".")[0] == table]
    near = named or [each for each in near if each in keys] or near
    of = "".join(f" (of {' and '.join(owners()[each])})" for each in near[:1] if each not in keys)
    return f"did you mean {' or '.join(near)}{of}"
