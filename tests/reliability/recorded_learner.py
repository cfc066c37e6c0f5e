"""`seed` with a ledger, for `Counter` environments: `python -m tests.reliability.recorded_learner learner …`.

The environment variable `verdict.LEDGER` names its folder. Exits with `verdict.WRONG` at the first wrong record.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from seedcli.tensorflow_import import import_tensorflow
from tests.reliability.verdict import LEDGER

if TYPE_CHECKING:
    from seedcli.inference.arena import Arena, UnrollBuffer
    from seedcli.training.batches import Piece, TrainingBatch
    from tests.reliability.ledger import Ledger


def install(ledger: Ledger) -> None:
    """Pass every finished unroll, before it can be trained on, and every batch to the ledger."""
    from seedcli.inference.device_policy import DevicePolicy
    from seedcli.training import sources
    from seedcli.training.batches import UnrollQueue
    from tests.system.records import marked

    put, assemble = UnrollQueue.put, sources.assemble

    def put_and_note(queue: UnrollQueue, buffer: UnrollBuffer) -> None:
        ledger.finish(buffer)
        put(queue, buffer)

    def assemble_and_note(pieces: list[Piece], arena: Arena) -> TrainingBatch:
        batch = assemble(pieces, arena)
        ledger.train(batch.unrolls)
        return batch

    UnrollQueue.put = put_and_note  # type: ignore[method-assign]
    sources.assemble = assemble_and_note
    DevicePolicy.begin = marked(DevicePolicy.begin)  # type: ignore[method-assign]


def main() -> int:
    """Run the command line; returns its exit status."""
    import_tensorflow()
    from seedcli.cli.main import main as seed
    from tests.reliability.ledger import Ledger

    ledger = Ledger(Path(os.environ[LEDGER]))
    install(ledger)
    try:
        return seed()
    finally:
        ledger.write()


if __name__ == "__main__":
    sys.exit(main())
