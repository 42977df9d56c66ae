"""HTTPS as a forge needs it: documents, and archives that are resumed where they broke off.

Owns: trust, redirects, proxies, deadlines, where the token may go. Invariants: the token goes to
the forge's own origin alone, also after a redirect; a plain http URL is never asked.
"""

import http.client
import socket
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPMessage
from pathlib import Path
from typing import IO

from localpuppet import __version__
from localpuppet.base.errors import IntegrityError, InvalidInputError, UnavailableError
from localpuppet.base.formats.text import url_without_secrets
from localpuppet.base.machine.anchors import tls_context
from localpuppet.node.releases.forge.archive import LIMITS

MAX_DOCUMENT = 16 * 1024 * 1024
MAX_REDIRECTS = 5
ATTEMPTS = 3
CHUNK = 256 * 1024


class MissingError(Exception):
    """The server says that there is nothing of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a forge is reached.

    Attributes:
        url: Its URL, without a slash at the end.
        ca: PEM file with the authorities to trust; `None` for the system's.
        proxy: The proxy's URL; `None` for what the environment says.
        token: Sent to the forge's own origin; empty for none.
        timeout: Seconds without a byte.
        total: Seconds for one document or archive.
    """

    url: str
    ca: Path | None
    proxy: str | None
    token: str = field(repr=False)
    timeout: float
    total: float


