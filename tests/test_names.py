"""No special cases by name: other code reads properties of algorithms, torsos, families and transports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from seedcli.config.choices import CHOICES

ROOT = Path(__file__).resolve().parents[1] / "seedcli"
NAMES = {name for registry in CHOICES.values() for name in registry.names()}
OWNERS = ("agents", "envs", "net")
# Files whose tables hold such names: the registries, packages to install, and what is measured.
TABLES = (
    "build/contents.py",
    "config/choices.py",
    "doctor/findings.py",
    "doctor/report.py",
    "bench/codecs.py",
    "bench/echo.py",
)


def _texts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        for element in node.elts:
            yield from _texts(element)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def _compared(node: ast.AST) -> Iterator[str]:
    """Texts that a node compares with something."""
    if isinstance(node, ast.Compare):
        for side in (node.left, *node.comparators):
            yield from _texts(side)
    elif isinstance(node, ast.MatchValue):
        yield from _texts(node.value)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("startswith", "endswith"):
            for argument in node.args:
                yield from _texts(argument)


def special_cases(source: str, tables: bool) -> list[tuple[int, str]]:
    """Line and name of each comparison with a name, and of each name among the keys of a dict unless `tables`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        texts = list(_compared(node))
        if isinstance(node, ast.Dict) and not tables:
            texts += [text for key in node.keys if key is not None for text in _texts(key)]
        found += [(getattr(node, "lineno", 0), text) for text in texts if text.removesuffix("://") in NAMES]
    return found


def test_nothing_outside_their_folders_compares_names() -> None:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.split("/")[0] not in OWNERS:
            cases = special_cases(path.read_text(encoding="utf-8"), tables=name in TABLES)
            found += [f"{name}:{line}: {text}" for line, text in cases]
    assert found == []


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ('if family == "atari": pass', ["atari"]),
        ('x = "zmq://" if transport != "zmq" else ""', ["zmq"]),
        ('if name in ("r2d2", "mine"): pass', ["r2d2"]),
        ('x = {"football": 4}.get(family)', ["football"]),
        ('match name:\n    case "vtrace": pass', ["vtrace"]),
        ('if address.startswith("shm://"): pass', ["shm://"]),
        ('x = "vtrace"', []),
    ],
)
def test_special_cases_are_found(source: str, names: list[str]) -> None:
    assert [text for _, text in special_cases(source, tables=False)] == names
