"""Write the reference of all configuration keys: python docs/make_reference.py docs/configuration.md."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from seedcli.config.choices import CHOICES
from seedcli.config.flags import FLAG_KEYS
from seedcli.config.registry import Registry
from seedcli.config.sections import NetworkConfig, Sections

HEAD = """\
# Configuration reference

Every key of a configuration, by section. An algorithm, a torso and a family of environments have their own keys: the
sections `[agent]`, `[agent.network]` and `[environment]` hold exactly those of the chosen ones. This page is generated
from the schema, `seedcli/config/sections.py` and the `Config` classes beside the code: change these, then run
`python docs/make_reference.py docs/configuration.md`.

- `seed presets show NAME` prints each key with the value and source that it has in a preset;
  [Configuration](running.md#configuration) explains presets and layers.
- Set a key with `--set section.key=value`, with an environment variable such as `SEED_TRAINING__BATCH_SIZE=64`, in a
  TOML file (`--config`), or with the flag named in the last column.
- *Applies to* names the optimizer, transport or kind of action that reads the key. Where it is empty, every run does.
- Values that are each in range but contradict each other are refused (`seedcli/config/conflicts.py`).
"""


# Prefixes of descriptions, followed by a colon, that name the runs that read the key.
SCOPES = {"Box actions", "discrete actions", "adam", "rmsprop", "gRPC", "cpu", "several hosts"}


def split_scope(description: str) -> tuple[str, str]:
    """Scope and meaning of a key: "atari, dmlab: height" → ("atari, dmlab", "height")."""
    scope, colon, meaning = description.partition(": ")
    if colon and set(scope.split(", ")) <= SCOPES:
        return scope, meaning
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


def table(name: str, section: type[BaseModel], without: type[BaseModel] | None = None) -> list[str]:
    """A row for each key of a section, except those of the class `without`."""
    flags = {key: flag for flag, key in FLAG_KEYS.items()}
    rows = ["| key | type and values | default | applies to | meaning | flag |", "|---|---|---|---|---|---|"]
    schema = section.model_json_schema()["properties"]
    common = without.model_json_schema()["properties"] if without is not None else {}
    for key, field in schema.items():
        if "$ref" in field or (key in common and field.get("description") == common[key].get("description")):
            continue
        scope, meaning = split_scope(field["description"])
        flag = flags.get(f"{name}.{key}")
        cells = (f"`{key}`", type_of(field), default_of(field), scope, meaning, f"`{flag}`" if flag else "")
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return rows if len(rows) > 2 else []


def about(section: type[BaseModel]) -> str:
    """The first paragraph of a section's docstring."""
    return str(section.__doc__).strip().split("\n\n")[0].replace("\n    ", "\n")


def of_choices(name: str, base: type[BaseModel], registry: Registry) -> list[str]:
    """The keys that all choices share, then those of each."""
    parts = [f"## [{name}]", "", about(base), "", *table(name, base), ""]
    for choice in registry.names():
        config = registry.config(choice)
        rows = table(name, config, base)
        if rows:
            leaf = registry.key.removeprefix(f"{name}.")
            parts += [f'### [{name}] with {leaf} = "{choice}"', "", about(config), "", *rows, ""]
    return parts


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for name, field in Sections.model_fields.items():
        section: Any = field.annotation
        if name in CHOICES:
            parts += of_choices(name, section, CHOICES[name])
        if name == "agent":
            parts += of_choices("agent.network", NetworkConfig, CHOICES["agent.network"])
        if name not in CHOICES:
            parts += [f"## [{name}]", "", about(section), "", *table(name, section), ""]
    return "\n".join(parts)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
