"""Draw how steps, batches and weights move between devices: python docs/topology_picture.py docs/topology.svg."""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 1080, 560
INK, SOFT, PAPER = "#1f2933", "#66727f", "#ffffff"
HOST, INFERENCE, TRAINING = "#eef2f6", "#cfe3f7", "#f9dfc4"


def box(x: int, y: int, width: int, height: int, fill: str, *lines: str, dashed: bool = False) -> str:
    """A rounded box with centred lines, the first in bold."""
    dash = ' stroke-dasharray="6 4"' if dashed else ""
    parts = [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}" stroke="{SOFT}"{dash}/>',
    ]
    top = y + height / 2 - 9 * (len(lines) - 1) + 5
    for number, line in enumerate(lines):
        weight = ' font-weight="bold"' if number == 0 else ""
        parts.append(
            f'<text x="{x + width / 2:g}" y="{top + 18 * number:g}" text-anchor="middle"{weight}>{escape(line)}</text>'
        )
    return "\n".join(parts)


def text(x: int, y: int, words: str, *, anchor: str = "start", bold: bool = False, colour: str = INK) -> str:
    """One line of text."""
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}"{weight}>{escape(words)}</text>'


def arrow(number: int, path: str, at: tuple[int, int], *, both: bool = False, colour: str = INK) -> str:
    """A path with a head, and its number in a disc."""
    start = ' marker-start="url(#head)"' if both else ""
    x, y = at
    return (
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2" marker-end="url(#head)"{start}/>\n'
        f'<circle cx="{x}" cy="{y}" r="11" fill="{PAPER}" stroke="{INK}"/>\n'
        f'<text x="{x}" y="{y + 5}" text-anchor="middle" font-weight="bold">{number}</text>'
    )


def sheet(width: int, height: int, parts: list[str]) -> str:
    """An SVG of these parts, with the arrowhead that arrows refer to."""
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="14" fill="{INK}">',
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="{INK}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
            *parts,
            "</svg>\n",
        )
    )


def devices(x: int, y: int, fill: str, first: int) -> str:
    """Four devices side by side."""
    return "\n".join(box(x + 66 * i, y, 58, 40, fill, f"GPU:{first + i}") for i in range(4))


def picture() -> str:
    """The complete SVG."""
    parts = [
        box(190, 20, 690, 520, HOST),
        text(206, 44, "learner host 0, the chief: 8 GPUs, 4 + 4", bold=True),
        *(box(20, 80 + 62 * i, 110, 44, PAPER, f"actor {i}") for i in range(4)),
        text(75, 350, "actors of host 0", anchor="middle", colour=SOFT),
        box(215, 60, 130, 260, PAPER, "streams", "each belongs to", "one inference", "device"),
        box(440, 60, 300, 140, PAPER),
        text(590, 84, "inference devices", anchor="middle", bold=True),
        devices(461, 96, INFERENCE, 4),
        text(590, 160, "states of their streams,", anchor="middle"),
        text(590, 180, "a copy of the weights each", anchor="middle"),
        box(215, 400, 130, 110, PAPER, "arena", "unrolls, in the", "host's memory"),
        box(412, 400, 120, 110, PAPER, "prefetch", "assembles B,", "splits it by", "columns"),
        box(590, 380, 274, 140, PAPER),
        text(727, 404, "training devices", anchor="middle", bold=True),
        devices(600, 418, TRAINING, 0),
        text(727, 484, "loss and gradients of", anchor="middle"),
        text(727, 504, "B/4 unrolls each", anchor="middle"),
        box(590, 266, 274, 62, TRAINING, "all-reduce", "sum, then clip, then apply on each"),
        box(930, 20, 130, 520, HOST, "host 1", "the same,", "with its", "own actors", dashed=True),
        arrow(1, "M130 190H213", (172, 172), both=True),
        arrow(2, "M345 145H438", (391, 145), both=True),
        arrow(3, "M280 320V398", (280, 359)),
        arrow(4, "M345 455H410", (378, 455)),
        arrow(5, "M532 455H588", (560, 455)),
        arrow(6, "M727 380V330", (727, 355)),
        arrow(7, "M864 295H928", (897, 295), both=True),
        arrow(8, "M650 266V202", (650, 236)),
        text(670, 236, "publish", colour=SOFT),
    ]
    return sheet(WIDTH, HEIGHT, parts)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(picture(), encoding="utf-8")
