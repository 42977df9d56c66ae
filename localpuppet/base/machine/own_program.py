"""This program: how it calls itself, the files that it ships, and its optional libraries.

In a clone, `enc.sh`, `default.pp` and the Puppet modules are at the top of the repository (`enc/`,
`manifests/`, `modules/localpuppet/`). The build of a wheel copies them into `base/share`
(setup.py).
"""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from localpuppet.base.errors import InvalidInputError


def own_command() -> str:
    """Return the shell command that calls this very program from any environment."""
    return shlex.join(own_words())


def own_words() -> list[str]:
    """Return the command words that call this very program from any environment."""
    script = Path(__file__).parents[3] / "localpuppet.py"
    return [sys.executable, str(script)] if script.is_file() else module_words("localpuppet")


def module_words(name: str) -> list[str]:
    """Return the command words that run a Python module of this program.

    Without `-P`, `python -m` imports from the working directory first, which may belong to another
    user. If this process runs with `-I`, the command keeps it: Python then also ignores its
    environment variables.
    """
    return [sys.executable, "-I" if sys.flags.isolated else "-P", "-m", name]


_HERE = Path(__file__).parents[1] / "share"
_CLONE = _HERE.parents[2]


def shared_file(name: str) -> Path:
    """Return the path of a shipped file: `enc/enc.sh`, `routes.yaml`, `units/…`."""
    packaged = _HERE / name
    return packaged if packaged.exists() else _CLONE / name


_FLEET = ("cryptography", "inotify_simple", "joserfc", "lark", "re2")
# Extra → the modules of its libraries, as in `pyproject.toml`. A module belongs to the first extra
# that has it.
EXTRAS = {
    "fleet": _FLEET,
    "nats": (*_FLEET, "nats", "nkeys"),
    "etcd": (*_FLEET, "grpclib"),
    "web": (*_FLEET, "jinja2", "starlette", "uvicorn"),
    "srv": (*_FLEET, "dns"),
    "sealed": ("pyrage",),
}


def require_extra(extra: str, *, where: str) -> None:
    """Check that the libraries of an extra are installed; none is imported.

    Raises:
        InvalidInputError: A library is not installed.
    """
    for module in EXTRAS[extra]:
        if find_spec(module) is None:
            raise _missing_extra(extra, module, where)


def has_extra(extra: str) -> bool:
    """Return whether the libraries of an extra are installed; none is imported."""
    return all(map(find_spec, EXTRAS[extra]))


@contextmanager
def without_module(name: str) -> Iterator[None]:
    """Let a library that is imported meanwhile do without a module that is not loaded yet."""
    loaded = sys.modules.get(name)
    sys.modules[name] = loaded  # type: ignore[assignment]  # of `None`, an import fails
    try:
        yield
    finally:
        if loaded is None:
            del sys.modules[name]


def explain_missing(error: ModuleNotFoundError, *, where: str) -> InvalidInputError | None:
    """Return the error that names the extra of a missing module; `None` if no extra has it."""
    module = (error.name or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if module in modules:
            return _missing_extra(extra, module, where)
    return None


def _missing_extra(extra: str, module: str, where: str) -> InvalidInputError:
    return InvalidInputError(
        f"needs the extra '{extra}', and Python has no module '{module}'",
        where=where,
        hint=f"pip install 'PATH[{extra}]', where PATH is the clone or wheel of localpuppet",
    )
