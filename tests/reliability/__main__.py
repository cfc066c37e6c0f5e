"""Reliability tests of `seed`: `python -m tests.reliability COMMAND --help`.

Ends with 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.reliability import connections, fuzz, hostile, stall
from tests.reliability.chaos import run_chaos
from tests.reliability.cut import run_cut
from tests.reliability.hosts import why_not
from tests.reliability.plan import Plan
from tests.reliability.report import show
from tests.reliability.restart import run_restart
from tests.system.harness import fleet_in


def _chaos(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    seconds = 60 * options.minutes
    plan = Plan(
        seconds=seconds,
        actors=options.actors,
        envs=options.envs,
        every=options.every,
        learner_every=options.learner_every,
        transport=options.transport,
        records=options.records,
        timeout=options.timeout,
        checkpoint_seconds=min(30.0, options.learner_every / 6),
        finish_steps=options.finish_steps or (8_000 if options.records else 200_000),
        seed=options.seed,
        values=tuple(options.sets or ()),
    )
    with fleet_in(folder) as fleet:
        return run_chaos(plan, fleet)


def _restart(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    with fleet_in(folder) as fleet:
        return run_restart(options.actors, fleet, processes=options.processes)


def _cut(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    if reason := why_not():
        return {"failures": [reason]}
    with fleet_in(folder) as fleet:
        return run_cut(
            options.seconds or [5.0, 15.0, 40.0], fleet, actors=options.actors, timeout=options.timeout, how=options.how
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.reliability", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--json", action="store_true", help="print JSON instead of a table")
    shared.add_argument("--folder", type=Path, help="where runs and logs are kept; default: a temporary folder")

    chaos = commands.add_parser(
        "chaos", parents=[shared], help="training while its processes are killed, stopped and cut off"
    )
    chaos.add_argument("--minutes", type=float, default=20.0)
    chaos.add_argument("--actors", type=int, default=3)
    chaos.add_argument("--envs", type=int, default=8, help="of each actor")
    chaos.add_argument("--every", type=float, default=5.0, metavar="SECONDS", help="between events at actors")
    chaos.add_argument("--learner-every", type=float, default=180.0, metavar="SECONDS", help="between its kills")
    chaos.add_argument("--transport", choices=("grpc", "zmq", "both"), default="both")
    chaos.add_argument("--timeout", type=float, default=20.0, metavar="SECONDS", help="net.timeout_seconds")
    chaos.add_argument("--finish-steps", type=int, help="environment steps taken undisturbed at the end")
    chaos.add_argument("--records", action="store_true", help="check every record of environments that number them")
    chaos.add_argument("--seed", type=int, default=1, help="of the events")
    chaos.add_argument("--set", action="append", dest="sets", metavar="KEY=VALUE", help="for the learner")
    chaos.set_defaults(run=_chaos)

    restart = commands.add_parser(
        "restart", parents=[shared], help="a learner with many actors is killed and restarted"
    )
    restart.add_argument("--actors", type=int, default=200)
    restart.add_argument("--processes", action="store_true", help="one process per actor instead of one thread")
    restart.set_defaults(run=_restart)

    cut = commands.add_parser(
        "cut", parents=[shared], help="the network between actors and learner is cut and restored"
    )
    cut.add_argument("--seconds", type=float, action="append", help="length of a cut; may be given several times")
    cut.add_argument("--actors", type=int, default=6)
    cut.add_argument("--timeout", type=float, default=20.0, metavar="SECONDS", help="net.timeout_seconds")
    cut.add_argument(
        "--how", choices=("silent", "unplugged"), default="silent", help="packets vanish, or a link is down"
    )
    cut.set_defaults(run=_cut)
    for command in (fuzz, hostile, connections, stall):
        command.add_parser(commands, shared)
    return parser


def main() -> int:
    """Run one command; returns the exit status."""
    options = _parser().parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        result = options.run(options, (options.folder or Path(temporary)).resolve())
    show(result, options.json)
    return int(bool(result["failures"]))


if __name__ == "__main__":
    sys.exit(main())
