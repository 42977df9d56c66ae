"""The network side's client of the run side: it verifies messages and hands them over.

- Messages without a valid signature are dropped here, so that root's parsers never read them. The
  run side repeats the check and decides alone.
- A message is in the spool before the run side gets its id. The client removes it after the answer,
  or when no answer can come.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from localpuppet.base.errors import (
    InvalidInputError,
    LocalpuppetError,
    StateError,
    UnavailableError,
)
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.fleet.agent.run_side import Answer, RunSideAwayError
from localpuppet.fleet.agent.split.protocol import (
    MAX_IDS,
    MessageId,
    RequestKind,
    SplitMessage,
    Spool,
)
from localpuppet.fleet.trust.keys import parse_public
from localpuppet.fleet.trust.signing import MAX_TOKEN, MessageKind, Verifier

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

# Seconds until the client asks again for changes after the run side was unreachable.
AGAIN = 1.0

Ask = Callable[[bytes], AsyncGenerator[bytes, None]]


@dataclass(slots=True, eq=False)
class RemoteRunSide:
    """The run side in another process; see `fleet.agent.run_side.RunSide`.

    Attributes:
        ask: Sends a line and yields the lines of the answer; raises `UnavailableError`.
        verifier: Returns a verifier, given this node's name and public key (`None` if it has a
            certificate).
        spool: The directory for messages to the run side.
    """

    ask: Ask
    _: KW_ONLY
    verifier: "Callable[[tuple[SignerName, Ed25519PublicKey] | None], Verifier]"
    spool: Spool
    log: Log
    _changed: list[asyncio.Event] = field(default_factory=list, init=False)
    _me: NodeName | None = field(default=None, init=False)
    _known: Verifier | None = field(default=None, init=False)

    @property
    def me(self) -> NodeName:
        """Return the node's name, known after `hello`."""
        if self._me is None:
            raise RunSideAwayError("has not sent this node's name", where="run side")
        return self._me

    async def hello(self) -> None:
        """Ask the run side for this node's identity; repeat this after each reconnection.

        Raises:
            UnavailableError: The run side is unreachable, or belongs to another node now.
        """
        reply = await self._ask_once(SplitMessage(verb=RequestKind.HELLO))
        with _understood():
            me = reply.parsed("node", NodeName.parse)
            pem = reply.text_or_none("key")
            own = None
            if pem is not None:
                own = (SignerName.parse(me), parse_public(pem.encode(), where="run side"))
        if self._me not in (None, me):
            raise RunSideAwayError(
                f"is that of {me} now", where="run side", hint="restart this process too"
            )
        self._me = me
        self._known = self.verifier(own)

    async def hear(self, tokens: Sequence[bytes]) -> None:
        """Hand triggers over; see `RunSide`."""
        good = [token for token in dict.fromkeys(tokens) if self._holds(token, MessageKind.TRIGGER)]
        for start in range(0, len(good), MAX_IDS):
            with self._spooled(good[start : start + MAX_IDS]) as ids:
                answer = await self._ask_once(SplitMessage(verb=RequestKind.RECEIVE, ids=ids))
            with _understood():
                refused = answer.mapping("refused")
            if refused:  # their content does not matter here: the run side could not read the spool
                raise RunSideAwayError(
                    f"could not read {len(refused)} messages", where="run side", hint="see its log"
                )

    async def serve(self, token: bytes) -> Answer | None:
        """Hand a request over; see `RunSide`."""
        if not self._holds(token, MessageKind.REQUEST):
            return None
        with self._spooled([token]) as ids:
            answer = await self._ask_once(SplitMessage(verb=RequestKind.SERVE, ids=ids))
        with _understood():
            reply = answer.inner_or_none("reply")
            if reply is None:
                return None
            return reply.text("caller"), reply.text("request"), reply.text("token").encode()

    async def describe(self) -> bytes:
        """Return the description of the node, signed by the run side."""
        reply = await self._ask_once(SplitMessage(verb=RequestKind.DESCRIBE))
        with _understood():
            return reply.text("token").encode()

    async def contended(self) -> None:
        """See `RunSide`."""
        await self._ask_once(SplitMessage(verb=RequestKind.CONTENDED))

    def subscribe(self) -> asyncio.Event:
        """Return an event that is set on each change; see `RunSide`."""
        event = asyncio.Event()
        event.set()
        self._changed.append(event)
        return event

    async def follow(self) -> None:
        """Follow the changes of the run side, without end."""
        while True:
            try:
                async with aclosing(
                    self.ask(SplitMessage(verb=RequestKind.FOLLOW).line())
                ) as lines:
                    async for _ in lines:
                        for event in self._changed:
                            event.set()
            except UnavailableError as error:
                self.log.debug(str(error))
            await asyncio.sleep(AGAIN)

    def _holds(self, token: bytes, kind: MessageKind) -> bool:
        """Return whether a message of this kind has a trusted signature."""
        if self._known is None:
            raise RunSideAwayError("has not sent this node's name", where="run side")
        try:
            self._known.verify(token, kind)
        except LocalpuppetError as error:
            self.log.warning(f"dropped a message: {error}", kind=LineKind.STRANGER)
            return False
        return True

    @contextmanager
    def _spooled(self, tokens: Sequence[bytes]) -> Iterator[tuple[MessageId, ...]]:
        ids: list[MessageId] = []
        try:
            for token in tokens:
                ids.append(self.spool.add(token))
            yield tuple(ids)
        except StateError as error:
            raise RunSideAwayError(f"did not take a message: {error}", where="run side") from error
        finally:
            for identifier in ids:
                self.spool.remove(identifier)

    async def _ask_once(self, question: SplitMessage) -> Fields:
        """Send a line and return the one line of the answer."""
        try:
            async with aclosing(self.ask(question.line())) as lines:
                line = await anext(lines)
        except UnavailableError as error:
            raise RunSideAwayError(str(error), where="run side") from error
        with _understood():
            answer = Fields.parse(line, where="answer", limit=2 * MAX_TOKEN)
            refusal = None if answer.boolean("ok") else answer.text("error")
        if refusal is not None:
            raise RunSideAwayError(refusal, where="run side")
        return answer


@contextmanager
def _understood() -> Iterator[None]:
    """Treat an answer of another form as an unreachable run side."""
    try:
        yield
    except InvalidInputError as error:
        raise RunSideAwayError(
            f"sent an unknown answer: {error}",
            where="run side",
            hint="run the same version on both sides",
        ) from error
