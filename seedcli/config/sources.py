"""Layers that set the values of a configuration, and the source of each value.

The layers, lowest priority first, are the schema's defaults, a run to resume, a preset, a file (`--config`), the
environment (`SEED_TRAINING__BATCH_SIZE=64`), `--set training.batch_size=64`, and dedicated flags such as `--steps`.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from seedcli.config.choices import CHOICES
from seedcli.config.faults import broken_rule
from seedcli.config.flags import FLAG_KEYS
from seedcli.config.presets import base_of, preset_layers, read_toml
from seedcli.config.schema import Config, chosen, config_class, default_choice, keys_of
from seedcli.config.sections import Devices, PositiveInt
from seedcli.errors import UsageError

DEFAULT = "default"


@dataclass(frozen=True)
class Resolved:
    """A configuration with the source of each value.

    Attributes:
        config: the validated values.
        sources: key such as "training.batch_size" → "default", "preset NAME", "file PATH", "run FOLDER",
            "environment VARIABLE", "--set" or a flag such as "--steps"; every key is present.
        notes: remarks for the user on how the layers were merged, one sentence each.
    """

    config: Config
    sources: Mapping[str, str]
    notes: tuple[str, ...] = ()


class Value(NamedTuple):
    """One value of a configuration, as `presets show` prints it.

    Attributes:
        key: e.g. "training.batch_size".
        value: bool, int, float, str, list or dict.
        source: as in `Resolved.sources`.
        description: meaning and unit, from the schema.
    """

    key: str
    value: Any
    source: str
    description: str


class _Entry(NamedTuple):
    """One value of one layer; `text` is what the user wrote where it was parsed from text."""

    key: str
    value: Any
    source: str
    text: str | None = None


def load_config(
    preset: str | None,
    *,
    config_file: Path | None = None,
    run_folder: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    sets: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
) -> Resolved:
    """Merge the layers and validate the result.

    Args:
        preset: name of a preset, or None; a variant overrides its base, and each value's source names the preset that
            sets it.
        config_file: a TOML file that overrides the preset, or its own `[preset] base`.
        run_folder: a run whose config.toml is the lowest layer (resuming).
        environ: environment variables; SEED_SECTION__KEY sets a value, others are ignored.
        sets: "section.key=value" each; the value is parsed as TOML if possible, else taken as text.
        flags: a flag of `FLAG_KEYS` → its value, text parsed as in `sets`; None means not given.

    Raises:
        UsageError: an unknown preset, key or flag value, an unreadable file, or a value that has the wrong type, is
            out of range or conflicts with another.
    """
    entries: list[_Entry] = []
    if run_folder is not None:
        path = run_folder / "config.toml"
        if not path.is_file():
            raise UsageError(f"{run_folder} holds no run to resume: it has no config.toml")
        entries += _flatten(read_toml(path), f"run {run_folder}")
    if preset is not None:
        for name, values in preset_layers(preset):
            entries += _flatten(values, f"preset {name}")
    if config_file is not None:
        entries += _from_file(config_file, preset)
    if preset is not None:
        # After the file, so that a saved config.toml given with --config cannot rename the preset.
        entries.append(_Entry("run.preset", preset, f"preset {preset}"))
    entries += _from_environment(environ)
    entries += _from_sets(sets)
    for flag, value in (flags or {}).items():
        if isinstance(value, str):
            entries.append(_from_text(FLAG_KEYS[flag], value, flag))
        elif value is not None:
            entries.append(_Entry(FLAG_KEYS[flag], value, flag))
    return _resolve(entries)


def from_toml_file(path: Path) -> Config:
    """The configuration in a file, on top of the defaults; the inverse of `to_toml`.

    Raises:
        UsageError: the file is missing or not valid TOML, or has an unknown key or an invalid value.
    """
    return _resolve(_flatten(read_toml(path), f"file {path}")).config


def to_toml(resolved: Resolved) -> str:
    """Every value as TOML, followed by its source as a comment; `from_toml_file` reads the same values back."""
    lines: list[str] = []
    table = ""
    for key, value, source, _ in describe(resolved):
        of, name = key.rsplit(".", 1)
        if of != table:
            table = of
            lines += ["", f"[{table}]"]
        # A file name may contain control characters, a TOML comment may not.
        comment = re.sub(r"[\x00-\x1f\x7f]", "?", source)
        lines.append(f"{name} = {format_value(value)}  # {comment}")
    return "\n".join(lines[1:]) + "\n"


def describe(resolved: Resolved) -> list[Value]:
    """Every value with its source and meaning, in the schema's order."""
    dump = resolved.config.model_dump(mode="json", by_alias=True)
    rows = []
    for key, field in keys_of(type(resolved.config)).items():
        value: Any = dump
        for part in key.split("."):
            value = value[part]
        rows.append(Value(key, value, resolved.sources[key], field.description or ""))
    return rows


