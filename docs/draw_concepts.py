"""Draw how observations, actions, unrolls and weights move: python docs/draw_concepts.py docs/concepts.svg."""

from __future__ import annotations

import sys
from pathlib import Path

from topology_picture import HOST, INFERENCE, INK, PAPER, SOFT, TRAINING, arrow, box, text

WIDTH, HEIGHT = 940, 430


def picture() -> str:
    """The whole as SVG."""
    head = (
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="{INK}"/></marker></defs>'
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="14" fill="{INK}">',
        head,
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{PAPER}"/>',
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
        "</svg>",
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(picture(), encoding="utf-8")
