"""Puts an access rule in front of an ASGI application."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localpuppet.web.access.rules import (
    HEADERS,
    METHODS,
    TWO_LENGTHS,
    AccessRefusal,
    AccessRule,
    Visitor,
)


@dataclass(frozen=True, slots=True)
class AccessMiddleware:
    """Rejects requests that the access rule refuses, and adds headers to each response.

    Attributes:
        shown: The application behind the access rule.
        door: The access rule.
        refused: Returns the response to a refused request.
    """

    shown: ASGIApp
    door: AccessRule
    refused: Callable[[AccessRefusal], Response]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; there are no web sockets."""
        if scope["type"] == "lifespan":
            await self.shown(scope, receive, send)
        if scope["type"] != "http":
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": _with(message["headers"])}
            await send(message)

        visitor = Visitor.of(scope)
        if {"content-length", "transfer-encoding"} <= visitor.headers.keys():
            answer = self.refused(TWO_LENGTHS)
            answer.headers["connection"] = "close"
            await answer(scope, receive, sending)
            return
        refusal = self.door.refusal(scope["method"], scope["path"], visitor)
        if refusal is None:
            await self.shown(scope, receive, sending)
            return
        answer = self.refused(refusal)
        if refusal.code == 405:
            answer.headers["allow"] = ", ".join(METHODS)
        await answer(scope, receive, sending)


def _with(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return headers, with the headers of every response that they lack."""
    there = {name.lower() for name, _ in headers}
    ours: Mapping[str, str] = HEADERS
    return headers + [
        (name.encode(), value.encode())
        for name, value in ours.items()
        if name.encode() not in there
    ]
