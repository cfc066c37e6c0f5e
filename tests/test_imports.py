"""No import cycles between files of seedcli, neither at run time nor in imports for type checking."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def modules(root: Path) -> dict[str, Path]:
    """Dotted name → file of every module of seedcli."""
    found = {}
    for path in (root / "seedcli").rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(tree: ast.Module, known: dict[str, Path]) -> Iterator[str]:
    """Modules of `known` that a file imports anywhere: at its top, inside functions and for type checking."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if name in known or node.module in known:
                    yield name if name in known else str(node.module)


def imports(root: Path) -> dict[str, set[str]]:
    """Module → the modules it imports, itself left out."""
    known = modules(root)
    return {
        name: set(imported(ast.parse(path.read_text(encoding="utf-8")), known)) - {name} for name, path in known.items()
    }


def test_files_import_each_other_without_cycles() -> None:
    graph = imports(ROOT)
    assert "seedcli.inference.arena" in graph["seedcli.inference.engine"]
    TopologicalSorter(graph).prepare()


def test_a_cycle_is_found(tmp_path: Path) -> None:
    (tmp_path / "seedcli").mkdir()
    (tmp_path / "seedcli" / "a.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import seedcli.b\n"
    )
    (tmp_path / "seedcli" / "b.py").write_text("def use():\n    from seedcli import a\n")
    with pytest.raises(CycleError):
        TopologicalSorter(imports(tmp_path)).prepare()
