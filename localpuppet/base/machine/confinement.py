"""A program that dies with us; one of another user that can do little, with limits of the kernel.

Owns: the words in front of its command. Refuses to know: what the program is for. The programs
that do it are util-linux's, which every Debian has.
"""

import shutil
from collections.abc import Mapping, Sequence

from localpuppet.base.errors import StateError


def found(*programs: str, path: str, package: str) -> list[str]:
    """Return where programs are.

    Args:
        programs: Their names.
        path: The PATH to find them in.
        package: What to install where one is missing.

    Raises:
        StateError: One is not installed.
    """
    places = []
    for name in programs:
        place = shutil.which(name, path=path)
        if place is None:
            raise StateError(f"{name} is not installed", hint=f"apt-get install {package}")
        places.append(place)
    return places


def mortal(argv: Sequence[str], *, path: str) -> list[str]:
    """Return the command that runs `argv`, killed when the thread that started it ends, or we do.

    Processes that the program starts are not: they end by themselves.

    Args:
        argv: Absolute program and arguments.
        path: The PATH to find setpriv in.

    Raises:
        StateError: setpriv is not installed.
    """
    (setpriv,) = found("setpriv", path=path, package="util-linux")
    return [setpriv, "--pdeathsig=KILL", "--", *argv]


def confined(
    argv: Sequence[str], *, user: str, group: str, limits: Mapping[str, int], path: str
) -> list[str]:
    """Return the command that runs `argv` as another user; only root can.

    The program dies with the process that started it, gets no new privileges and no groups but
    the one.

    Args:
        argv: Absolute program and arguments.
        user: Name or number of the user.
        group: Name or number of the user's group.
        limits: Name of a resource, as prlimit(1) calls it, to its limit.
        path: The PATH to find setpriv and prlimit in.

    Raises:
        StateError: One of those is not installed.
    """
    setpriv, prlimit = found("setpriv", "prlimit", path=path, package="util-linux")
    somebody = [f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs"]
    bounds = [f"--{name}={limit}" for name, limit in limits.items()]
    return [setpriv, *somebody, "--pdeathsig=KILL", "--", prlimit, *bounds, "--", *argv]
