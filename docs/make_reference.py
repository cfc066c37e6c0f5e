"""Write the reference of all configuration keys: python docs/make_reference.py docs/configuration.md."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from seedcli.config.sections import AgentConfig, EnvironmentConfig, Sections
from seedcli.config.sources import FLAG_KEYS

HEAD = """\
# Configuration reference

Every key of a configuration, by section. This page is generated from the schema in `seedcli/config/sections.py`: change
the schema, then run `python docs/make_reference.py docs/configuration.md`.

- `seed presets show NAME` prints each key with the value and source that it has in a preset;
  [running.md](running.md#configuration) explains presets and layers.
- Set a key with `--set section.key=value`, with an environment variable such as `SEED_TRAINING__BATCH_SIZE=64`, in a
  TOML file (`--config`), or with the flag named in the last column.
- *Applies to* names the environment families, algorithm, optimizer, network or transport that read the key. Where it is
  empty, every run does.
- Values that are each in range but contradict each other are refused (`seedcli/config/conflicts.py`).
"""


def choices(section: type[Any], key: str) -> tuple[str, ...]:
    """The values of a key that is one of several."""
    return tuple(section.model_json_schema()["properties"][key]["enum"])


# What a description may begin with, followed by a colon, to say which runs read the key.
SCOPES = {
    *choices(EnvironmentConfig, "family"),
    *choices(AgentConfig, "algorithm"),
    *choices(AgentConfig, "network"),
    *("V-trace", "Box actions", "adam", "rmsprop", "gRPC", "cpu", "several hosts"),
}


def split_scope(description: str) -> tuple[str, str]:
    """What a key applies to, and its meaning: "atari, dmlab: height" → ("atari, dmlab", "height")."""
    scope, colon, meaning = description.partition(": ")
    if colon and set(scope.split(", ")) <= SCOPES:
        return scope, meaning
    if description.startswith("V-trace "):
        return "V-trace", description.removeprefix("V-trace ")
    return "", description


def interval(field: dict[str, Any]) -> str:
    """The bounds of a number: " ≥ 1", " > 0 and ≤ 1", or nothing."""
    signs = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
    bounds = " and ".join(f"{sign} {field[key]}" for key, sign in signs if key in field)
    return f" {bounds}" if bounds else ""


def type_of(field: dict[str, Any]) -> str:
    """Type and allowed values of a field of a JSON schema."""
    if "anyOf" in field:
        return " or ".join(type_of(each) for each in field["anyOf"])
    if "enum" in field or "const" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    match field["type"]:
        case "boolean":
            return "`true`, `false`"
        case "string":
            return "text, not empty" if field.get("minLength") else "text"
        case "array":
            return f"list, each {type_of(field['items'])}"
        case "object":
            return "table"
        case name:
            return f"{name}{interval(field)}"


def default_of(field: dict[str, Any]) -> str:
    """The default as TOML writes it."""
    value = field.get("default", {})
    return "`{}`" if value == {} else f"`{json.dumps(value, ensure_ascii=False)}`"


def table(name: str, section: type[Any]) -> list[str]:
    """A row for each key of a section."""
    flags = {key: flag for flag, key in FLAG_KEYS.items()}
    rows = ["| key | type and values | default | applies to | meaning | flag |", "|---|---|---|---|---|---|"]
    for key, field in section.model_json_schema()["properties"].items():
        scope, meaning = split_scope(field["description"])
        flag = flags.get(f"{name}.{key}")
        cells = (f"`{key}`", type_of(field), default_of(field), scope, meaning, f"`{flag}`" if flag else "")
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return rows


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for name, field in Sections.model_fields.items():
        section: Any = field.annotation
        parts += [f"## [{name}]", "", section.__doc__.strip(), "", *table(name, section), ""]
    return "\n".join(parts)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
