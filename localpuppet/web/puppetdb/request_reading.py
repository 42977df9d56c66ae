"""Reads requests: path, parameters and body, within limits.

- As in PuppetDB, a parameter that the endpoint does not have is an error.
- `client_query` parses the query and its paging; this module has the other parameters.
"""

import asyncio
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.json_text import compact
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query.client_query import PARAMETERS
from localpuppet.fleet.inventory.query.syntax import check_values
from localpuppet.web.access.http_limits import MAX_BODIES, MAX_BODY
from localpuppet.web.puppetdb.endpoints import ApiEndpoint

# What PuppetDB has and localpuppet has not; a client may still write that it does not need it.
_UNSUPPORTED = ("explain", "include_facts_expiration", "include_package_inventory")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestParameters:
    """The parameters of a request.

    Attributes:
        pretty: Whether the JSON is indented.
        ast_only: Whether the answer is the query in AST form.
        timeout: Seconds for the answer; `None` for the limit.
    """

    query: Mapping[str, Json]
    pretty: bool
    ast_only: bool
    timeout: float | None
    counts: Mapping[str, Json]

    def digest(self, segments: Sequence[str]) -> bytes:
        """Return a digest of what a question depends on."""
        text = compact([segments, self.query, self.counts])
        return hashlib.sha256(text.encode()).digest()


def from_texts(pairs: Sequence[tuple[str, str]], endpoint: ApiEndpoint) -> RequestParameters:
    """Return the parameters in a query string or a form."""
    texts: dict[str, Json] = {}
    for name, text in pairs:
        if name in texts:
            raise InvalidInputError(f"The query parameter '{name[:40]}' is repeated")
        texts[name] = text
    return from_body(texts, endpoint)


def from_body(values: Json, endpoint: ApiEndpoint) -> RequestParameters:
    """Return the parameters in a JSON body."""
    if not isinstance(values, dict):
        raise InvalidInputError("The body of the request must be a JSON object")
    check_values(values)
    missing = next((name for name in endpoint.required if name not in values), None)
    if missing is not None:
        raise InvalidInputError(f"Missing required query parameter '{missing}'")
    unknown = next((name for name in sorted(values) if name not in endpoint.allowed), None)
    if unknown is not None:
        raise InvalidInputError(f"Unsupported query parameter '{unknown[:40]}'")
    refused = next((name for name in _UNSUPPORTED if values.get(name) not in _OFF), None)
    if refused is not None:
        raise InvalidInputError(f"The query parameter '{refused}' is not supported")
    return RequestParameters(
        query={name: values[name] for name in PARAMETERS if name in values},
        pretty=_flag(values.get("pretty")),
        ast_only=_flag(values.get("ast_only")),
        timeout=_timeout(values.get("timeout")),
        counts={name: values[name] for name in endpoint.counts if name in values},
    )


_OFF = (None, False, "false", "")


def _flag(value: Json) -> bool:
    return str(value).lower() == "true"


def _timeout(value: Json) -> float | None:
    if value is None:
        return None
    try:
        seconds = float(str(value))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise InvalidInputError(f"Query timeout must be non-negative number, not {str(value)[:40]}")
    return seconds or None


# Seconds for the body of a request.
BODY_PATIENCE = 10.0
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
        """Return the parameters of a request."""
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
    """Return the decoded segments of a path below a prefix."""
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
