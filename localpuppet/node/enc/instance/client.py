"""A client for metadata services: plain http to one address, one second for each request.

The client resolves no name, uses no proxy and follows no redirect: only the intended address can
answer.
"""

from collections.abc import Mapping

from localpuppet.base import http
from localpuppet.base.errors import UnavailableError
from localpuppet.node.enc.instance.services import HINT, MetadataServer

TIMEOUT = 1.0
PORT = 80


class MetadataClient:
    """A client of one metadata service.

    Args:
        server: The service's address.
        port: Its port.
        timeout: Seconds for one request, from the connection to the last byte.
    """

    def __init__(
        self, server: MetadataServer, *, port: int = PORT, timeout: float = TIMEOUT
    ) -> None:
        self._server = server
        self._port = port
        self._timeout = timeout
        source = "" if server.source is None else str(server.source)
        self._client = http.HttpClient(http.HttpRoute(proxy=http.DIRECT, plain=True, source=source))

    def ask(
        self,
        path: str,
        *,
        limit: int,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
    ) -> bytes | None:
        """Return the body at `path`; see `node.enc.instance.services.Metadata`."""
        where = f"http://{self._server.address}{path}"
        url = f"http://{self._server.address}:{self._port}{path}"
        request = http.HttpRequest(url=url, method=method, headers=headers or {})
        try:
            with self._client.open(request, http.Deadline(self._timeout)) as answer:
                if answer.status == 404:
                    return None
                if answer.status != 200:
                    problem = f"the metadata service answered {answer.status}"
                    raise UnavailableError(problem, where=where, hint=HINT)
                return answer.body(limit)
        except http.HttpError as error:
            raise UnavailableError(
                f"the metadata service cannot be asked: {error}", where=where, hint=HINT
            ) from error
