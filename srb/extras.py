"""How to install what single commands and options need."""

import shlex
import sys


def pip_install(what: str) -> str:
    """The command that installs a package for the Python that runs srb: `pip` alone may be that of another one.

    what: as pip takes it, in quotation marks where a shell wants them.
    """
    return f"{shlex.quote(sys.executable)} -m pip install {what}"
