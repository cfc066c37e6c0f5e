"""Evaluations that are kept with their run, for reports: one JSON object a line in `evaluations.jsonl`."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seedcli.roles.run_folder import CHECKPOINTS, CONFIG, EVALUATIONS


def keep_evaluation(checkpoint: Path, result: Mapping[str, Any]) -> None:
    """Append a result and the time to the run that contains a checkpoint; skipped for a checkpoint outside a run.

    Args:
        checkpoint: its folder. If its run is not writable, nothing is kept: the result has been printed.
        result: what `seed eval --json` prints.
    """
    run = checkpoint.absolute().parent.parent
    if checkpoint.absolute().parent.name != CHECKPOINTS or not (run / CONFIG).is_file():
        return
    with contextlib.suppress(OSError), (run / EVALUATIONS).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"time": time.time(), **result}) + "\n")


def read_evaluations(run: Path) -> list[dict[str, Any]]:
    """The kept results of the run in a folder, oldest first. Damaged lines are left out."""
    try:
        texts = (run / EVALUATIONS).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for text in texts:
        with contextlib.suppress(ValueError):
            found.append(json.loads(text))
    return [each for each in found if isinstance(each, dict)]
