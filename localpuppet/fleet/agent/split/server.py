"""The run side's server for the network side, which is another process of another user.

- A line only names messages. The run side reads each from the spool, verifies it, admits it and
  checks it for repetition, as if it came from the bus.
- The answer to any line is a line. Only an error of the local disk ends the agent.
- The adapter of the socket admits the network side's user only.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from localpuppet.base.errors import LocalpuppetError, StateError
from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.base.machine.waiting import wait_first
from localpuppet.fleet.agent.run_side import RunSide
from localpuppet.fleet.agent.split.protocol import MessageId, RequestKind, SplitMessage

# Seconds between two lines to a follower, to detect a follower that is gone.
PULSE = 20.0

Read = Callable[[MessageId], bytes]


class RunSideServer:
    """Answers the network side.

    Args:
        side: The run side.
        read: Returns a message of the spool.
        key: This node's public key as PEM, which the network side needs to recognise the node's own
            messages; `None` with a certificate.
        log: The agent's log, for rejected messages.
    """

    def __init__(self, side: RunSide, *, read: Read, key: str | None, log: Log) -> None:
        self._side = side
        self._read = read
        self._key = key
        self._log = log
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed = side.subscribe()
        self._follower = 0

    async def answer(self, line: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the lines that answer a line."""
        try:
            question = SplitMessage.parse(line)
            if question.verb is RequestKind.FOLLOW:
                async with aclosing(self._follow()) as changes:
                    async for _ in changes:
                        yield _line({"ok": True})
                return
            reply = await self._answer(question)
        except LocalpuppetError as error:
            self._log.warning(f"refused the network side: {error}", kind=LineKind.SERVICE)
            reply = {"ok": False, "error": one_line(str(error))}
        yield _line(reply)

    async def guard(self) -> None:
        """Wait until a message could not be written to disk.

        Raises:
            StateError: A write failed; the agent must end, because it could lose messages.
        """
        await self._failed

    async def _answer(self, question: SplitMessage) -> dict[str, Any]:
        if question.verb is RequestKind.HELLO:
            return {"ok": True, "node": str(self._side.me), "key": self._key}
        if question.verb is RequestKind.DESCRIBE:
            return {"ok": True, "token": (await self._side.describe()).decode("ascii")}
        if question.verb is RequestKind.CONTENDED:
            await self._side.contended()
            return {"ok": True}
        if question.verb is RequestKind.SERVE:
            return {"ok": True, "reply": await self._serve(question.ids[0])}
        return {"ok": True, "refused": await self._receive(question.ids)}

    async def _receive(self, ids: Sequence[MessageId]) -> dict[str, str]:
        tokens, refused = [], {}
        for identifier in ids:
            try:
                tokens.append(self._read(identifier))
            except LocalpuppetError as error:
                self._log.warning(
                    f"refused a message of the network side: {error}", kind=LineKind.STRANGER
                )
                refused[str(identifier)] = one_line(str(error))
        try:
            await self._side.hear(tokens)
        except StateError as error:
            if not self._failed.done():
                self._failed.set_exception(error)
            raise
        return refused

    async def _serve(self, identifier: MessageId) -> dict[str, str] | None:
        answer = await self._side.serve(self._read(identifier))
        if answer is None:
            return None
        caller, request, token = answer
        return {"caller": caller, "request": request, "token": token.decode("ascii")}

    async def _follow(self) -> AsyncGenerator[None, None]:
        """Yield on each change. A new follower replaces the previous one."""
        self._follower += 1
        mine = self._follower
        self._changed.set()
        while mine == self._follower:
            self._changed.clear()
            yield None
            await wait_first(self._changed, seconds=PULSE)


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"
