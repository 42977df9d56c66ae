"""What every transfer over http is held to: it ends in time, and its body is whole."""

import contextlib
import http.client
import signal
from collections.abc import Iterator

from localpuppet.base.errors import InvalidInputError, UnavailableError


def whole_body(answer: http.client.HTTPResponse, limit: int, where: str) -> bytes:
    """Return the whole body: half an input is another input.

    Raises:
        InvalidInputError: The body has more than `limit` bytes.
        UnavailableError: The server did not say where the body ends, or did not send all of it.
    """
    promised = answer.length
    if promised is None and not answer.chunked:
        raise UnavailableError(
            "the server said no length, so a broken connection could not be told from the end",
            where=where,
        )
    body = bytearray()
    while chunk := answer.read1(65536):
        body += chunk
        if len(body) > limit:
            raise InvalidInputError(f"is too large: the limit is {limit} bytes", where=where)
    if promised is not None and len(body) != promised:
        raise UnavailableError(
            f"the connection broke after {len(body)} of {promised} bytes", where=where
        )
    return bytes(body)


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the main thread after `seconds`: a server may trickle for ever."""

    def ring(_number: int, _frame: object) -> None:
        raise TimeoutError(f"timed out after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
