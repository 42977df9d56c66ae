"""Gets documents over https by the rules of `base.http`, without redirects.

A redirect could lead to another host; the site names the right URL.
"""

from pathlib import Path

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.text import url_without_secrets


class Https:
    """An https client.

    Args:
        ca: PEM file with the trusted authorities; `None` for the system's.
        timeout: Seconds for the whole exchange.
        certificate: The client's certificate and its key; `None` for no client certificate.
    """

    def __init__(
        self, *, ca: Path | None, timeout: float, certificate: tuple[Path, Path] | None = None
    ) -> None:
        self._ca = ca
        self._timeout = timeout
        self._certificate = certificate

    def get(self, url: str, *, limit: int) -> bytes:
        """Return the body of `url`.

        Raises:
            InvalidInputError: The URL or the CA file is refused, or the body is larger than `limit`
                bytes.
            UnavailableError: The server sends no answer in time, is not trusted, or answers with a
                status other than 200.
        """
        from localpuppet.base import http  # 40 ms that a local input must not pay

        where = url_without_secrets(url)
        client = http.HttpClient(http.HttpRoute(ca=self._ca, certificate=self._certificate))
        try:
            with client.open(http.HttpRequest(url=url), http.Deadline(self._timeout)) as answer:
                if answer.status != 200:
                    raise UnavailableError(f"the server answered {answer.status}", where=where)
                return answer.body(limit)
        except http.BodyTooLargeError as error:
            raise InvalidInputError(str(error), where=where) from error
        except http.HttpError as error:
            raise UnavailableError(
                f"cannot be downloaded: {error}",
                where=where,
                hint="check that the server is up and its CA is trusted",
            ) from error