def without_effect(resolved: Resolved) -> list[Value]:
    """Values that the user set and that the chosen algorithm does not use."""
    return [value for value in describe(resolved) if _just_set(value) and not has_effect(value, resolved.config)]


def has_effect(value: Value, config: Config) -> bool:
    """Whether the configuration's algorithm uses a value."""
    return not value.key.startswith("replay.") or config.agent.source == "replay"


def allowed_values(config: Config, key: str) -> list[str]:
    """The choices of a key with a fixed set of values; empty for other keys."""
    for registry in CHOICES.values():
        if key == registry.key:
            return registry.names()
    annotation = keys_of(type(config))[key].annotation
    return [str(value) for value in get_args(annotation)] if get_origin(annotation) is Literal else []


# Keys of the listeners of `seed learner`; `seed train` listens on this machine only.
_OF_LISTENERS = ("host", "grpc_port", "zmq_port", "insecure", "token_file", "tls_cert", "tls_key", "tls_ca")


def set_for_listeners(resolved: Resolved) -> list[Value]:
    """Values that the user set for this command and that only `seed learner` uses."""
    keys = {f"net.{name}" for name in _OF_LISTENERS}
    return [value for value in describe(resolved) if value.key in keys and _just_set(value)]


def _just_set(value: Value) -> bool:
    return value.source != DEFAULT and not value.source.startswith(_LOWER)


@cache
def owners() -> Mapping[str, tuple[str, ...]]:
    """Key that only some choices have → these choices, such as 'agent.algorithm = "r2d2"'.

    Those of built-in and installed choices that can be imported here.
    """
    found: dict[str, list[str]] = {}
    default = {table: default_choice(table) for table in CHOICES}
    for table, registry in CHOICES.items():
        for name in registry.names():
            choice = {**default, table: name}
            try:
                model = config_class(choice["agent"], choice["agent.network"], choice["environment"])
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


# Layers -------------------------------------------------------------------------------------------------------


def _from_file(path: Path, preset: str | None) -> Iterator[_Entry]:
    """The values of a file's base, if it has one, then its own."""
    data = read_toml(path)
    base = base_of(data)
    if base and preset not in (None, base):
        raise UsageError(f'{path} has base = "{base}", which conflicts with --preset {preset}: remove one of the two')
    if base and preset is None:
        for name, values in preset_layers(base, above=f"file {path}"):
            yield from _flatten(values, f"preset {name}")
    yield from _flatten(data, f"file {path}")


def _flatten(data: Mapping[str, Any], source: str) -> Iterator[_Entry]:
    for section, values in data.items():
        if section == "preset" and isinstance(values, dict):
            continue  # the description and base, not values
        if isinstance(values, dict) and (values or section in Config.model_fields):
            yield from _flatten_table(section, values, source)
        else:
            yield _Entry(section, values, source)


def _flatten_table(table: str, values: Mapping[str, Any], source: str) -> Iterator[_Entry]:
    for name, value in values.items():
        key = f"{table}.{name}"
        if key in CHOICES and isinstance(value, dict):
            yield from _flatten_table(key, value, source)
        else:
            yield _Entry(key, value, source)


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Entry]:
    for variable in sorted(environ):
        if variable.startswith("SEED_") and "__" in variable:
            key = variable.removeprefix("SEED_").lower().replace("__", ".")
            yield _from_text(key, environ[variable], f"environment {variable}")


def _from_sets(sets: Iterable[str]) -> Iterator[_Entry]:
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {text!r} must be section.key=value, such as training.batch_size=64")
        yield _from_text(key.strip(), value.strip(), "--set")


def _from_text(key: str, text: str, source: str) -> _Entry:
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
    return _Entry(key, value, source, text)


# Validation ---------------------------------------------------------------------------------------------------


def _resolve(layers: Iterable[_Entry]) -> Resolved:
    entries = list(layers)
    for entry in entries:
        if entry.key in CHOICES:
            raise UsageError(
                f"{entry.key} = {format_value(entry.value)} (from {entry.source}) must be a table: "
                f"did you mean {CHOICES[entry.key].key}"
            )
    model = _model(entries)
    keys = keys_of(model)
    entries, notes = _without_values_of_other_choices(entries, keys)
    sources = dict.fromkeys(keys, DEFAULT)
    data: dict[str, Any] = {}
    for key, value, source, text in entries:
        field = keys[key]
        if field.annotation is int and isinstance(value, float) and value.is_integer():
            value = int(value)  # 1e6 is how people write a million
        if text is not None and not isinstance(value, str) and _holds_text(field):
            value = text
        *path, name = key.split(".")
        table = data
        for part in path:
            table = table.setdefault(part, {})
        table[name] = value
        sources[key] = source
    try:
        # Through JSON, because strict validation of Python values rejects a list for a tuple; default=str: dates.
        config = model.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        raise UsageError(_sentence(error, sources, keys)) from error
    return Resolved(config, sources, tuple(notes))


def _holds_text(field: FieldInfo) -> bool:
    return field.annotation is str


