"""Draw how observations, actions, unrolls and weights move: python docs/draw_concepts.py docs/concepts.svg."""

from __future__ import annotations

import sys
from pathlib import Path

from topology_picture import HOST, INFERENCE, PAPER, SOFT, TRAINING, arrow, box, sheet, text

WIDTH, HEIGHT = 940, 430


def picture() -> str:
    """The complete SVG."""
    parts = [
        box(310, 20, 610, 390, HOST),
        text(326, 44, "learner", bold=True),
        box(20, 20, 190, 390, HOST),
        text(36, 44, "actors", bold=True),
        *(
            box(35, 62 + 104 * i, 160, 80, PAPER, f"actor {i}", "steps environments,", "has no network")
            for i in range(3)
        ),
        text(115, 392, "…", anchor="middle", bold=True),
        box(340, 62, 230, 130, INFERENCE, "inference", "one batch of observations", "from all who wait;",
            "keeps agent states"),
        box(670, 62, 230, 130, TRAINING, "training", "loss, gradients,", "optimizer"),
        box(340, 286, 230, 96, PAPER, "unrolls", "T steps of each environment,", "every record written once"),
        box(670, 286, 230, 96, PAPER, "queue or replay", "each unroll once,", "or drawn many times"),
        arrow(1, "M210 104H338", (260, 104)),
        text(260, 84, "observations", anchor="middle", colour=SOFT),
        arrow(2, "M340 150H212", (260, 150)),
        text(260, 178, "actions", anchor="middle", colour=SOFT),
        arrow(3, "M455 192V284", (455, 234)),
        text(474, 239, "records", colour=SOFT),
        arrow(4, "M570 334H668", (616, 334)),
        arrow(5, "M785 286V194", (785, 244)),
        text(804, 249, "batches", colour=SOFT),
        arrow(6, "M670 127H572", (624, 127)),
        text(624, 107, "weights", anchor="middle", colour=SOFT),
    ]  # fmt: skip
    return sheet(WIDTH, HEIGHT, parts)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(picture(), encoding="utf-8")
