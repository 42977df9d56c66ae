"""The agent as two processes: an unprivileged one on the bus, and one that runs Puppet.

- The run side is root, and the network side is exposed to the network. So a line has nothing to act
  upon: only ids of messages that the run side reads and verifies itself.
- An id is the SHA-256 of the message's bytes.
- The directory belongs to the network side's user and is as trustworthy as the network. Its
  contents may get lost: the bus keeps messages until the agent takes them.
- The reader opens no symlink, FIFO or device, and no file of another user or with a second link. It
  reads at most the size limit, and returns bytes only if their SHA-256 is the file's name.
- Messages without a valid signature are dropped here, so that root's parsers never read them. The
  run side repeats the check and decides alone.
- A message is in the spool before the run side gets its id. The client removes it after the answer,
  or when no answer can come.
- A line only names messages. The run side reads each from the spool, verifies it, admits it and
  checks it for repetition, as if it came from the bus.
- The answer to any line is a line. Only an error of the local disk ends the agent.
- The adapter of the socket admits the network side's user only.
"""

import asyncio
import errno
import hashlib
import os
import re
import stat
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NewType, TypeVar

from localpuppet.base.errors import (
    IntegrityError,
    InvalidInputError,
    LocalpuppetError,
    StateError,
    UnavailableError,
    check_limit,
)
from localpuppet.base.formats.converter import Message
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.base.formats.strict_json import parse_object
from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.files import make_private, replace_file
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.base.machine.waiting import wait_first
from localpuppet.base.value import Value
from localpuppet.fleet.agent.bus_session import Answer, RunSide, RunSideAwayError
from localpuppet.fleet.bus.bus_limits import MAX_TOKEN
from localpuppet.fleet.trust.key_files import parse_public
from localpuppet.fleet.trust.signing import MessageKind, Verifier

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


MessageId = NewType("MessageId", str)

MAX_IDS = 64
MAX_LINE = 8 * 1024
_ID = re.compile(r"[0-9a-f]{64}\Z")


class RequestKind(StrEnum):
    """The requests of the network side."""

    HELLO = "hello"  # return the node's name and key
    RECEIVE = "receive"  # take these triggers
    SERVE = "serve"  # execute this request
    DESCRIBE = "describe"  # return the signed description of the node
    CONTENDED = "contended"  # note that another agent publishes as this node
    FOLLOW = "follow"  # send a line on each change of that, until the connection ends


_IDS = {RequestKind.RECEIVE: MAX_IDS, RequestKind.SERVE: 1}


def message_id(message: bytes) -> MessageId:
    return MessageId(hashlib.sha256(message).hexdigest())


def _message_id(text: str) -> MessageId:
    if not _ID.match(text):
        raise InvalidInputError("is not a SHA-256 digest in lower-case hex")
    return MessageId(text)


class SplitMessage(Message):
    """A line, with ids of messages: up to `MAX_IDS` for `receive`, one for `serve`, else none."""

    WHERE, LIMIT = "network side", MAX_LINE
    verb: RequestKind
    ids: tuple[Annotated[MessageId, _message_id], ...] = ()

    def __post_init__(self) -> None:
        most = _IDS.get(self.verb, 0)
        if not min(1, most) <= len(self.ids) <= most or len(set(self.ids)) != len(self.ids):
            raise InvalidInputError(f"has not 1 to {most} different ids" if most else "has ids")

    def line(self) -> bytes:
        """Return the line, with its newline."""
        return self.to_payload() + b"\n"


class _RunSideAnswer(Message):
    WHERE, LIMIT, IS_OPEN = "answer", 2 * MAX_TOKEN, True
    ok: bool


class _Refused(_RunSideAnswer):
    error: str


class _Hello(_RunSideAnswer):
    node: NodeName
    key: str | None = None


class _Received(_RunSideAnswer):
    refused: dict[str, str]


class _Reply(Value):
    caller: str
    request: str
    token: str


class _Served(_RunSideAnswer):
    reply: _Reply | None = None


class _Token(_RunSideAnswer):
    token: str


_AnswerForm = TypeVar("_AnswerForm", bound=_RunSideAnswer)


