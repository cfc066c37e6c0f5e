"""`python -m seedcli` is `seed`."""

import sys

from seedcli.cli.main import main

sys.exit(main())
