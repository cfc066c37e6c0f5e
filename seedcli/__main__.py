"""The program `seed`; `python -m seedcli` runs it too."""

from __future__ import annotations

import signal
import sys

from seedcli.errors import EXIT_USAGE
from seedcli.tensorflow_import import start_quickly


def run() -> int:
    """Run `seed` and return its exit status; Ctrl-C while modules are imported ends the process without a traceback."""
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    start_quickly()
    try:
        from seedcli.cli.main import main
    except ModuleNotFoundError as error:
        missing = (error.name or "seedcli").partition(".")[0]
        if missing == "seedcli":
            raise
        print(f"seed: {missing} is needed and not installed here: pip install {missing}", file=sys.stderr)
        return EXIT_USAGE

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return main()


if __name__ == "__main__":
    sys.exit(run())
