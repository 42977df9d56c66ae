"""Receives deliveries: `POST /hooks/NAME`, signed over the raw bytes.

- Nothing of a body is parsed or kept: a delivery only says that a source has something new.
- An unknown name and a wrong signature have the same answer, after the same work.
- A proxy may be in front: no rule depends on the host or on the client's address.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from localpuppet.base.bounded_dict import BoundedDict
from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.machine.ports import Clock, LineKind, Log
from localpuppet.web.access import rules
from localpuppet.web.access.http_limits import MAX_DELIVERIES, MAX_DELIVERY
from localpuppet.web.access.serving import ConnectionLimits
from localpuppet.web.hooks.hook_settings import HookSettings, is_signed

# Requests a second, and at once after a pause; seconds for a body.
RATE, BURST = 100.0, 300.0
BODY_PATIENCE = 10.0
CONNECTIONS = ConnectionLimits(most=100)
_PATH = re.compile(r"/hooks/[a-z0-9][a-z0-9_-]{0,39}")
_NOT_HERE = rules.AccessRefusal(code=404, what="Not found.", hint="Send POST to /hooks/NAME.")
_ANSWERS = {
    202: "accepted",
    401: "the name or the signature is wrong",
    408: "the body did not arrive in time",
    413: "the body is too large",
}


@dataclass(slots=True, eq=False)
class HookReceiver:
    """Verifies deliveries, and passes the names of hooks on whose source should be looked at."""

    hooks: Mapping[str, HookSettings]
    deliver: Callable[[str], None]
    clock: Clock
    log: Log
    patience: float = BODY_PATIENCE
    refused: int = field(default=0, init=False)
    _seen: BoundedDict[bytes, str] = field(
        default_factory=lambda: BoundedDict(MAX_DELIVERIES), init=False
    )

    def application(self) -> ASGIApp:
        """Return the application; one rate limits all deliveries."""
        routes = [Route("/hooks/{name}", self.receive, methods=["POST"])]
        rate = rules.RateLimit(RATE, BURST, self.clock.monotonic)

        def refusal(method: str, path: str, _: rules.Visitor) -> rules.AccessRefusal | None:
            if not rate.take():
                return rules.TOO_MANY
            return None if method == "POST" and _PATH.fullmatch(path) else _NOT_HERE

        return rules.AccessMiddleware(Starlette(routes=routes), refusal, _rejected)

    def forget(self, name: str) -> None:
        """Take deliveries of a hook again that were taken before: what they led to has failed."""
        for digest in [digest for digest, known in self._seen.items() if known == name]:
            del self._seen[digest]

    async def receive(self, request: Request) -> Response:
        """Take a delivery; the answer does not wait for what it leads to."""
        name, headers = request.path_params["name"], rules.Visitor.of(request.scope).headers
        try:
            async with asyncio.timeout(self.patience):
                body = await _body(request, headers.get("content-length", ""))
        except (TimeoutError, ClientDisconnect):
            return self._refuse(408)
        if body is None:
            return self._refuse(413)
        known, digest = await asyncio.to_thread(self._verify, name, headers, body)
        if not known:
            return self._refuse(401)
        if digest not in self._seen:
            self._seen[digest] = name
            self.deliver(name)
        return PlainTextResponse(f"{_ANSWERS[202]}\n", 202)

    def _verify(self, name: str, headers: Mapping[str, str], body: bytes) -> tuple[bool, bytes]:
        """Return whether a delivery is genuine, and what is the same if it is repeated."""
        # Another hook's secret for an unknown name: it takes the same time.
        hook = self.hooks.get(name) or next(iter(self.hooks.values()))
        try:
            good = is_signed(
                hook.type, hook.secret(), headers, body, now=self.clock.now().timestamp()
            )
        except LocalpuppetError as error:
            line = f"hook {name}: {error}" if name in self.hooks else str(error)
            self.log.warning(line, kind=LineKind.STRANGER)  # anyone can cause it
            good = False
        identity = headers.get("webhook-id", "") if hook.type.signs_time else ""
        digest = sha256(f"{name} {identity} ".encode() + body).digest()
        return good and name in self.hooks, digest

    def _refuse(self, code: int) -> Response:
        self.refused += 1
        self.log.info(f"refused a delivery: {_ANSWERS[code]}", kind=LineKind.STRANGER)
        # The rest of a body is not read.
        headers = {} if code == 401 else {"connection": "close"}
        return PlainTextResponse(f"{_ANSWERS[code]}\n", code, headers)


async def _body(request: Request, length: str) -> bytes | None:
    """Return the body of a request; `None` if it is too large."""
    if int(length or 0) > MAX_DELIVERY:  # the server has checked that it is a number
        return None
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_DELIVERY:
            return None
    return bytes(body)


def _rejected(refusal: rules.AccessRefusal) -> Response:
    return PlainTextResponse(f"{refusal.what} {refusal.hint}\n", refusal.code)
