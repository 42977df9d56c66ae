"""Fetching an input over https: size and time are bounded, the server's name is verified."""

import contextlib
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from localpuppet import __version__
from localpuppet.errors import InvalidInputError, UnavailableError


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
            InvalidInputError: The URL holds credentials, or the body is larger than `limit` bytes.
            UnavailableError: No answer in time, no trust in the server, or another status than 200.
        """
        parts = urllib.parse.urlsplit(url)
        where = f"{parts.scheme}://{parts.hostname}{parts.path}"
        if parts.username or parts.password:
            raise InvalidInputError("a URL must not hold credentials", where=where)
        deadline = time.monotonic() + self._timeout
        try:
            context = ssl.create_default_context(cafile=self._ca)
        except OSError as error:
            raise InvalidInputError(
                f"cannot be read: {error.strerror or error}", where=str(self._ca)
            ) from error
        opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context),
            urllib.request.ProxyHandler(),
            _NoRedirect(),
        )
        request = urllib.request.Request(  # noqa: S310 - the scheme is https: see Inputs.read
            url, headers={"User-Agent": f"localpuppet/{__version__}", "Accept": "*/*"}
        )
        body = bytearray()
        try:
            with contextlib.closing(opener.open(request, timeout=self._timeout)) as answer:
                while chunk := answer.read1(65536):
                    body += chunk
                    if len(body) > limit:
                        raise InvalidInputError(
                            f"is too large: the limit is {limit} bytes", where=where
                        )
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"no end after {self._timeout:g} s")
        except urllib.error.HTTPError as error:
            raise UnavailableError(f"the server answered {error.code}", where=where) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise UnavailableError(
                f"cannot be fetched: {reason}", where=where, hint="is the server up, its CA known?"
            ) from error
        return bytes(body)
