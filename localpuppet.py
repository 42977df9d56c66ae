#!/usr/bin/env python3
"""The node script, called as the original was: `./localpuppet.py [INPUT.yaml]`.

The root is the directory in which the script lies (or is linked); without a verb it applies. In a
clone it uses the virtual environment that `scripts/run` made beside it.
"""

import importlib
import os
import sys


def _run() -> int:
    called = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - not resolved: a
    # link in /etc/puppet to a clone makes /etc/puppet the root.
    home = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120
    python = f"{home}/.venv/bin/python"
    if os.access(python, os.X_OK) and sys.prefix != f"{home}/.venv":
        os.execv(python, [python, os.path.abspath(__file__), *sys.argv[1:]])  # noqa: PTH100, S606
    # A script of this name must not be what `import localpuppet` finds.
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) not in (called, home)]
    if os.path.isdir(f"{home}/localpuppet"):  # noqa: PTH112
        sys.path.insert(0, home)
    os.environ.setdefault("LOCALPUPPET_ROOT", called)

    # By name: a tool that reads imports takes this file for the package that it must not shadow.
    try:
        main = importlib.import_module("localpuppet.main")
    except ModuleNotFoundError as error:
        hint = "run scripts/run in the clone, or install localpuppet"
        sys.stderr.write(f"localpuppet: error: Python has no module {error.name!r} ({hint})\n")
        return 1
    arguments = sys.argv[1:]
    commands = (name for section in main.SECTIONS.values() for name in section)
    known = {*commands, "--help", "-h", "--version", "-V", "--root", "--color"}
    if not arguments or arguments[0].partition("=")[0] not in known:
        arguments = ["apply", "--verbose", *arguments]  # the original prints the whole command
    code: int = main.main(arguments)
    return code


if __name__ == "__main__":
    sys.exit(_run())
