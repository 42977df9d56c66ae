"""Requests to other nodes, shared by the verbs that have `--node`."""

import asyncio
import math
from collections.abc import Sequence
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Any

from localpuppet.cli import render
from localpuppet.cli.addressing import PATIENCE
from localpuppet.cli.progress import shown, whom
from localpuppet.cli.wiring import Parts
from localpuppet.errors import LocalpuppetError
from localpuppet.model.names import NodeName

if TYPE_CHECKING:
    from localpuppet.cli.fleet import FleetParts
    from localpuppet.key_value import KeyValue
    from localpuppet.model.request import Arguments

AT_ONCE = 50


def ask_nodes(
    parts: Parts,
    nodes: Sequence[str],
    action: str,
    args: "Arguments",
    *,
    as_json: bool,
    patience: float = PATIENCE,
) -> int:
    """Ask nodes for something, show what each answered, and return the exit code.

    A node that does not answer is an answer of its own: it is shown, and the exit code is 69; one
    that refuses makes it 1.

    Raises:
        UnavailableError: The bus cannot be asked.
    """
    from localpuppet.cli.fleet import FleetParts, run

    names = [NodeName.parse(name) for name in dict.fromkeys(nodes)]
    fleet = FleetParts(parts)
    observer = render.observer(quiet=as_json, title=f"asking {whom(names)}")

    async def ask() -> dict[str, dict[str, Any]]:
        async with shown(observer):
            return await _ask_all(fleet, names, action, args, patience)

    replies = run(ask())
    if as_json:
        render.emit_json({"schema": 1, "action": action, "replies": replies})
    else:
        for name, reply in replies.items():
            _show(name, action, reply, parts.clock.now())
    if any(reply.get("silent") for reply in replies.values()):
        return 69
    return 0 if all(reply["ok"] for reply in replies.values()) else 1


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
    from localpuppet import bus, reception

    clock = fleet.parts.clock
    life = max(reception.LIFE, math.ceil(patience))
    request, token = reception.ask(fleet.signer, node, action, args, clock=clock, life=life)
    problem = "did not answer in time: is its agent running? ('localpuppet nodes')"
    replies = bus.ask(kv, token, caller=fleet.signer.name, node=node, request=request.jti, ttl=life)
    try:
        async with asyncio.timeout(patience), aclosing(replies) as tokens:
            async for answer in tokens:
                try:
                    reply = reception.read_answer(fleet.verifier, answer, request, clock=clock)
                except LocalpuppetError as error:
                    problem = f"something answered that is not to be believed: {error}"
                    continue
                return {"ok": reply.ok, "result": dict(reply.result), "error": reply.error}
    except TimeoutError:
        return {"ok": False, "silent": True, "result": {}, "error": problem}
    return {"ok": False, "silent": True, "result": {}, "error": problem}


def _show(name: str, action: str, reply: dict[str, Any], now: datetime) -> None:
    if not reply["ok"]:
        render.say(f"{name}: {render.word('failed')}: {render.user_text(reply['error'])}", err=True)
        return
    from localpuppet.cli.replies import told

    word, lines = told(action, reply["result"], now)
    render.emit(f"{name}: {word}")
    for line in lines.splitlines():
        render.emit(f"  {line}")
