"""Draw the packages, their imports, and the paths of a step and an unroll:

python docs/draw_architecture.py docs/architecture.svg
"""

from __future__ import annotations

import ast
import sys
import textwrap
import tomllib
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
INK, SOFT, PAPER, FILL = "#1f2933", "#66727f", "#ffffff", "#eef2f6"
STEP, UNROLL = "#1f6fb2", "#c2570c"
WIDTH, COLUMN, GUTTER, LEFT, TOP, SPACE = 1000, 262, 56, 60, 56, 26
HIGH, LOW = 16, 44  # of a path's ends, from the top of a box

# Column (0, 1, 2) and columns spanned of each package; the rows are the layers of the import contract.
PLACES = {
    "cli": (0, 2), "api": (2, 1), "bench": (0, 1), "doctor": (1, 1), "slurm": (2, 1), "roles": (0, 3),
    "suites": (0, 2), "build": (2, 1), "results": (0, 2), "export": (2, 1),
    "cluster": (1, 1), "serving": (1, 1), "training": (2, 1), "inference": (2, 1), "telemetry": (0, 1),
    "models": (0, 1), "envs": (0, 1),
    "net": (1, 1), "agents": (2, 1), "config": (0, 3), "specs": (0, 1), "errors": (1, 1),
    "tensorflow_import": (2, 1), "files": (0, 1),
}  # fmt: skip

STEP_TEXT = (
    "envs: one step, into the row",
    "roles/actor: sends it",
    "net: the frame, by any transport",
    "serving: session, sequence number",
    "inference: arena, batch",
    "agents: act; actions and state",
    "serving, net: back to the actor",
)
UNROLL_TEXT = (
    "inference: a full arena buffer",
    "training: queue or replay, batch",
    "agents: loss",
    "training: optimizer, checkpoint",
    "inference: new weights",
)


class Box(NamedTuple):
    """A package on the page."""

    x: int
    y: int
    width: int
    height: int

    @property
    def right(self) -> int:
        """Its right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> int:
        """Its lower edge."""
        return self.y + self.height


def layers() -> list[list[str]]:
    """The packages of each layer, the highest first, from the import contract."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    rows = [[name.strip().removeprefix("seedcli.") for name in row.split("|")] for row in contracts[0]["layers"]]
    return [row for row in rows if row != ["__main__"]]


def files(package: str) -> list[Path]:
    """The files of a package, its `__init__` first; the one file of a module."""
    folder = ROOT / "seedcli" / package
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


def imports(package: str) -> list[str]:
    """The other packages that a package imports, sorted."""
    found = set()
    for path in files(package):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            found |= {name.split(".")[1] for name in names if name.startswith("seedcli.")}
    return sorted(found - {package})


def purpose(package: str) -> str:
    """The beginning of a package's docstring, up to its first colon or full stop."""
    docstring = ast.get_docstring(ast.parse(files(package)[0].read_text(encoding="utf-8"))) or ""
    return docstring.replace(":", ".").partition(".")[0].replace("`", "")


def width_of(package: str) -> int:
    """Pixels of its box."""
    span = PLACES[package][1]
    return COLUMN * span + GUTTER * (span - 1)


def import_lines(package: str) -> list[str]:
    """The lines that name what it imports."""
    return textwrap.wrap("imports " + (", ".join(imports(package)) or "none of these"), (width_of(package) - 44) // 6)


def place() -> dict[str, Box]:
    """The box of each package."""
    boxes, y = {}, TOP
    for row in layers():
        height = 50 + 13 * max(len(import_lines(package)) for package in row)
        for package in row:
            boxes[package] = Box(LEFT + PLACES[package][0] * (COLUMN + GUTTER), y, width_of(package), height)
        y += height + SPACE
    return boxes


def text(x: float, y: float, words: str, *, size: int = 14, colour: str = INK, bold: bool = False) -> str:
    """One line of text."""
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}"{weight}>{escape(words)}</text>'


def draw_box(package: str, box: Box) -> list[str]:
    """A package: name, purpose, imports."""
    parts = [
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="8" fill="{FILL}" '
        f'stroke="{SOFT}"/>',
        text(box.x + 30, box.y + 21, package, bold=True),
        text(box.x + 30, box.y + 37, purpose(package), size=11),
    ]
    lines = import_lines(package)
    start = box.bottom - 9 - 13 * (len(lines) - 1)
    parts += [text(box.x + 30, start + 13 * i, each, size=11, colour=SOFT) for i, each in enumerate(lines)]
    return parts


def line(colour: str, *points: tuple[float, float], both: bool = False) -> str:
    """A path with a head at its end, or at both ends."""
    path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
    name = "step" if colour == STEP else "unroll"
    start = f' marker-start="url(#{name})"' if both else ""
    return (
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2.5" stroke-linejoin="round" '
        f'marker-end="url(#{name})"{start}/>'
    )


