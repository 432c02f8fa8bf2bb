"""`python -m srb` is `srb`."""

import sys

from srb.cli import main

sys.exit(main())
