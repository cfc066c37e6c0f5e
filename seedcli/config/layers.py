"""The layers that set values of a configuration: how they are read, and which lower values a later choice discards."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from seedcli.config.choices import CHOICES
from seedcli.config.known_keys import nearest, owners
from seedcli.config.presets import base_of, preset_layers, read_toml
from seedcli.config.schema import Config, chosen, keys_of
from seedcli.config.toml_text import format_value
from seedcli.errors import UsageError

# Layers below the user's own values for this run.
LOWER = ("preset ", "run ", "file ")


class Entry(NamedTuple):
    """One value of one layer; `text` is what the user wrote where it was parsed from text."""

    key: str
    value: Any
    source: str
    text: str | None = None


def from_file(path: Path, preset: str | None) -> Iterator[Entry]:
    """The values of a file's base, if it has one, then its own."""
    data = read_toml(path)
    base = base_of(data)
    if base and preset not in (None, base):
        raise UsageError(f'{path} has base = "{base}", which conflicts with --preset {preset}: remove one of the two')
    if base and preset is None:
        for name, values in preset_layers(base, above=f"file {path}"):
            yield from flatten(values, f"preset {name}")
    yield from flatten(data, f"file {path}")


def flatten(data: Mapping[str, Any], source: str) -> Iterator[Entry]:
    """The values of nested tables, such as a TOML file's."""
    for section, values in data.items():
        if section == "preset" and isinstance(values, dict):
            continue  # the description and base, not values
        if isinstance(values, dict) and (values or section in Config.model_fields):
            yield from _flatten_table(section, values, source)
        else:
            yield Entry(section, values, source)


def _flatten_table(table: str, values: Mapping[str, Any], source: str) -> Iterator[Entry]:
    for name, value in values.items():
        key = f"{table}.{name}"
        if key in CHOICES and isinstance(value, dict):
            yield from _flatten_table(key, value, source)
        else:
            yield Entry(key, value, source)


def from_environment(environ: Mapping[str, str]) -> Iterator[Entry]:
    """The values of variables such as SEED_TRAINING__BATCH_SIZE; others are ignored."""
    for variable in sorted(environ):
        if variable.startswith("SEED_") and "__" in variable:
            key = variable.removeprefix("SEED_").lower().replace("__", ".")
            yield from_text(key, environ[variable], f"environment {variable}")


def from_sets(sets: Iterable[str]) -> Iterator[Entry]:
    """The values of "section.key=value" each; raises UsageError for other text."""
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {text!r} must be section.key=value, such as training.batch_size=64")
        yield from_text(key.strip(), value.strip(), "--set")


def from_text(key: str, text: str, source: str) -> Entry:
    """A value from text: parsed as TOML if possible, else the text itself."""
    if key == "run.preset":
        raise UsageError(f"run.preset (from {source}) only records the preset: choose one with --preset {text}")
    value: Any = text
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        parsed = {}
    if parsed.keys() == {"value"}:  # more keys: the text held further lines
        value = parsed["value"]
    return Entry(key, value, source, text)


def without_values_of_other_choices(
    entries: Sequence[Entry], keys: Mapping[str, FieldInfo]
) -> tuple[list[Entry], list[str]]:
    """Drop values of presets, runs and files that no longer apply because a later layer made another choice.

    These are the values of keys that only the former algorithm, torso or family has, and of keys that a field declares
    to be "of" another key (`environment.kwargs` of `environment.id`), if a later layer changes that other key.

    Returns:
        The other entries, and a note for each layer that lost values.

    Raises:
        UsageError: a key that does not exist, or that the chosen algorithm, torso or family does not have.
    """
    kept: list[Entry] = []
    void: dict[tuple[str, str], list[Entry]] = {}
    for place, entry in enumerate(entries):
        field = keys.get(entry.key)
        table = entry.key.rsplit(".", 1)[0]
        later = None
        if field is None and table in CHOICES and entry.source.startswith(LOWER) and _has_owner(entry, entries):
            later = _later_change(entries, place, (CHOICES[table].key,))
        elif field is not None and entry.source.startswith("preset "):
            extra = field.json_schema_extra
            of = extra.get("of") if isinstance(extra, dict) else None
            later = _later_change(entries, place, (str(of), CHOICES[table].key)) if of else None
        if later is not None and any(other.key == entry.key for other in entries[place + 1 :]):
            continue  # the user has set another value
        if later is not None:
            void.setdefault((entry.source, later), []).append(entry)
        elif field is None:
            raise UsageError(f"unknown key {entry.key} (from {entry.source}): {nearest(entry.key, keys)}")
        else:
            kept.append(entry)
    notes = []
    for (source, later), dropped in void.items():
        values = ", ".join(f"{entry.key} = {format_value(entry.value)}" for entry in dropped)
        verb = "are ignored: they are" if len(dropped) > 1 else "is ignored: it is"
        notes.append(f"{values} (from {source}) {verb} for {later}")
    return kept, notes


def _has_owner(entry: Entry, entries: Sequence[Entry]) -> bool:
    """Whether a key of one of `CHOICES` belongs to a known choice, or to the user's own class named in its layer."""
    if entry.key in owners():
        return True
    table, _, leaf = entry.key.rpartition(".")
    registry = CHOICES[table]
    for other in entries:
        if (other.key, other.source) == (registry.key, entry.source) and ":" in str(other.value):
            if entry.source.startswith("run "):  # a run holds only keys of its choices; the class may be gone
                return True
            fields = registry.config(str(other.value)).model_fields
            return leaf in {field.alias or name for name, field in fields.items()}
    return False


def _later_change(entries: Sequence[Entry], place: int, keys: Sequence[str]) -> str | None:
    """The change of one of these keys by a layer after that of an entry, in words; None if none is changed.

    For example 'environment.id = "a", and --env selects "b"'.
    """
    source = entries[place].source
    for key in keys:
        before: Any = keys_of(chosen({}))[key].get_default()
        after = None
        for i, entry in enumerate(entries):
            if entry.key == key:
                if i < place or entry.source == source:
                    before, after = entry.value, None
                else:
                    after = entry
        if after is not None and after.value != before:
            return f"{key} = {format_value(before)}, and {after.source} selects {format_value(after.value)}"
    return None