def _model(entries: Sequence[_Entry]) -> type[Config]:
    """The configuration class of the last choice of each table."""
    choice = {table: default_choice(table) for table in CHOICES}
    source = dict.fromkeys(CHOICES, DEFAULT)
    for entry in entries:
        for table, registry in CHOICES.items():
            if entry.key == registry.key:
                choice[table], source[table] = str(entry.value), entry.source
    try:
        return config_class(choice["agent"], choice["agent.network"], choice["environment"])
    except UsageError as error:
        named = [table for table, registry in CHOICES.items() if str(error).startswith(f"{registry.key} =")]
        origin = f" (from {source[named[0]]})" if named and source[named[0]] != DEFAULT else ""
        raise UsageError(f"{error}{origin}") from error


# Layers below the user's own values for this run.
_LOWER = ("preset ", "run ", "file ")


def _without_values_of_other_choices(
    entries: Sequence[_Entry], keys: Mapping[str, FieldInfo]
) -> tuple[list[_Entry], list[str]]:
    """Drop values of presets, runs and files that a later layer has made void by choosing another thing.

    Such values are keys that only the former algorithm, torso or family has, and values that a field declares to be
    those "of" another key (`environment.kwargs` of `environment.id`), when a later layer changes that.

    Returns:
        The other entries, and a note for each layer that lost values.

    Raises:
        UsageError: a key that does not exist, or that the chosen algorithm, torso or family does not have.
    """
    kept: list[_Entry] = []
    void: dict[tuple[str, str], list[_Entry]] = {}
    for place, entry in enumerate(entries):
        field = keys.get(entry.key)
        table = entry.key.rsplit(".", 1)[0]
        later = None
        if field is None and table in CHOICES and entry.source.startswith(_LOWER) and entry.key in owners():
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
            raise UsageError(f"unknown key {entry.key} (from {entry.source}): {_nearest(entry.key, keys)}")
        else:
            kept.append(entry)
    notes = []
    for (source, later), dropped in void.items():
        values = ", ".join(f"{entry.key} = {format_value(entry.value)}" for entry in dropped)
        verb = "are ignored: they are" if len(dropped) > 1 else "is ignored: it is"
        notes.append(f"{values} (from {source}) {verb} for {later}")
    return kept, notes


def _later_change(entries: Sequence[_Entry], place: int, keys: Sequence[str]) -> str | None:
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


def _nearest(key: str, keys: Mapping[str, FieldInfo]) -> str:
    if key in owners():
        return f"it belongs to {' and '.join(owners()[key])}"
    leaf = key.rsplit(".", 1)[-1]
    for known in (list(keys), sorted(all_keys())):
        near = [each for each in known if each.rsplit(".", 1)[1] == leaf]
        near = near or difflib.get_close_matches(key, known, n=1)
        leaves = {each.rsplit(".", 1)[1]: each for each in known}
        near = near or [leaves[name] for name in difflib.get_close_matches(leaf, leaves, n=1)]
        if near:
            of = "".join(f" (of {' and '.join(owners()[each])})" for each in near[:1] if each not in keys)
            return f"did you mean {' or '.join(near)}{of}"
    return "seed presets show NAME lists every key"


def _sentence(error: ValidationError, sources: Mapping[str, str], keys: Mapping[str, FieldInfo]) -> str:
    """The first error as one sentence: value, source, rule."""
    fault = error.errors()[0]
    if fault["type"] == "value_error":
        message = str(fault["ctx"]["error"])
        named = [key for key in sources if re.search(rf"\b{re.escape(key)}\b =", message)]
        return f"{message} ({', '.join(f'{key} from {sources[key]}' for key in named)})"
    location = [str(part) for part in fault["loc"]]
    depth = next((n for n in range(len(location), 0, -1) if ".".join(location[:n]) in keys), 2)
    key = ".".join(location[:depth])
    field = keys.get(key)
    if field is not None and field.annotation == Devices:  # a union: pydantic names each member's rule in turn
        rule = 'must be "auto" or a whole number of at least 1'
        return f"{key} = {format_value(fault['input'])} (from {sources.get(key, DEFAULT)}) {rule}"
    if fault["type"] == "tuple_type" and field is not None and get_args(field.annotation)[:1] != (PositiveInt,):
        rule = f"must be a list, such as [{format_value(fault['input'])}]"
        return f"{key} = {format_value(fault['input'])} (from {sources.get(key, DEFAULT)}) {rule}"
    element = "".join(f"[{part}]" for part in location[depth:])
    value = format_value(fault["input"])
    return f"{key}{element} = {value} (from {sources.get(key, DEFAULT)}) {broken_rule(fault)}"


def format_value(value: Any) -> str:
    """A value as TOML writes it, tables inline."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(format_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        items = ", ".join(f"{format_value(str(name))} = {format_value(item)}" for name, item in value.items())
        return f"{{ {items} }}" if items else "{}"
    # JSON's escapes are TOML's, but TOML wants DEL escaped too.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
