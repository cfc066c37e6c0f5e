"""The result of a `ledger.Ledger`; in a separate module, so that reading it does not import TensorFlow."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

LEDGER = "LEDGER_FOLDER"  # environment variable with the folder of a recorded learner's ledger
WRONG = 97  # exit status of a learner that has found a wrong record


@dataclass
class Verdict:
    """The findings of one learner process.

    Attributes:
        records: number of distinct records; the overlap of consecutive unrolls counts once.
        unrolls: finished columns.
        trained: columns trained on.
        sessions: number of times an environment began a new session, of an actor or of another learner process.
        environments: number seen by this process.
        twins: environments that drew the number of an earlier one, with other records.
        violation: the first error; "": none.
    """

    records: int = 0
    unrolls: int = 0
    trained: int = 0
    sessions: int = 0
    environments: int = 0
    twins: int = 0
    violation: str = ""


def verdicts(folder: Path) -> list[Verdict]:
    """The verdicts of a run's processes, in order; a process that was killed early has none."""
    paths = sorted(folder.glob("*.json"), key=lambda path: int(path.stem))
    return [Verdict(**json.loads(path.read_text())) for path in paths]
