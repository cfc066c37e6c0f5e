"""Tables that fit a terminal: text is shortened and columns are left out before a number or a word is broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

_GAP = 2  # spaces between columns


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: its heading.
        kind: "number": aligned to the right and never broken; "words": the same, but broken between words; "path":
            shortened at its beginning; "text": shortened at its end.
        least: characters that a path or text keeps.
        optional: where the table is too wide, columns with 1 are left out first, then those with 2, …; 0: never.
    """

    name: str
    kind: Literal["number", "words", "path", "text"] = "number"
    least: int = 8
    optional: int = 0


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[Text]], width: int) -> tuple[Table, list[str]]:
    """A table no wider than `width`, if that is possible at all.

    Args:
        columns: those of the table.
        rows: [rows][columns].
        width: characters.

    Returns:
        The table, and the headings of the columns that were left out.
    """
    whole = [max(map(cell_len, [each.name, *(row[i].plain for row in rows)])) for i, each in enumerate(columns)]
    needed = [_needed(each, [row[i].plain for row in rows], whole[i]) for i, each in enumerate(columns)]
    shown = list(range(len(columns)))
    for turn in sorted({each.optional for each in columns} - {0}):
        if sum(needed[i] + _GAP for i in shown) - _GAP > width:
            shown = [i for i in shown if columns[i].optional != turn]
    spare = width - sum(needed[i] + _GAP for i in shown) + _GAP
    widths = dict.fromkeys(shown, 0)
    # Paths get the width that the other columns leave.
    for i in sorted(shown, key=lambda i: (columns[i].kind == "path", -i)):
        more = max(0, min(spare, whole[i] - needed[i]))
        widths[i], spare = needed[i] + more, spare - more
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for i in shown:
        kind = columns[i].kind
        right: Literal["left", "right"] = "right" if kind in ("number", "words") else "left"
        table.add_column(
            Text(columns[i].name), justify=right, no_wrap=kind != "words", width=widths[i], overflow="fold"
        )
    for row in rows:
        table.add_row(*(_shortened(row[i], columns[i].kind, widths[i]) for i in shown))
    return table, [columns[i].name for i in range(len(columns)) if i not in shown]


def _needed(column: Column, cells: Sequence[str], whole: int) -> int:
    """The least number of characters at which a column is shown."""
    if column.kind == "number":
        return whole
    if column.kind == "words":
        return max(cell_len(word) for text in [column.name, *cells] for word in text.split() or [""])
    return min(whole, max(column.least, cell_len(column.name)))


def _shortened(text: Text, kind: str, width: int) -> Text:
    plain = text.plain
    if kind not in ("path", "text") or cell_len(plain) <= width:
        return text
    if kind == "text":
        return Text(f"{plain[: width - 1]}…", style=text.style)
    end = plain[-(width - 1) :]
    slash = end.find("/")
    return Text(f"…{end[slash:] if 0 <= slash < width // 2 else end}", style=text.style)
