"""Asks nodes, many at a time, and returns what each of them answered."""

import asyncio
import math
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from localpuppet.errors import LocalpuppetError
from localpuppet.formats.names import NodeName

if TYPE_CHECKING:
    from localpuppet.bus.key_value import KeyValue
    from localpuppet.requests.request import Arguments
    from localpuppet.wiring.fleet import FleetParts


AT_ONCE = 50


async def _ask_all(
    fleet: "FleetParts",
    names: Sequence[NodeName],
    action: str,
    args: "Arguments",
    patience: float,
) -> dict[str, dict[str, Any]]:
    kv = await fleet.connect()
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(name: NodeName) -> dict[str, Any]:
        async with slots:
            return await _ask(fleet, kv, name, action, args, patience)

    try:
        found = await asyncio.gather(*(one(name) for name in names))
        return {str(name): reply for name, reply in zip(names, found, strict=True)}
    finally:
        await kv.close()


async def _ask(
    fleet: "FleetParts",
    kv: "KeyValue",
    node: NodeName,
    action: str,
    args: "Arguments",
    patience: float,
) -> dict[str, Any]:
    from localpuppet.requests import exchange, messages

    clock = fleet.parts.clock
    life = max(messages.LIFE, math.ceil(patience))
    request, token = messages.ask(fleet.signer, node, action, args, clock=clock, life=life)
    problem = "did not answer in time: is its agent running? ('localpuppet nodes')"
    replies = exchange.ask(
        kv, token, caller=fleet.signer.name, node=node, request=request.jti, ttl=life
    )
    try:
        async with asyncio.timeout(patience), aclosing(replies) as tokens:
            async for answer in tokens:
                try:
                    reply = messages.read_answer(fleet.verifier, answer, request, clock=clock)
                except LocalpuppetError as error:
                    problem = f"something answered that is not to be believed: {error}"
                    continue
                return {"ok": reply.ok, "result": dict(reply.result), "error": reply.error}
    except TimeoutError:
        return {"ok": False, "silent": True, "result": {}, "error": problem}
    return {"ok": False, "silent": True, "result": {}, "error": problem}
