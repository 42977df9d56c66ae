"""Wrap a command so that it dies with localpuppet, or has limits.

The wrappers are util-linux's, which every Debian has. A missing program raises `StateError`.
"""

import shutil
from collections.abc import Mapping, Sequence

from localpuppet.base.errors import StateError


def find_programs(*programs: str, path: str, package: str) -> list[str]:
    """Return the paths of programs.

    Args:
        programs: Their names.
        path: The PATH to search.
        package: The package to install if one is missing.
    """
    places = []
    for name in programs:
        place = shutil.which(name, path=path)
        if place is None:
            raise StateError(f"{name} is not installed", hint=f"apt-get install {package}")
        places.append(place)
    return places


def mortal(argv: Sequence[str], *, path: str) -> list[str]:
    """Return a command that runs `argv` and is killed when the thread that started it ends.

    Processes that the program starts are not killed.

    Args:
        argv: Absolute program and arguments.
        path: The PATH to find setpriv in.
    """
    (setpriv,) = find_programs("setpriv", path=path, package="util-linux")
    return [setpriv, "--pdeathsig=KILL", "--", *argv]


def limited(argv: Sequence[str], *, limits: Mapping[str, int], path: str) -> list[str]:
    """Return a command that runs `argv`, and what it starts, with limits.

    Args:
        argv: Absolute program and arguments.
        limits: Resource name, as in prlimit(1) → limit; -1 for none.
        path: The PATH to find prlimit in.
    """
    (prlimit,) = find_programs("prlimit", path=path, package="util-linux")
    return [prlimit, *(f"--{name}={limit}" for name, limit in limits.items()), "--", *argv]
