"""What a `ledger.Ledger` leaves behind; apart from it, because reading it needs no TensorFlow."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

LEDGER = "LEDGER_FOLDER"  # environment variable that tells a recorded learner where its ledger is
WRONG = 97  # exit status of a learner that has found a wrong record


@dataclass
class Verdict:
    """What one process of the learner has found.

    Attributes:
        records: counted, each once; those in which consecutive unrolls overlap are one.
        unrolls: finished columns.
        trained: columns trained on.
        sessions: environments that began anew, in a session of the same actor or of another learner process.
        environments: seen by this process.
        twins: environments that drew the number of an earlier one, with other records.
        violation: what was wrong; "" where nothing was.
    """

    records: int = 0
    unrolls: int = 0
    trained: int = 0
    sessions: int = 0
    environments: int = 0
    twins: int = 0
    violation: str = ""


def verdicts(folder: Path) -> list[Verdict]:
    """What the processes of a run have found, in order; one that was killed at once has left nothing."""
    paths = sorted(folder.glob("*.json"), key=lambda path: int(path.stem))
    return [Verdict(**json.loads(path.read_text())) for path in paths]
