"""Draw a captured terminal as SVG, with its colours:

tmux capture-pane -e -p > capture.txt && python docs/draw_terminal.py capture.txt docs/live_view.svg "seed train"
"""

from __future__ import annotations

import re
import sys
from io import StringIO
from pathlib import Path

from rich.ansi import AnsiDecoder
from rich.console import Console

FONT = "DejaVu Sans Mono, Menlo, Consolas, monospace"


def picture(capture: str, title: str) -> str:
    """The lines of a capture as SVG, in a font that every system has."""
    lines = list(AnsiDecoder().decode(capture.rstrip()))
    width = max(line.cell_len for line in lines)
    console = Console(record=True, width=width, file=StringIO(), force_terminal=True, color_system="truecolor")
    for line in lines:
        console.print(line, no_wrap=True, overflow="crop", highlight=False)
    svg = console.export_svg(title=title, font_aspect_ratio=0.63, unique_id="terminal")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    # Slightly larger than rich's size, so that blocks on adjacent lines touch.
    svg = svg.replace("font-size: 20px", "font-size: 21px")
    return svg.replace("Fira Code, monospace", FONT).replace("font-family: arial", f"font-family: {FONT}")


if __name__ == "__main__":
    source, target, title = sys.argv[1:]
    Path(target).write_text(picture(Path(source).read_text(encoding="utf-8"), title), encoding="utf-8")
