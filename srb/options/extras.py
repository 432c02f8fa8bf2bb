"""Tells how to install the packages that only some commands and options need."""

import shlex
import sys


def pip_install(what: str) -> str:
    """The command that installs a package for the Python that runs srb: `pip` alone may belong to another Python.

    what: the package as pip takes it, in quotation marks if a shell needs them.
    """
    return f"{shlex.quote(sys.executable)} -m pip install {what}"
