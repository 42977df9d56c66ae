"""Gets documents and archives of a forge over HTTPS, and resumes interrupted downloads.

This module decides which errors are retried, and what a status means. Trust, redirects, proxies,
deadlines and the receivers of the token follow `base.http`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from localpuppet.base import http
from localpuppet.base.errors import IntegrityError, UnavailableError
from localpuppet.base.formats.text import url_without_secrets
from localpuppet.node.releases.forge.archive import LIMITS

MAX_DOCUMENT = 16 * 1024 * 1024
MAX_REDIRECTS = 5
ATTEMPTS = 3

_Received = TypeVar("_Received")


class MissingError(Exception):
    """The server has no document of that name."""


@dataclass(slots=True, eq=False, kw_only=True)
class Transfer:
    """Gets documents and files of a forge.

    Attributes:
        url: Its URL, without a slash at the end.
        ca: PEM file with the trusted authorities; `None` for the system's.
        proxy: The proxy's URL; `None` for the one in the environment.
        token: Sent to the forge's own origin; empty for none.
        timeout: Seconds without a byte.
        total: Seconds for one document or archive.
        public: Whether it is asked for what everybody can read, at public addresses only.
    """

    url: str
    ca: Path | None
    proxy: str | None
    token: str = field(repr=False)
    timeout: float
    total: float
    public: bool = False
    _client: http.HttpClient = field(init=False)

    def __post_init__(self) -> None:
        route = http.HttpRoute(ca=self.ca, proxy=self.proxy, public=self.public)
        self._client = http.HttpClient(route)

    def document(self, url: str) -> bytes:
        """Return a document.

        Raises:
            MissingError: The server does not have it.
            UnavailableError: The server sends no answer in time, is not trusted, or answers with
                another status.
            IntegrityError: The document is larger than 16 MiB.
            InvalidInputError: The URL or the CA file is refused.
        """

        def receive(deadline: http.Deadline) -> bytes:
            with self._open(url, deadline) as answer:
                _refuse_status(answer.status, url)
                return answer.body(MAX_DOCUMENT)

        return self._attempt(receive, url)

    def file(self, url: str, part: Path) -> None:
        """Download a file; the bytes that are in `part` already are not requested again.

        Raises:
            MissingError: The server does not have it.
            UnavailableError: The download stays incomplete.
            IntegrityError: The file is larger than an archive may be.
            InvalidInputError: The URL or the CA file is refused.
        """

        def receive(deadline: http.Deadline) -> None:
            start = part.stat().st_size if part.exists() else 0
            with self._open(url, deadline, start=start) as answer:
                if answer.status == 416 and start:
                    part.unlink()  # it is complete, or of another file
                    raise http.HttpError("the forge rejected the range of a resumed download")
                _refuse_status(answer.status, url)
                resumed = answer.status == 206
                with part.open("ab" if resumed else "wb") as file:
                    for chunk in answer.chunks(LIMITS.file - (start if resumed else 0)):
                        file.write(chunk)

        self._attempt(receive, url)

    def _open(
        self, url: str, deadline: http.Deadline, *, start: int = 0
    ) -> AbstractContextManager[http.HttpAnswer]:
        request = http.HttpRequest(
            url=url,
            headers={"Range": f"bytes={start}-"} if start else {},
            token=self.token,
            token_url=self.url,
            redirects=MAX_REDIRECTS,
        )
        return self._client.open(request, deadline)

    def _attempt(self, receive: Callable[[http.Deadline], _Received], url: str) -> _Received:
        """Return the result of `receive`; retry after a broken connection."""
        where = url_without_secrets(url)
        deadline = http.Deadline(self.total, silence=self.timeout)
        for left in reversed(range(ATTEMPTS)):
            try:
                return receive(deadline)
            except http.BodyTooLargeError as error:
                raise IntegrityError("is too large", where=where) from error
            except http.HttpError as error:
                if left == 0:
                    raise UnavailableError(
                        f"cannot be downloaded: {error}",
                        where=where,
                        hint="check 'forge: {url, ca, proxy}' in localpuppet.yaml",
                    ) from error
        raise AssertionError("the last attempt raises")


def _refuse_status(status: int, url: str) -> None:
    """Raise the error of a status without a body; server errors may be retried."""
    if status in (200, 206):
        return
    if status in (404, 410):
        raise MissingError
    problem = f"the forge answered {status}"
    if status >= 500:
        raise http.HttpError(problem)
    hint = "'forge: {token_file: FILE}' in localpuppet.yaml names its token"
    raise UnavailableError(
        problem, where=url_without_secrets(url), hint=hint if status in (401, 403) else ""
    )
