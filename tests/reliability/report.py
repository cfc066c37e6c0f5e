"""Print results: a table of two columns, or JSON for scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(part)}" for name, part in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return "; ".join(_text(part) for part in value) or "none"
    return str(value)


def show(result: Mapping[str, Any], as_json: bool) -> None:
    """Print a result on stdout."""
    if as_json:
        print(json.dumps(result, indent=2))
        return
    width = max(len(name) for name in result)
    for name, value in result.items():
        rows = value if isinstance(value, list) and value else [value]
        for i, row in enumerate(rows):
            print(f"{name.replace('_', ' ') if not i else '':<{width}}  {_text(row)}")
