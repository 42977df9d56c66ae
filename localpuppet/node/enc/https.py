"""Fetching a document over https: size and time are bounded, the server's name is verified."""

import http.client
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from localpuppet import __version__
from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.text import url_without_secrets
from localpuppet.base.machine.anchors import tls_context
from localpuppet.node.enc.transfer import deadline, whole_body


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect could lead to another host or to plain http; the site names the right URL."""

    def redirect_request(self, *_args: object, **_keywords: object) -> None:
        return None


class Https:
    """An https client.

    Args:
        ca: PEM file with the authorities to trust; `None` for the system's.
        timeout: Seconds for the whole transfer.
        certificate: The client's certificate and its key; `None` to show none.
    """

    def __init__(
        self, *, ca: Path | None, timeout: float, certificate: tuple[Path, Path] | None = None
    ) -> None:
        self._ca = ca
        self._timeout = timeout
        self._certificate = certificate or ()

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
        context = tls_context(self._ca, *self._certificate)
        opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context),
            urllib.request.ProxyHandler(),
            _NoRedirect(),
        )
        request = urllib.request.Request(  # noqa: S310 - the scheme is https: see who calls
            url, headers={"User-Agent": f"localpuppet/{__version__}", "Accept": "*/*"}
        )
        try:
            with deadline(self._timeout), opener.open(request, timeout=self._timeout) as answer:
                return whole_body(answer, limit, where)
        except urllib.error.HTTPError as error:
            raise UnavailableError(f"the server answered {error.code}", where=where) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or str(error) or type(error).__name__
            raise UnavailableError(
                f"cannot be fetched: {reason}", where=where, hint="is the server up, its CA known?"
            ) from error
