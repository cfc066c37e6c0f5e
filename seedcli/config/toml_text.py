"""Values as TOML writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


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
