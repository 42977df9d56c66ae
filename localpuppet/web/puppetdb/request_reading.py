"""Reads requests: the segments of the path, and the parameters in the query string or the body."""

import asyncio
import re
from collections.abc import Sequence
from urllib.parse import parse_qsl, unquote

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.strict_json import loads
from localpuppet.web.puppetdb.endpoints import ApiEndpoint
from localpuppet.web.puppetdb.parameters import RequestParameters, from_body, from_texts

# The limit of a request's body in bytes, of seconds for it, and of bodies at once.
MAX_BODY = 512 * 1024
BODY_PATIENCE = 10.0
MAX_BODIES = 32
_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"
_REFUSED = re.compile(r"q=0(\.0*)?\Z")


class RequestReading:
    """Reads the parameters of requests, of limited size and in limited time.

    Args:
        patience: Seconds for the body of a request.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._bodies = asyncio.Semaphore(MAX_BODIES)

    async def parameters(self, request: Request, endpoint: ApiEndpoint) -> RequestParameters:
        """Return the parameters of a request.

        Raises:
            HTTPException: The client, or the form of its request, is not acceptable.
            InvalidInputError: A parameter is wrong.
        """
        accepted = request.headers.get("accept")
        if accepted is not None and listed(accepted).isdisjoint(("*/*", "application/*", _JSON)):
            raise HTTPException(406, f"must accept {_JSON}")
        kind = request.headers.get("content-type", _JSON).partition(";")[0].strip().lower()
        if request.method == "POST" and kind not in (_JSON, _FORM):
            raise HTTPException(415, f"content type {kind[:40]} not supported")
        coding = request.headers.get("content-encoding", "identity").lower()
        if coding != "identity":  # a small body may have a large content
            raise HTTPException(415, f"content encoding {coding[:40]} not supported")
        if kind == _FORM:
            # Clients that use puppetdb-ruby send the parameters of a GET as a form in its body.
            form = (await self._body(request)).decode("utf-8", "replace")
            return from_texts([*_pairs(request.url.query), *_pairs(form)], endpoint)
        if request.method != "POST":
            return from_texts(_pairs(request.url.query), endpoint)
        try:
            values = loads(await self._body(request))
        except ValueError as error:
            raise InvalidInputError(f"Malformed JSON in the body: {error}") from error
        return from_body(values, endpoint)

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        try:
            async with asyncio.timeout(self._patience), self._bodies:
                async for part in request.stream():
                    body += part
                    if len(body) > MAX_BODY:
                        raise HTTPException(413, f"the body has more than {MAX_BODY} bytes")
        except (TimeoutError, ClientDisconnect) as error:
            raise HTTPException(408, "the body did not arrive in time") from error
        return bytes(body)


def segments_below(prefix: str, request: Request) -> list[str]:
    """Return the decoded segments of a path below a prefix.

    Raises:
        HTTPException: The path is not UTF-8.
    """
    raw = request.scope.get("raw_path") or request.scope["path"].encode()
    path = raw.decode("latin-1").partition("?")[0]
    try:
        segments = [unquote(item, errors="strict") for item in path.removeprefix(prefix).split("/")]
    except UnicodeDecodeError as error:
        raise HTTPException(400, "The path is not UTF-8") from error
    return segments[:-1] if segments[-1:] == [""] and len(segments) > 1 else segments


def listed(header: str) -> set[str]:
    """Return what a header such as `Accept-Encoding` accepts, in lower case."""
    parts = (part.lower().replace(" ", "").partition(";") for part in header.split(","))
    return {name for name, _, quality in parts if not _REFUSED.match(quality)}


def _pairs(text: str) -> Sequence[tuple[str, str]]:
    try:
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=50)
    except ValueError as error:
        raise InvalidInputError(f"Malformed query string: {error}") from error
