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

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from seedcli.config.faults import broken_rule
from seedcli.config.flags import FLAG_KEYS
from seedcli.config.presets import base_of, preset_layers, read_toml
from seedcli.config.schema import Config
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
    """One value of one layer."""

    key: str
    value: Any
    source: str


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
    section = ""
    for key, value, source, _ in describe(resolved):
        if key.split(".")[0] != section:
            section = key.split(".")[0]
            lines += ["", f"[{section}]"]
        # A file name may contain control characters, a TOML comment may not.
        comment = re.sub(r"[\x00-\x1f\x7f]", "?", source)
        lines.append(f"{key.split('.')[1]} = {format_value(value)}  # {comment}")
    return "\n".join(lines[1:]) + "\n"


def describe(resolved: Resolved) -> list[Value]:
    """Every value with its source and meaning, in the schema's order."""
    dump = resolved.config.model_dump(mode="json", by_alias=True)
    rows = []
    for key, field in known_keys().items():
        section, name = key.split(".")
        rows.append(Value(key, dump[section][name], resolved.sources[key], field.description or ""))
    return rows


def without_effect(resolved: Resolved) -> list[Value]:
    """Values that the user set and that the chosen algorithm or family of environments does not use."""
    return [value for value in describe(resolved) if _just_set(value) and not has_effect(value, resolved.config)]


def has_effect(value: Value, config: Config) -> bool:
    """Whether the configuration's algorithm and family of environments use a value."""
    fits = _algorithm_of(value) in (None, config.agent.algorithm)
    return fits and config.environment.family in families_of(value.key)


def allowed_values(key: str) -> list[str]:
    """The choices of a key with a fixed set of values; empty for other keys."""
    annotation = known_keys()[key].annotation
    return [str(value) for value in get_args(annotation)] if get_origin(annotation) is Literal else []


# Keys of the listeners of `seed learner`; `seed train` listens on this machine only.
_OF_LISTENERS = ("host", "grpc_port", "zmq_port", "insecure", "token_file", "tls_cert", "tls_key", "tls_ca")


def set_for_listeners(resolved: Resolved) -> list[Value]:
    """Values that the user set for this command and that only `seed learner` uses."""
    keys = {f"net.{name}" for name in _OF_LISTENERS}
    return [value for value in describe(resolved) if value.key in keys and _just_set(value)]


def _just_set(value: Value) -> bool:
    return value.source != DEFAULT and not value.source.startswith(("preset ", "run ", "file "))


@cache
def families_of(key: str) -> frozenset[str]:
    """The families of environments that use a key, read from its description ("atari, dmlab: …")."""
    known = frozenset(get_args(known_keys()["environment.family"].annotation))
    named, colon, _ = (known_keys()[key].description or "").partition(":")
    families = frozenset(named.split(", "))
    return families if key.startswith("environment.") and colon and families <= known else known


def _algorithm_of(value: Value) -> str | None:
    """The algorithm that alone uses a value, read from its description; None if all use it."""
    if value.key.startswith("replay.") or value.description.startswith("r2d2:"):
        return "r2d2"
    return "vtrace" if value.description.startswith("V-trace") else None


@cache
def known_keys() -> Mapping[str, FieldInfo]:
    """Key such as "training.batch_size" → its field in the schema, in the schema's order."""
    keys: dict[str, FieldInfo] = {}
    for section, section_field in Config.model_fields.items():
        model = section_field.annotation
        assert isinstance(model, type) and issubclass(model, BaseModel)
        for name, field in model.model_fields.items():
            keys[f"{section}.{field.alias or name}"] = field
    return keys


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
            yield from (_Entry(f"{section}.{name}", value, source) for name, value in values.items())
        else:
            yield _Entry(section, values, source)


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Entry]:
    for variable in sorted(environ):
        if variable.startswith("SEED_") and "__" in variable:
            key = variable.removeprefix("SEED_").lower().replace("__", ".", 1)
            yield _from_text(key, environ[variable], f"environment {variable}")


def _from_sets(sets: Iterable[str]) -> Iterator[_Entry]:
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {text!r} must be section.key=value, such as training.batch_size=64")
        yield _from_text(key.strip(), value.strip(), "--set")


