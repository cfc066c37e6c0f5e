"""`python -m seedcli` is `seed`."""

import sys

from seedcli.cli import main

sys.exit(main())
