#!/usr/bin/env -S python3 -IS
"""The plugin's executable file: runs shim.py, which lies beside it as <this file>.py, by Python's cache of compiled
files. As a script it would be compiled at each call, for a fifth of the call's time."""

import posix
from _frozen_importlib_external import SourceFileLoader  # importlib without its own import

path = __file__
try:
    while True:
        target = posix.readlink(path)
        path = target if target.startswith("/") else path[: path.rfind("/") + 1] + target
except OSError:  # no link: here it is
    path += ".py"
code = SourceFileLoader("shim", path).get_code("shim")
assert code is not None
exec(code, {"__name__": "__main__", "__file__": __file__})  # noqa: S102 - it is our own, installed beside this file
