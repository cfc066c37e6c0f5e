"""Preset files: their folder, their descriptions and their bases.

The table `[preset]` of a file holds its description. In a variant it also holds `base = "NAME"`: values that the file
does not set come from that preset.
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from seedcli.errors import UsageError


class PresetInfo(NamedTuple):
    """The `[preset]` table of a preset file.

    Attributes:
        description: one line.
        base: the preset that this one is a variant of; "" for none.
    """

    description: str
    base: str


def presets() -> dict[str, PresetInfo]:
    """Name → information of every preset, sorted by name."""
    found = {name: read_toml(_folder() / f"{name}.toml") for name in preset_names()}
    return {
        name: PresetInfo(str(data.get("preset", {}).get("description", "")), base_of(data))
        for name, data in found.items()
    }


def preset_names() -> list[str]:
    """Names of all presets, sorted."""
    return sorted(path.stem for path in _folder().glob("*.toml"))


def complete_preset(incomplete: str) -> list[str]:
    """Names of presets that begin with `incomplete`, for shell completion."""
    return [name for name in preset_names() if name.startswith(incomplete)]


def preset_layers(name: str, *, above: str = "") -> list[tuple[str, dict[str, Any]]]:
    """A preset and its bases as (name, contents of the file), lowest priority first.

    Args:
        name: name of the preset.
        above: the file or preset that has it as its base, for messages; "" if the user named it.

    Raises:
        UsageError: an unknown preset, an unknown base, or a cycle of bases.
    """
    layers: list[tuple[str, dict[str, Any]]] = []
    while name:
        if any(name == seen for seen, _ in layers):
            raise UsageError(f'{above} has base = "{name}", which is based on it: bases must not form a cycle')
        data = read_toml(_path(name, above))
        layers.insert(0, (name, data))
        above, name = f"preset {name}", base_of(data)
    return layers


def base_of(data: dict[str, Any]) -> str:
    """The base preset named in the contents of a file; "" for none."""
    return str(data.get("preset", {}).get("base", ""))


def read_toml(path: Path) -> dict[str, Any]:
    """The contents of a TOML file.

    Raises:
        UsageError: the file cannot be read or is not valid TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text, so it cannot be TOML") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from error


def shipped_folder(checkout: str, installed: str) -> Path:
    """A folder of files that come with seed.

    Args:
        checkout: its path in a checkout, beside the package.
        installed: its path inside an installed package.
    """
    package = Path(__file__).resolve().parents[1]
    inside = package / installed
    return inside if inside.is_dir() else package.parent / checkout


def _folder() -> Path:
    return shipped_folder("presets", "presets")


def _path(name: str, above: str) -> Path:
    """The file of a preset; `above` as in `preset_layers`."""
    names = preset_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
        hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(names)}."
        where = f", the base of {above}" if above else ""
        raise UsageError(f"Unknown preset {name!r}{where}. {hint} seed presets list shows all of them")
    return _folder() / f"{name}.toml"
