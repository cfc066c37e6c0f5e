"""Checks of `seed build` that run before anything is written."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from seedcli.build.contents import Contents, Kind, find_contents
from seedcli.errors import UsageError
from seedcli.files import check_folder
from seedcli.models.formats import require


class Request(NamedTuple):
    """The file to build.

    Attributes:
        kind: what the file runs: actors alone, or every command.
        out: the file.
        contents: the packages that it holds beside seed itself.
    """

    kind: Kind
    out: Path
    contents: Contents


def check_request(kind: Kind, out: Path, additions: Sequence[str], *, overwrite: bool) -> Request:
    """Refuse a file that cannot be built here, or an output path that cannot be written.

    Args:
        kind, out: see `Request`.
        additions: see `find_contents`.
        overwrite: an existing `out` may be replaced.

    Raises:
        UsageError: pex or an addition is not installed, seed is in no virtual environment, or `out` is unusable.
    """
    require(("pex",), "seed build", "'seedcli[build]'")
    if sys.prefix == sys.base_prefix:
        raise UsageError(
            f"seed build packs the virtual environment that seed is installed in, but {sys.prefix} is not "
            "one: create one with python3 -m venv, and install 'seedcli[build]' there"
        )
    if out.is_dir():
        raise UsageError(f"{out} is a folder: name the file to write")
    if out.exists() and not overwrite:
        raise UsageError(f"{out} exists: name another file, or give --overwrite")
    check_folder(out)
    return Request(kind, out, find_contents(kind, additions))