def _from_text(key: str, text: str, source: str) -> _Entry:
    """A value from text: parsed as TOML if possible and the key does not hold text, else the text itself."""
    if key == "run.preset":
        raise UsageError(f"run.preset (from {source}) only records the preset: choose one with --preset {text}")
    value: Any = text
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        parsed = {}
    if parsed.keys() == {"value"}:  # more keys: the text held further lines
        value = parsed["value"]
    field = known_keys().get(key)
    if field is not None and field.annotation is str and not isinstance(value, str):
        value = text
    return _Entry(key, value, source)


# Validation ---------------------------------------------------------------------------------------------------


def _resolve(entries: Iterable[_Entry]) -> Resolved:
    keys = known_keys()
    sources = dict.fromkeys(keys, DEFAULT)
    data: dict[str, dict[str, Any]] = {}
    notes: list[str] = []
    for key, value, source in entries:
        field = keys.get(key)
        if field is None:
            raise UsageError(f"unknown key {key} (from {source}): {_nearest(key)}")
        if field.annotation is int and isinstance(value, float) and value.is_integer():
            value = int(value)  # 1e6 is how people write a million
        section, name = key.split(".")
        if key in ("environment.id", "environment.family"):
            notes += _leave_out_kwargs(data.get("environment", {}), sources, _Entry(key, value, source))
        data.setdefault(section, {})[name] = value
        sources[key] = source
    try:
        # Through JSON, because strict validation of Python values rejects a list for a tuple; default=str: dates.
        config = Config.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        raise UsageError(_sentence(error, sources)) from error
    return Resolved(config, sources, tuple(notes))


def _leave_out_kwargs(environment: dict[str, Any], sources: dict[str, str], chosen: _Entry) -> Iterator[str]:
    """Drop a preset's environment.kwargs if a later layer chooses another environment; yields a note.

    Values from files, variables and flags are kept: the user set them for this run.
    """
    given_by = sources["environment.kwargs"]
    name = chosen.key.split(".")[1]
    before = environment.get(name, known_keys()[chosen.key].default)
    if given_by.startswith("preset ") and given_by != chosen.source and chosen.value != before:
        kwargs = environment.pop("kwargs")
        sources["environment.kwargs"] = DEFAULT
        yield (
            f"environment.kwargs = {format_value(kwargs)} (from {given_by}) is ignored: it is for {chosen.key} = "
            f"{format_value(before)}, and {chosen.source} selects {format_value(chosen.value)}"
        )


def _nearest(key: str) -> str:
    keys = list(known_keys())
    leaf = key.rsplit(".", 1)[-1]
    near = [known for known in keys if known.split(".")[1] == leaf] or difflib.get_close_matches(key, keys, n=1)
    if not near:
        leaves = {known.split(".")[1]: known for known in keys}
        near = [leaves[name] for name in difflib.get_close_matches(leaf, leaves, n=1)]
    if near:
        return f"did you mean {' or '.join(near)}"
    return "seed presets show NAME lists every key"


def _sentence(error: ValidationError, sources: Mapping[str, str]) -> str:
    """The first error as one sentence: value, source, rule."""
    fault = error.errors()[0]
    if fault["type"] == "value_error":
        message = str(fault["ctx"]["error"])
        named = [key for key in sources if re.search(rf"\b{re.escape(key)}\b =", message)]
        return f"{message} ({', '.join(f'{key} from {sources[key]}' for key in named)})"
    location = [str(part) for part in fault["loc"]]
    key = ".".join(location[:2])
    field = known_keys().get(key)
    if field is not None and field.annotation == Devices:  # a union: pydantic names each member's rule in turn
        rule = 'must be "auto" or a whole number of at least 1'
        return f"{key} = {format_value(fault['input'])} (from {sources.get(key, DEFAULT)}) {rule}"
    if fault["type"] == "tuple_type" and field is not None and get_args(field.annotation)[:1] != (PositiveInt,):
        rule = f"must be a list, such as [{format_value(fault['input'])}]"
        return f"{key} = {format_value(fault['input'])} (from {sources.get(key, DEFAULT)}) {rule}"
    element = "".join(f"[{part}]" for part in location[2:])
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
