"""Optional libraries, by the extra of this package that installs them; a node alone needs none.

A test compares the table with `pyproject.toml`.
"""

from importlib.util import find_spec

from localpuppet.base.errors import InvalidInputError

_FLEET = ("cryptography", "inotify_simple", "joserfc", "lark", "re2")
# Extra → the modules of its libraries. A module belongs to the first extra that has it.
EXTRAS = {
    "fleet": _FLEET,
    "nats": (*_FLEET, "nats", "nkeys"),
    "etcd": (*_FLEET, "grpclib"),
    "web": (*_FLEET, "jinja2", "starlette", "uvicorn"),
    "srv": (*_FLEET, "dns"),
}


def require_extra(extra: str, *, where: str) -> None:
    """Check that the libraries of an extra are installed; none is imported.

    Args:
        where: What needs the extra, for the message.

    Raises:
        InvalidInputError: A library is not installed.
    """
    for module in EXTRAS[extra]:
        if find_spec(module) is None:
            raise _missing_extra(extra, module, where)


def explain_missing(error: ModuleNotFoundError, *, where: str) -> InvalidInputError | None:
    """Return the error that names the extra of a missing module; `None` if no extra has it.

    Args:
        error: What Python raised.
        where: What needs the module, for the message.
    """
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
