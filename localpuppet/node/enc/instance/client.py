"""A client for metadata services: plain http to one address, one second a question.

Nothing is resolved, no proxy is asked, no redirect followed: the answer comes from the address that
was meant, or there is none.
"""

import http.client
from collections.abc import Mapping

from localpuppet import __version__
from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.text import one_line
from localpuppet.node.enc.instance.services import HINT, Server
from localpuppet.node.enc.transfer import deadline, whole_body

TIMEOUT = 1.0
PORT = 80
_OURS = {"User-Agent": f"localpuppet/{__version__}"}


class MetadataClient:
    """A client of one metadata service.

    Args:
        server: Where the service is.
        port: Its port.
        timeout: Seconds for one question, from the connection to the last byte.
    """

    def __init__(self, server: Server, *, port: int = PORT, timeout: float = TIMEOUT) -> None:
        self._server = server
        self._port = port
        self._timeout = timeout

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
        source = None if self._server.source is None else (str(self._server.source), 0)
        connection = http.client.HTTPConnection(
            str(self._server.address), self._port, timeout=self._timeout, source_address=source
        )
        try:
            with deadline(self._timeout):
                connection.request(method, path, headers={**_OURS, **(headers or {})})
                with connection.getresponse() as answer:
                    if answer.status == http.HTTPStatus.NOT_FOUND:
                        return None
                    if answer.status != http.HTTPStatus.OK:
                        said = f"the metadata service answered {answer.status}"
                        raise UnavailableError(said, where=where, hint=HINT)
                    return whole_body(answer, limit, where)
        except InvalidInputError as error:
            raise UnavailableError(error.what, where=where, hint=HINT) from error
        except OSError as error:
            reason = one_line(str(error)) or type(error).__name__
            raise UnavailableError(
                f"the metadata service cannot be asked: {reason}", where=where, hint=HINT
            ) from error
        except (ValueError, http.client.HTTPException) as error:
            # What these say repeats the answer.
            raise UnavailableError(
                f"the metadata service does not speak http: {type(error).__name__}",
                where=where,
                hint=HINT,
            ) from error
        finally:
            connection.close()
