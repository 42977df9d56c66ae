"""Fetching an input over https: size and time are bounded, the server's name is verified."""

import contextlib
import http.client
import signal
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from localpuppet import __version__
from localpuppet.errors import InvalidInputError, UnavailableError
from localpuppet.formats.text import url_without_secrets
from localpuppet.machine.anchors import tls_context


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect could lead to another host or to plain http; the site names the right URL."""

    def redirect_request(self, *_args: object, **_keywords: object) -> None:
        return None


class Https:
    """An https client.

    Args:
        ca: PEM file with the authorities to trust; `None` for the system's.
        timeout: Seconds for the whole transfer.
    """

    def __init__(self, *, ca: Path | None, timeout: float) -> None:
        self._ca = ca
        self._timeout = timeout

    def get(self, url: str, *, limit: int) -> bytes:
        """Return the body of `url`.

        Raises:
            InvalidInputError: The URL has no host or holds credentials, the file of authorities is
                refused, or the body is larger than `limit` bytes.
            UnavailableError: No answer in time, no trust in the server, or another status than 200.
        """
        try:
            parts = urllib.parse.urlsplit(url)
            where = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
        except ValueError as error:
            raise InvalidInputError(
                f"is not a URL: {error}", where=url_without_secrets(url)
            ) from error
        where += parts.path
        if not parts.hostname:
            raise InvalidInputError(
                "names no host", where=url_without_secrets(url), hint="https://HOST/PATH"
            )
        if parts.username or parts.password:
            raise InvalidInputError("a URL must not hold credentials", where=where)
        context = tls_context(self._ca)
        opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context),
            urllib.request.ProxyHandler(),
            _NoRedirect(),
        )
        request = urllib.request.Request(  # noqa: S310 - the scheme is https: see read_input
            url, headers={"User-Agent": f"localpuppet/{__version__}", "Accept": "*/*"}
        )
        try:
            with _deadline(self._timeout), opener.open(request, timeout=self._timeout) as answer:
                return _body(answer, limit, where)
        except urllib.error.HTTPError as error:
            raise UnavailableError(f"the server answered {error.code}", where=where) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or str(error) or type(error).__name__
            raise UnavailableError(
                f"cannot be fetched: {reason}", where=where, hint="is the server up, its CA known?"
            ) from error


def _body(answer: http.client.HTTPResponse, limit: int, where: str) -> bytes:
    """Return the whole body: half an input is another input."""
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
def _deadline(seconds: float) -> Iterator[None]:
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