class Spool:
    """The network side's end; the directory is created with mode 0700 if it is missing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def empty(self) -> None:
        """Create the directory, and remove the files of an earlier process."""
        make_private(self._directory)
        for path in self._directory.iterdir():
            path.unlink(missing_ok=True)

    def add(self, message: bytes) -> MessageId:
        """Write a message; return its id."""
        identifier = message_id(message)
        replace_file(self._directory / identifier, message, mode=0o600)
        return identifier

    def remove(self, identifier: MessageId) -> None:
        """Remove a message if it exists."""
        (self._directory / identifier).unlink(missing_ok=True)


def read_spooled(directory: Path, owner: int, identifier: MessageId) -> bytes:
    """Return a message of the spool, on the run side.

    Args:
        owner: The user id of the network side; files of other users are rejected.

    Raises:
        IntegrityError: Its bytes do not match the id.
    """
    where = f"spool: {identifier[:12]}"
    try:
        spool = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            # NONBLOCK: opening a FIFO must not block before fstat detects it.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            fd = os.open(identifier, flags, dir_fd=spool)
        finally:
            os.close(spool)
    except OSError as error:
        link = error.errno in (errno.ELOOP, errno.ENOTDIR)
        what = "is a symlink" if link else error.strerror or str(error)
        raise InvalidInputError(f"cannot be read: {what}", where=where) from error
    try:
        _check(os.fstat(fd), owner, where)
        with open(fd, "rb", closefd=False) as file:
            data = file.read(MAX_TOKEN + 1)
    except OSError as error:
        what = error.strerror or str(error)
        raise InvalidInputError(f"cannot be read: {what}", where=where) from error
    finally:
        os.close(fd)
    if len(data) > MAX_TOKEN or message_id(data) != identifier:
        raise IntegrityError("its bytes are not those of its name", where=where)
    return data


def _check(status: os.stat_result, owner: int, where: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise InvalidInputError("is not a regular file", where=where)
    if status.st_uid != owner or status.st_nlink != 1:
        raise InvalidInputError(
            f"is not the network side's own (uid {status.st_uid}, {status.st_nlink} names)",
            where=where,
        )
    check_limit(status.st_size, MAX_TOKEN, where=where)


# Seconds until the client asks again for changes after the run side was unreachable.
AGAIN = 1.0

Ask = Callable[[bytes], AsyncGenerator[bytes, None]]
VerifierOf = Callable[["tuple[SignerName, Ed25519PublicKey] | None"], Verifier]


@dataclass(slots=True, eq=False)
class RemoteRunSide:
    """The run side in another process; see `fleet.agent.bus_session.RunSide`.

    `verifier` takes this node's name and public key (`None` if it has a certificate).
    """

    ask: Ask
    _: KW_ONLY
    verifier: VerifierOf
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
        """Ask the run side for this node's identity; repeat this after each reconnection."""
        hello = await self._ask_once(SplitMessage(verb=RequestKind.HELLO), _Hello)
        me, own = hello.node, None
        with _understood():
            if hello.key is not None:
                own = (SignerName.parse(me), parse_public(hello.key.encode(), where="run side"))
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
                question = SplitMessage(verb=RequestKind.RECEIVE, ids=ids)
                refused = (await self._ask_once(question, _Received)).refused
            if refused:  # their content does not matter here: the run side could not read the spool
                raise RunSideAwayError(
                    f"could not read {len(refused)} messages", where="run side", hint="see its log"
                )

    async def serve(self, token: bytes) -> Answer | None:
        """Hand a request over; see `RunSide`."""
        if not self._holds(token, MessageKind.REQUEST):
            return None
        with self._spooled([token]) as ids:
            question = SplitMessage(verb=RequestKind.SERVE, ids=ids)
            reply = (await self._ask_once(question, _Served)).reply
        return None if reply is None else (reply.caller, reply.request, reply.token.encode())

    async def describe(self) -> bytes:
        """Return the description of the node, signed by the run side."""
        question = SplitMessage(verb=RequestKind.DESCRIBE)
        return (await self._ask_once(question, _Token)).token.encode()

    async def contended(self) -> None:
        await self._ask_once(SplitMessage(verb=RequestKind.CONTENDED), _RunSideAnswer)

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

    async def _ask_once(self, question: SplitMessage, form: type[_AnswerForm]) -> _AnswerForm:
        """Send a line and return the one line of the answer."""
        try:
            async with aclosing(self.ask(question.line())) as lines:
                line = await anext(lines)
        except UnavailableError as error:
            raise RunSideAwayError(str(error), where="run side") from error
        with _understood():
            raw = parse_object(line, where=_RunSideAnswer.WHERE, limit=_RunSideAnswer.LIMIT)
            if _RunSideAnswer.read(raw).ok:
                return form.read(raw)
            refusal = _Refused.read(raw).error
        raise RunSideAwayError(refusal, where="run side")


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


# Seconds between two lines to a follower, to detect a follower that is gone.
PULSE = 20.0

Read = Callable[[MessageId], bytes]


class RunSideServer:
    """Answers the network side.

    It needs the node's public `key` to recognise the node's own messages; `None` with a
    certificate.
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
                        yield _line(_RunSideAnswer(ok=True))
                return
            reply = await self._answer(question)
        except LocalpuppetError as error:
            self._log.warning(f"refused the network side: {error}", kind=LineKind.SERVICE)
            reply = _Refused(ok=False, error=one_line(str(error)))
        yield _line(reply)

    async def guard(self) -> None:
        """Wait until a message could not be written to disk.

        Raises:
            StateError: A write failed; the agent must end, because it could lose messages.
        """
        await self._failed

    async def _answer(self, question: SplitMessage) -> _RunSideAnswer:
        if question.verb is RequestKind.HELLO:
            return _Hello(ok=True, node=self._side.me, key=self._key)
        if question.verb is RequestKind.DESCRIBE:
            return _Token(ok=True, token=(await self._side.describe()).decode("ascii"))
        if question.verb is RequestKind.CONTENDED:
            await self._side.contended()
            return _RunSideAnswer(ok=True)
        if question.verb is RequestKind.SERVE:
            return _Served(ok=True, reply=await self._serve(question.ids[0]))
        return _Received(ok=True, refused=await self._receive(question.ids))

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

    async def _serve(self, identifier: MessageId) -> _Reply | None:
        answer = await self._side.serve(self._read(identifier))
        if answer is None:
            return None
        caller, request, token = answer
        return _Reply(caller=caller, request=request, token=token.decode("ascii"))

    async def _follow(self) -> AsyncGenerator[None, None]:
        """Yield on each change. A new follower replaces the previous one."""
        self._follower += 1
        mine = self._follower
        self._changed.set()
        while mine == self._follower:
            self._changed.clear()
            yield None
            await wait_first(self._changed, seconds=PULSE)


def _line(answer: _RunSideAnswer) -> bytes:
    return answer.to_payload() + b"\n"
