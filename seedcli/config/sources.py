"""Layers that set the values of a configuration, and the source of each value.

The layers, lowest priority first, are the schema's defaults, a run to resume, a preset, a file (`--config`), the
environment (`SEED_TRAINING__BATCH_SIZE=64`), `--set training.batch_size=64`, and dedicated flags such as `--steps`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from seedcli.config.choices import CHOICES, TORSOS
from seedcli.config.faults import broken_rule
from seedcli.config.flags import FLAG_KEYS
from seedcli.config.layers import (
    LOWER,
    Entry,
    flatten,
    from_environment,
    from_file,
    from_sets,
    from_text,
    without_values_of_other_choices,
)
from seedcli.config.presets import preset_layers, read_toml
from seedcli.config.schema import Config, config_class, default_choice, keys_of
from seedcli.config.sections import Devices, PositiveInt
from seedcli.config.toml_text import format_value
from seedcli.errors import UsageError
from seedcli.tensorflow_import import expect_convolutions

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
    entries: list[Entry] = []
    if run_folder is not None:
        path = run_folder / "config.toml"
        if not path.is_file():
            raise UsageError(f"{run_folder} holds no run to resume: it has no config.toml")
        entries += flatten(read_toml(path), f"run {run_folder}")
    if preset is not None:
        for name, values in preset_layers(preset):
            entries += flatten(values, f"preset {name}")
    if config_file is not None:
        entries += from_file(config_file, preset)
    if preset is not None:
        # After the file, so that a saved config.toml given with --config cannot rename the preset.
        entries.append(Entry("run.preset", preset, f"preset {preset}"))
    entries += from_environment(environ)
    entries += from_sets(sets)
    for flag, value in (flags or {}).items():
        if isinstance(value, str):
            entries.append(from_text(FLAG_KEYS[flag], value, flag))
        elif value is not None:
            entries.append(Entry(FLAG_KEYS[flag], value, flag))
    torsos = [entry.value for entry in entries if entry.key == TORSOS.key]
    if torsos and torsos[-1] != default_choice("agent.network"):  # the default, an MLP, has no convolutions
        expect_convolutions()  # here, because a class of the user's may import TensorFlow when it is resolved
    return _resolve(entries)


def from_toml_file(path: Path) -> Config:
    """The configuration in a file, on top of the defaults; the inverse of `to_toml`.

    Raises:
        UsageError: the file is missing or not valid TOML, or has an unknown key or an invalid value.
    """
    return _resolve(flatten(read_toml(path), f"file {path}")).config


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
    return [value for value in describe(resolved) if _set_by_user(value) and not has_effect(value, resolved.config)]


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
    return [value for value in describe(resolved) if value.key in keys and _set_by_user(value)]


def _set_by_user(value: Value) -> bool:
    return value.source != DEFAULT and not value.source.startswith(LOWER)


def _resolve(layers: Iterable[Entry]) -> Resolved:
    entries = list(layers)
    for entry in entries:
        if entry.key in CHOICES:
            raise UsageError(
                f"{entry.key} = {format_value(entry.value)} (from {entry.source}) must be a table: "
                f"did you mean {CHOICES[entry.key].key}"
            )
    model = _model(entries)
    keys = keys_of(model)
    entries, notes = without_values_of_other_choices(entries, keys)
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


def _model(entries: Sequence[Entry]) -> type[Config]:
    """The configuration class of the last choice of each table."""
    choice = {table: default_choice(table) for table in CHOICES}
    source = dict.fromkeys(CHOICES, DEFAULT)
    for entry in entries:
        for table, registry in CHOICES.items():
            if entry.key == registry.key:
                choice[table], source[table] = str(entry.value), entry.source
    try:
        return config_class(choice)
    except UsageError as error:
        named = [table for table, registry in CHOICES.items() if str(error).startswith(f"{registry.key} =")]
        origin = f" (from {source[named[0]]})" if named and source[named[0]] != DEFAULT else ""
        raise UsageError(f"{error}{origin}") from error


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
