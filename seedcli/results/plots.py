"""`seed plot`: chooses what is drawn, and draws it to the terminal or a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seedcli.errors import EXIT_DONE
from seedcli.results.curves import Axis
from seedcli.results.drawing import ENDINGS, draw_picture
from seedcli.results.groups import select
from seedcli.results.picture import make_picture
from seedcli.results.terminal import print_picture
from seedcli.roles.evaluator.suite_runs import check_output, print_to_stderr, warn


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
        check_output("--out", out, *ENDINGS)
    selection = select(paths, group_by)
    picture = make_picture(selection, axis=axis, thresholds=thresholds, smooth=smooth)
    for sentence in (*selection.warnings, *picture.warnings):
        warn(sentence)
    if out is None:
        print_picture(picture)
        return EXIT_DONE
    draw_picture(picture, out)
    print_to_stderr(f"{out}: {picture.title}, {', '.join(picture.notes)}")
    for threshold in picture.thresholds:
        for sentence in threshold.sentences:
            print_to_stderr(sentence)
    return EXIT_DONE