def disc(colour: str, label: str, x: float, y: float) -> str:
    """A label in a disc."""
    return (
        f'<circle cx="{x:g}" cy="{y:g}" r="10" fill="{colour}"/>'
        f'<text x="{x:g}" y="{y + 4:g}" font-size="12" font-weight="bold" fill="{PAPER}" text-anchor="middle">'
        f"{label}</text>"
    )


def step_path(at: dict[str, Box]) -> list[str]:
    """From an actor's environments to the network and back."""
    envs, roles, net, serving, inference, agents = (
        at[name] for name in ("envs", "roles", "net", "serving", "inference", "agents")
    )
    outer, down, up = LEFT - 26, net.x - 20, net.x - 36
    there, back = inference.x - 20, inference.x - 36
    return [
        line(STEP, (envs.x, envs.y + HIGH), (outer, envs.y + HIGH), (outer, roles.y + HIGH), (roles.x, roles.y + HIGH)),
        line(STEP, (down, roles.bottom), (down, net.y + HIGH), (net.x, net.y + HIGH)),
        line(STEP, (net.x + 60, net.y), (net.x + 60, serving.bottom)),
        line(
            STEP, (serving.right, serving.y + HIGH), (there, serving.y + HIGH), (there, inference.y + HIGH),
            (inference.x, inference.y + HIGH),
        ),
        line(STEP, (inference.x + 60, inference.bottom), (inference.x + 60, agents.y), both=True),
        line(
            STEP, (inference.x, inference.y + LOW), (back, inference.y + LOW), (back, serving.y + LOW),
            (serving.right, serving.y + LOW),
        ),
        line(STEP, (serving.x + 200, serving.bottom), (serving.x + 200, net.y)),
        line(STEP, (net.x, net.y + LOW), (up, net.y + LOW), (up, roles.bottom)),
        disc(STEP, "1", envs.x + 14, envs.y + HIGH),
        disc(STEP, "2", roles.x + 14, roles.y + HIGH),
        disc(STEP, "3", net.x + 14, net.y + HIGH),
        disc(STEP, "4", serving.x + 14, serving.y + HIGH),
        disc(STEP, "5", inference.x + 14, inference.y + HIGH),
        disc(STEP, "6", agents.x + 14, agents.y + HIGH),
        disc(STEP, "7", net.x + 14, net.y + LOW),
    ]  # fmt: skip


def unroll_path(at: dict[str, Box]) -> list[str]:
    """From the arena to the optimizer, and the weights back."""
    training, inference, agents = at["training"], at["inference"], at["agents"]
    outer = training.right + 24
    return [
        line(UNROLL, (inference.x + 120, inference.y), (inference.x + 120, training.bottom)),
        line(
            UNROLL, (training.right, training.y + HIGH), (outer, training.y + HIGH), (outer, agents.y + HIGH),
            (agents.right, agents.y + HIGH), both=True,
        ),
        line(UNROLL, (training.x + 220, training.bottom), (training.x + 220, inference.y)),
        disc(UNROLL, "a", inference.x + 142, inference.y - 11),
        disc(UNROLL, "b", training.right - 14, training.y + HIGH),
        disc(UNROLL, "c", agents.right - 14, agents.y + HIGH),
        disc(UNROLL, "d", training.right - 14, training.y + LOW),
        disc(UNROLL, "e", inference.right - 14, inference.y + HIGH),
    ]  # fmt: skip


def legend(at: dict[str, Box]) -> list[str]:
    """The legend of the numbers and letters, in the free column beside serving."""
    x, y = LEFT + 4, at["cluster"].y + 14
    parts = [text(x, y, "The path of a step", size=13, colour=STEP, bold=True)]
    for number, words in enumerate(STEP_TEXT, 1):
        y += 18
        parts += [text(x + 4, y, str(number), size=12, colour=STEP, bold=True), text(x + 20, y, words, size=12)]
    y += 30
    parts.append(text(x, y, "The path of an unroll", size=13, colour=UNROLL, bold=True))
    for letter, words in zip("abcde", UNROLL_TEXT, strict=True):
        y += 18
        parts += [text(x + 4, y, letter, size=12, colour=UNROLL, bold=True), text(x + 20, y, words, size=12)]
    return parts


def picture() -> str:
    """The complete SVG."""
    at = place()
    height = max(box.bottom for box in at.values()) + 24
    heads = "".join(
        f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="6" markerHeight="6" '
        f'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="{colour}"/></marker>'
        for name, colour in (("step", STEP), ("unroll", UNROLL))
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="DejaVu Sans, Helvetica, Arial, sans-serif">',
        f"<defs>{heads}</defs>",
        f'<rect width="{WIDTH}" height="{height}" fill="{PAPER}"/>',
        text(LEFT, 34, "seedcli: a box imports only boxes in rows below it", size=16, bold=True),
        *(part for package, box in at.items() for part in draw_box(package, box)),
        *legend(at),
        *step_path(at),
        *unroll_path(at),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(picture(), encoding="utf-8")
