"""Runs the command line with `python -m srb`."""

import sys

from srb.cli import main

sys.exit(main())