def origin(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port of a URL.

    Raises:
        ValueError: The text is not a URL.
    """
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or 443


def is_https(url: str) -> bool:
    """Return whether a text is an https URL with a host, and a port that there can be."""
    try:
        return origin(url)[0] == "https" and bool(origin(url)[1])
    except ValueError:
        return False


class _Connection(http.client.HTTPSConnection):
    """A connection that ends after so many seconds, however slowly server or proxy go on.

    A timeout of a socket begins anew with each byte: of a proxy's answer, of headers. A second
    descriptor of the socket can end both; TLS takes the first one over in between.
    """

    def __init__(self, host: str, *, timeout: float, context: ssl.SSLContext, total: float) -> None:
        super().__init__(host, timeout=timeout, context=context)
        self._total = total
        self._create_connection = self._bounded  # what connect() calls for the plain socket
        self._let_go: Callable[[], None] = lambda: None

    def connect(self) -> None:
        connected = False
        try:
            super().connect()
            connected = True
        finally:
            if not connected:
                self._let_go()
        weakref.finalize(self.sock, self._let_go)  # when the answer was read, or is given up

    def _bounded(
        self, address: tuple[str, int], timeout: float, source: tuple[str, int] | None
    ) -> socket.socket:
        found = socket.create_connection(address, timeout, source)
        twin = found.dup()
        end = threading.Timer(self._total, _cut, [twin])
        end.daemon = True
        end.start()
        self._let_go = partial(_let_go, end, twin)
        return found


def _cut(twin: socket.socket) -> None:
    """Have whoever reads from a socket see its end."""
    with suppress(OSError):  # it has ended by itself
        twin.shutdown(socket.SHUT_RDWR)


def _let_go(end: threading.Timer, twin: socket.socket) -> None:
    end.cancel()
    twin.close()


class _Handler(urllib.request.HTTPSHandler):
    """Opens such connections."""

    def __init__(self, context: ssl.SSLContext, total: float) -> None:
        super().__init__()
        self._connection = partial(_Connection, total=total, context=context)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects over https; the token comes along to the forge's own origin only."""

    max_redirections = MAX_REDIRECTS

    def __init__(self, access: Access) -> None:
        self._access = access

    def http_error_302(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage
    ) -> object:
        fp.close()  # urllib would read the body to its end, and it need not have one
        try:
            return super().http_error_302(req, fp, code, msg, headers)
        except ValueError as error:  # a host without an end
            raise urllib.error.URLError("it redirects to a URL that is malformed") from error

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if not is_https(newurl):
            raise urllib.error.URLError("it redirects to something that is not https")
        found = super().redirect_request(req, fp, code, msg, headers, newurl)
        if found is not None:
            # urllib copies it, also to a server that no proxy stands before.
            found.remove_header("Proxy-authorization")
            _authorize(found, self._access)
        return found


def _authorize(request: urllib.request.Request, access: Access) -> None:
    # An unredirected header: urllib does not copy it to where a redirect leads.
    if access.token and origin(request.full_url) == origin(access.url):
        request.add_unredirected_header("Authorization", f"Bearer {access.token}")


class Transfer:
    """Gets documents and files.

    Args:
        access: How the forge is reached.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        proxies = {"https": access.proxy} if access.proxy else None
        self._opener = urllib.request.build_opener(
            _Handler(tls_context(access.ca), access.total),
            urllib.request.ProxyHandler(proxies),
            _Redirects(access),
        )

    def document(self, url: str) -> bytes:
        """Return a document.

        Raises:
            MissingError: The server has none.
            UnavailableError: No answer in time, no trust in the server, or another status.
            IntegrityError: It is larger than 16 MiB.
        """
        deadline = time.monotonic() + self._access.total
        for left in reversed(range(ATTEMPTS)):
            self._refuse_late(deadline, url)
            try:
                with self._open(url, start=0) as answer:
                    body = b"".join(self._chunks(answer, deadline, MAX_DOCUMENT, url))
                    if answer.length:
                        raise http.client.IncompleteRead(b"")
                    return body
            except (OSError, http.client.HTTPException) as error:
                _give_up(error, url, last=left == 0)
        raise AssertionError("the last attempt raises")

    def file(self, url: str, part: Path) -> None:
        """Bring a file; what is in `part` already is not asked for again.

        Raises:
            MissingError: The server has none.
            UnavailableError: It could not be had whole.
            IntegrityError: It is larger than an archive may be.
        """
        deadline = time.monotonic() + self._access.total
        for left in reversed(range(ATTEMPTS)):
            self._refuse_late(deadline, url)
            try:
                self._continue(url, part, deadline)
            except (OSError, http.client.HTTPException) as error:
                _give_up(error, url, last=left == 0)
            else:
                return

    def _continue(self, url: str, part: Path, deadline: float) -> None:
        start = part.stat().st_size if part.exists() else 0
        try:
            answer = self._open(url, start=start)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 416 or not start:
                raise
            part.unlink()  # nothing is left of it there: is it whole, or another file now?
            start = 0
            answer = self._open(url, start=0)
        with answer, part.open("ab" if answer.status == 206 else "wb") as file:
            limit = LIMITS.file - (start if answer.status == 206 else 0)
            for chunk in self._chunks(answer, deadline, limit, url):
                file.write(chunk)
            if answer.length:
                raise http.client.IncompleteRead(b"")

    def _open(self, url: str, *, start: int) -> http.client.HTTPResponse:
        if not is_https(url):
            raise InvalidInputError("is not an https URL", where=url_without_secrets(url))
        headers = {"User-Agent": f"localpuppet/{__version__}", "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - https: see above
        _authorize(request, self._access)
        answer: http.client.HTTPResponse = self._opener.open(request, timeout=self._access.timeout)
        return answer

    def _chunks(
        self, answer: http.client.HTTPResponse, deadline: float, limit: int, url: str
    ) -> Iterator[bytes]:
        """Yield the body of an answer, piece by piece, within its limits."""
        while chunk := answer.read1(CHUNK):
            limit -= len(chunk)
            if limit < 0:
                raise IntegrityError("is too large", where=url_without_secrets(url))
            yield chunk
            self._refuse_late(deadline, url)
        self._refuse_late(deadline, url)

    def _refuse_late(self, deadline: float, url: str) -> None:
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"did not come within {self._access.total:g} s", where=url_without_secrets(url)
            )


def _give_up(error: Exception, url: str, *, last: bool) -> None:
    """Raise what cannot be helped by asking again; return where that may help."""
    where = url_without_secrets(url)
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        if error.code in (404, 410):
            raise MissingError from error
        if error.code in (401, 403):
            raise UnavailableError(
                f"the forge answered {error.code}",
                where=where,
                hint="'forge: {token_file: FILE}' in localpuppet.yaml names its token",
            ) from error
        if error.code < 500 or last:
            raise UnavailableError(f"the forge answered {error.code}", where=where) from error
        return
    if last or isinstance(getattr(error, "reason", error), ssl.SSLCertVerificationError):
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        if isinstance(error, http.client.IncompleteRead):
            reason = "the connection broke again and again"
        raise UnavailableError(
            f"cannot be fetched: {reason}",
            where=where,
            hint="is the forge up, its CA known, a proxy needed?",
        ) from error
