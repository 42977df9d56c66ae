"""Errors of the API, with PuppetDB's status codes and bodies."""

import json

from starlette.responses import Response

from localpuppet.base.errors import (
    BusyError,
    InvalidInputError,
    LocalpuppetError,
    StateError,
    UnavailableError,
)
from localpuppet.fleet.inventory.query.evaluating import QueryDeadlineError

_TEXT = "text/plain; charset=utf-8"


class AbsentError(LocalpuppetError):
    """A node, an environment or another named thing does not exist."""


_CODES: tuple[tuple[type[LocalpuppetError], int], ...] = (
    (AbsentError, 404),
    (InvalidInputError, 400),
    (QueryDeadlineError, 500),
    (BusyError, 503),
    (UnavailableError, 503),
    (StateError, 503),
)


def refused(code: int, text: str) -> Response:
    """Return an error with a text, as PuppetDB does."""
    return Response(text, code, {"content-type": _TEXT})


def response_of(error: LocalpuppetError) -> Response:
    """Return the response to an error.

    An error of this machine shows no path: clients do not learn details about its files.
    """
    code = next((code for kind, code in _CODES if isinstance(error, kind)), 500)
    if code == 404:
        return json_response({"error": error.what}, code)
    if isinstance(error, StateError):
        return refused(code, f"{error.what} ('localpuppet check' names the file)")
    return refused(code, str(error))


def json_response(value: object, code: int = 200) -> Response:
    """Return a JSON response."""
    return Response(
        json.dumps(value, indent=2), code, {"content-type": "application/json; charset=utf-8"}
    )
