"""`seed plot`: what is drawn, and where to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seedcli.errors import EXIT_DONE, UsageError
from seedcli.results.curves import Axis
from seedcli.results.drawing import ENDINGS, draw_picture
from seedcli.results.groups import select
from seedcli.results.picture import make_picture
from seedcli.results.terminal import print_picture
from seedcli.roles.evaluator.suite_runs import say, warn


def plot_runs(
    paths: Sequence[Path],
    *,
    axis: Axis,
    group_by: str,
    thresholds: Sequence[float],
    smooth: int | None,
    out: Path | None,
) -> int:
    """Plot the returns of runs of one task; returns the exit status.

    Args:
        paths, group_by: see `groups.select`.
        axis, thresholds, smooth: see `picture.make_picture`.
        out: a .png, .svg or .pdf file; None: the terminal.

    Raises:
        UsageError: the runs cannot be plotted, or the file cannot be written.
    """
    if out is not None:
        check_file("--out", out, ENDINGS)
    selection = select(paths, group_by)
    picture = make_picture(selection, axis=axis, thresholds=thresholds, smooth=smooth)
    for sentence in (*selection.warnings, *picture.warnings):
        warn(sentence)
    if out is None:
        print_picture(picture)
        return EXIT_DONE
    draw_picture(picture, out)
    say(f"{out}: {picture.title}, {', '.join(picture.notes)}")
    for threshold in picture.thresholds:
        for sentence in threshold.sentences:
            say(sentence)
    return EXIT_DONE


def check_file(flag: str, path: Path, endings: Sequence[str]) -> None:
    """Refuse a file that has another ending or cannot be written, before anything is computed.

    Raises:
        UsageError: for that reason.
    """
    if path.suffix.lower() not in endings:
        raise UsageError(f"{flag} {path} must name a {' or '.join(endings)} file")
    folder = path.resolve().parent
    if not folder.is_dir():
        raise UsageError(f"{flag} {path}: the folder {folder} does not exist; create it first")
    if path.is_dir():
        raise UsageError(f"{flag} {path} is a folder: name a file in it")
