"""`seed export`: one model of a checkpoint, checked before it is moved into place."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from seedcli.errors import EXIT_DONE, SeedError
from seedcli.export.check import LIMIT, Checked
from seedcli.export.exporter import Exporter
from seedcli.export.readme import readme
from seedcli.export.request import Request


def run_export(request: Request, *, json_output: bool) -> int:
    """Export an agent, once `check_request` has passed.

    Args:
        request: what is exported.
        json_output: print a JSON object on stdout instead of lines for people.

    Returns:
        The exit status.

    Raises:
        SeedError: the format lacks an operation of the agent, or the model differs from the original or cannot be
            written.
    """
    out, name = request.out, request.format.name
    exporter = Exporter(request.checkpoint, request.config, greedy=request.greedy, batch=request.batch)
    print(f"writing {out} for {request.format.runtime}", file=sys.stderr, flush=True)
    with _writing(out), tempfile.TemporaryDirectory(prefix=".export-", dir=out.absolute().parent) as folder:
        made = Path(folder) / out.name
        checked = exporter.check(exporter.write(made, name))
        if not checked.difference <= LIMIT:
            raise SeedError(
                f"the model for {request.format.runtime} differs from the original by {checked.difference:.1e} in "
                f"{checked.output} ({LIMIT:.0e} is the limit), so {out} is not written: use another --format"
            )
        size = sum(path.stat().st_size for path in ([made] if made.is_file() else made.rglob("*")) if path.is_file())
        text = readme(out.name, name, exporter.description, checked)
        if made.is_dir():
            beside = out / "README.md"
            (made / beside.name).write_text(text, encoding="utf-8")
            if out.exists():
                out.rename(Path(folder) / f"{out.name}.replaced")
        else:
            beside = out.with_name(f"{out.name}.README.md")
            beside.write_text(text, encoding="utf-8")
        made.replace(out)
    _report(request, checked, size, beside, json_output=json_output)
    return EXIT_DONE


@contextlib.contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SeedError(f"{out} cannot be written ({error.strerror}): make room, or name another file") from error


def _report(request: Request, checked: Checked, size: int, beside: Path, *, json_output: bool) -> None:
    if json_output:
        found = {
            "model": str(request.out),
            "format": request.format.name,
            "checkpoint": str(request.checkpoint.path),
            "env_steps": request.checkpoint.env_steps,
            "actions": "greedy" if request.greedy else "sampled",
            "bytes": size,
            "observations": checked.observations,
            "largest_difference": checked.difference,
        }
        print(json.dumps(found))
        return
    actions = "greedy" if request.greedy else "sampled"
    print(f"{request.out}: {size / 1e6:,.2f} MB, {actions} actions, {request.checkpoint.env_steps:,} environment steps")
    print(
        f"largest difference from the original over {checked.observations:,} observations: {checked.difference:.1e} "
        f"in {checked.output}"
    )
    print(f"inputs, outputs and how to call it: {beside}")
