"""Send requests to many nodes at once, repeat those for long actions, and return the answers.

- The watch for replies begins with the revision of the first request: no reply is missed, and old
  ones, of which a node may leave any amount, are not read.
- A node without a reply in time has an answer too: it is unresponsive.
- Each reply has one chunk and a header with `digest` and `size` of the whole. The bytes count only
  if they have the digest of the first reply.
- If a run replaces the data meanwhile, the caller begins again, at most `TRIES` times.
- The answer has resources and parameter names, never values. Its size is limited.
- A node that rejects the request, is unresponsive or sends a malformed answer is a problem, never
  "no change".
"""

import asyncio
import base64
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Self

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, UnavailableError
from localpuppet.base.formats.converter import Message, from_record
from localpuppet.base.formats.names import NodeName, ReleasePath, SignerName
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json, mapping_of
from localpuppet.base.machine.ports import Clock
from localpuppet.base.value import Value
from localpuppet.fleet.bus import layout
from localpuppet.fleet.bus.bus_limits import MAX_CHUNKS, MAX_REPLY_NAME, MAX_SERIAL
from localpuppet.fleet.bus.key_value import KeyValue, entries
from localpuppet.fleet.bus.layout import replies_of, replies_to
from localpuppet.fleet.inventory.chunks import cut, digest_of
from localpuppet.fleet.requests import request as messages
from localpuppet.fleet.trust.signing import MessageSigner, Verifier
from localpuppet.node.releases.comparison import CatalogChanges

REPLY_TTL = 60.0  # the caller is watching
# Unread values that are kept per request; further ones are dropped.
MOST_UNREAD = 16


class Replies:
    """Receives the replies to one caller, within `async with`.

    All requests share one watch, which costs the store more than a request. After an outage the
    next request starts a new watch.
    """

    def __init__(
        self, kv: KeyValue, caller: str, node: NodeName | SignerName | None = None
    ) -> None:
        self._kv = kv
        self._caller = caller
        self._prefix = replies_to(caller) if node is None else replies_of(node, caller)
        self._unread: dict[str, asyncio.Queue[bytes | UnavailableError]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    async def ask(
        self, token: bytes, *, at: str, node: NodeName | SignerName, request: str, ttl: float
    ) -> AsyncGenerator[bytes, None]:
        """Send a request to a node and yield its replies, which are not verified yet."""
        key = replies_of(node, self._caller) + request
        unread = self._unread[key] = asyncio.Queue(MOST_UNREAD)
        try:
            async with self._turn:
                is_first = self._watching is None or self._watching.done()
                if is_first:
                    await self._kv.born(self._prefix)  # NATS then knows the changes from here on
                    begun = await self._kv.put(at, token, ttl=ttl)
                    self._watching = asyncio.create_task(self._watch(begun))
            if not is_first:
                await self._kv.put(at, token, ttl=ttl)
            while True:
                reply_or_error = await unread.get()
                if isinstance(reply_or_error, UnavailableError):
                    raise reply_or_error
                yield reply_or_error
        finally:
            del self._unread[key]

    async def _watch(self, begun: int) -> None:
        """Distribute replies; when the watch ends, report that to all waiting callers."""
        problem = UnavailableError("the watch for replies has ended", where="bus")
        try:
            watching = self._kv.watch(self._prefix, after=begun, parts=True)
            async with aclosing(watching) as changes:
                async for change in changes:
                    for entry in entries(change):
                        self._hand_out(entry.key, entry.value)
        except UnavailableError as error:
            problem = error
        finally:
            for key in [*self._unread]:
                self._hand_out(key, problem)

    def _hand_out(self, key: str, reply_or_error: bytes | UnavailableError) -> None:
        unread = self._unread.get(key)
        if unread is not None and not unread.full():
            unread.put_nowait(reply_or_error)


async def reply(
    kv: KeyValue, token: bytes, *, caller: str, node: NodeName | SignerName, request: str
) -> None:
    """Write a node's reply to the key that its caller watches; see `Replies.ask`."""
    await kv.put(replies_of(node, caller) + request, token, ttl=REPLY_TTL)


AT_ONCE = 200  # one watch receives the replies of all
NO_ANSWER = "did not answer in time (check its agent: 'localpuppet nodes')"


class NodeAnswer(Value):
    """The result of a request to one node; there is no reply if the node is unresponsive."""

    reply: messages.NodeReply | None
    problem: str = ""

    @property
    def unresponsive(self) -> bool:
        """Return whether the node sent no trusted reply."""
        return self.reply is None

    @property
    def ok(self) -> bool:
        """Return whether the node executed the request."""
        return self.reply is not None and self.reply.ok

    @property
    def result(self) -> Mapping[str, Json]:
        """Return the node's result; empty unless it executed the request."""
        return {} if self.reply is None else self.reply.result

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: `ok`, `result`, `error`; without a reply also `unresponsive`."""
        if self.reply is None:
            return {"ok": False, "unresponsive": True, "result": {}, "error": self.problem}
        reply = self.reply
        return {"ok": reply.ok, "result": dict(reply.result), "error": reply.error}


@dataclass(slots=True, eq=False)
class RequestClient:
    """Sends requests signed with the caller's key."""

    kv: KeyValue
    _: KW_ONLY
    signer: MessageSigner
    verifier: Verifier
    clock: Clock
    _replies: Replies | None = field(default=None, init=False)
    _heed: Callable[[NodeName, messages.Arguments], Awaitable[None]] | None = field(
        default=None, init=False
    )

    @property
    def caller(self) -> str:
        return self.signer.name.caller

    def heed_refusals(
        self, heed: Callable[[NodeName, messages.Arguments], Awaitable[None]]
    ) -> None:
        """Call `heed` on each rejected reply before it is returned; `ask` raises its errors."""
        self._heed = heed

    @asynccontextmanager
    async def together(self) -> AsyncGenerator[None, None]:
        """Use one watch for the replies to all requests within `async with`."""
        async with Replies(self.kv, self.signer.name) as self._replies:
            try:
                yield
            finally:
                self._replies = None

    async def ask_all(
        self, names: Sequence[NodeName], action: str, args: messages.Arguments, *, patience: float
    ) -> dict[str, NodeAnswer]:
        """Return each node's answer within `patience` seconds; see `ask`."""
        slots = asyncio.Semaphore(AT_ONCE)

        async def ask_node(name: NodeName, replies: Replies) -> NodeAnswer:
            async with slots:
                return await self._ask(name, action, args, patience, replies)

        async with AsyncExitStack() as stack:
            replies = self._replies
            if replies is None:
                fresh = Replies(self.kv, self.signer.name)
                replies = await stack.enter_async_context(fresh)
            answers = await asyncio.gather(*(ask_node(name, replies) for name in names))
        return {str(name): answer for name, answer in zip(names, answers, strict=True)}

    async def ask(
        self, node: NodeName, action: str, args: messages.Arguments, *, patience: float
    ) -> NodeAnswer:
        if self._replies is not None:
            return await self._ask(node, action, args, patience, self._replies)
        async with Replies(self.kv, self.signer.name, node) as replies:
            return await self._ask(node, action, args, patience, replies)

    async def _ask(
        self,
        node: NodeName,
        action: str,
        args: messages.Arguments,
        patience: float,
        replies: Replies,
    ) -> NodeAnswer:
        life = max(messages.LIFE, math.ceil(patience))
        request, token = messages.ask(self.signer, node, action, args, clock=self.clock, life=life)
        answer = NodeAnswer(reply=None, problem=NO_ANSWER)
        place = layout.requests_of(self.signer.name, node) + request.jti
        asking = replies.ask(token, at=place, node=node, request=request.jti, ttl=life)
        with suppress(TimeoutError):
            async with asyncio.timeout(patience), aclosing(asking) as tokens:
                async for reply_token in tokens:
                    try:
                        reply = messages.read_answer(
                            self.verifier, reply_token, request, clock=self.clock
                        )
                    except LocalpuppetError as error:
                        problem = f"rejected a reply: {error}"
                        answer = NodeAnswer(reply=None, problem=problem)
                        continue
                    answer = NodeAnswer(reply=reply)
                    break
        if answer.problem == NO_ANSWER and (full := await self.kv.fullness()):
            answer = NodeAnswer(reply=None, problem=f"cannot answer: {full}")
        if self._heed is not None and answer.reply is not None and not answer.ok:
            await self._heed(node, args)
        return answer


TRIES = 3
# Bytes in one reply: in base64 they fit into `MAX_REPLY`.
REPLY_CHUNK = 192 * 1024


class ChunkedReply(Value):
    """Data of a node, or a part of it."""

    header: Mapping[str, Json]
    digest: str
    size: int
    data: bytes


class _Whole(Message):
    IS_OPEN = True
    digest: str
    size: int


def reply_chunk(
    action: str, header: Mapping[str, Json], data: bytes, args: messages.ChunkArguments
) -> dict[str, Json]:
    """Return the result of a request: the header and one chunk in base64."""
    if args.digest not in ("", header["digest"]):
        raise InvalidInputError("a run changed it", where=action, hint="ask again")
    chunks = cut(data, REPLY_CHUNK)
    if args.chunk >= len(chunks):
        raise InvalidInputError(f"has {len(chunks)} chunks", where=action)
    return {action: dict(header), "data": base64.b64encode(chunks[args.chunk]).decode("ascii")}


async def request_chunks(
    client: RequestClient, node: NodeName, action: str, *, most: int, patience: float
) -> ChunkedReply:
    """Return the data of a node's action; each reply may take `patience` seconds.

    Raises:
        UnavailableError: The node is unresponsive, refuses, or sent something invalid.
    """

    async def ask(args: messages.ChunkArguments) -> ChunkedReply:
        answer = await client.ask(node, action, args, patience=patience)
        if answer.reply is None:
            raise invalid_reply(node, action, answer.problem)
        if not answer.ok:
            raise invalid_reply(node, action, answer.reply.error or "it refuses")
        return _read_chunk(answer.reply.result, node, action, most=most)

    problem = ""
    for _ in range(TRIES):
        first = await ask(messages.ChunkArguments())
        data = first.data
        for chunk in range(1, MAX_CHUNKS):
            if len(data) >= first.size:
                break
            args = messages.ChunkArguments(chunk=chunk, digest=first.digest)
            try:
                data += (await ask(args)).data
            except UnavailableError as error:
                problem = error.what
                break
        if digest_of(data) == first.digest:
            return replace(first, data=data)
        problem = problem or f"sent bytes without the digest of its {action}"
    raise invalid_reply(node, action, problem)


def _read_chunk(
    result: Mapping[str, Json], node: NodeName, action: str, *, most: int
) -> ChunkedReply:
    try:
        header = mapping_of(result.get(action))
        whole = _Whole.read(header)
        data = from_record(bytes, result.get("data"))
    except InvalidInputError as error:
        unknown = "sent an unknown answer (update localpuppet there)"
        raise invalid_reply(node, action, unknown) from error
    if not 0 < whole.size <= most or not data:
        problem = f"its {action} has {whole.size} bytes; at most {most} are read"
        raise invalid_reply(node, action, problem)
    return ChunkedReply(header=header, digest=whole.digest, size=whole.size, data=data)


def invalid_reply(node: NodeName, action: str, problem: str) -> UnavailableError:
    """Return the error for a node that did not send what was requested."""
    return UnavailableError(one_line(problem), where=f"{action} of {node}")


REPLY = 20.0  # seconds for each reply
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 2.0  # seconds between two requests


async def until_over(
    client: RequestClient, node: NodeName, action: str, args: messages.Arguments, *, patience: float
) -> NodeAnswer:
    """Return a node's answer after its action has ended or was rejected."""
    pause = FIRST_PAUSE
    try:
        async with asyncio.timeout(patience):
            while True:
                answer = await client.ask(node, action, args, patience=min(REPLY, patience))
                if not working(answer):
                    return answer
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
    except TimeoutError:
        problem = f"still working after {patience:g} s (run the command again to resume waiting)"
        return NodeAnswer(reply=None, problem=problem)


def working(answer: NodeAnswer) -> bool:
    """Return whether the node is still working."""
    return answer.result.get("state") == "working"


COMPARING_AT_ONCE = 50
MOST_TOLD = 2_000  # resources of one node that are read
MOST_KEPT = 20_000  # of all nodes; above this limit only the number is kept


class CatalogComparison(Value):
    """The answer of a node, or a problem."""

    changes: CatalogChanges | None = None
    problem: str = ""


async def compare_on(
    client: RequestClient,
    nodes: Sequence[NodeName],
    release: ReleasePath,
    *,
    patience: float,
) -> dict[NodeName, CatalogComparison]:
    """Return the changes by a tag on each node, in the order of the nodes.

    A node may have to fetch the release within `patience` seconds.
    """
    slots = asyncio.Semaphore(COMPARING_AT_ONCE)
    args = messages.Compile(release=release)

    async def compare_node(node: NodeName) -> CatalogComparison:
        async with slots:
            return _understood(await until_over(client, node, "compile", args, patience=patience))

    comparisons = await asyncio.gather(*map(compare_node, nodes))
    return dict(zip(nodes, _kept(comparisons), strict=True))


def _kept(comparisons: Sequence[CatalogComparison]) -> list[CatalogComparison]:
    """Return the answers, cut to the limit for all nodes."""
    kept, room = [], MOST_KEPT
    for comparison in comparisons:
        if comparison.changes is not None and comparison.changes.listed > room:
            comparison = CatalogComparison(
                changes=CatalogChanges(left_out=comparison.changes.count)
            )
        room -= comparison.changes.listed if comparison.changes is not None else 0
        kept.append(comparison)
    return kept


def _understood(answer: NodeAnswer) -> CatalogComparison:
    if answer.reply is None:
        return CatalogComparison(problem=answer.problem)
    if not answer.ok:
        return CatalogComparison(problem=one_line(answer.reply.error or "it refuses"))
    result = answer.reply.result
    added, removed, changed = (result.get(name) for name in ("added", "removed", "changed"))
    left_out = result.get("left_out")
    if (
        not isinstance(added, list)
        or not isinstance(removed, list)
        or not isinstance(changed, dict)
        or type(left_out) is not int
        or left_out < 0
        or len(added) + len(removed) + len(changed) > MOST_TOLD
    ):
        return CatalogComparison(problem="sent an unknown answer (update localpuppet there)")
    return CatalogComparison(
        changes=CatalogChanges(
            added=_names(added),
            removed=_names(removed),
            changed={
                _name(name): _names(inner if isinstance(inner, list) else [])
                for name, inner in changed.items()
            },
            left_out=left_out,
        )
    )


def _names(values: Sequence[Json]) -> tuple[str, ...]:
    return tuple(_name(value) for value in values)


def _name(value: Json) -> str:
    return one_line(value if isinstance(value, str) else "?")[:MAX_REPLY_NAME]


def by_change(
    comparisons: Mapping[NodeName, CatalogComparison],
) -> list[tuple[CatalogChanges, list[NodeName]]]:
    """Group nodes with equal changes, the largest group first."""
    groups: dict[str, tuple[CatalogChanges, list[NodeName]]] = {}
    for node, comparison in comparisons.items():
        if comparison.changes is not None:
            key = repr(comparison.changes.to_dict())
            groups.setdefault(key, (comparison.changes, []))[1].append(node)
    return sorted(groups.values(), key=lambda group: (-len(group[1]), group[1][0]))


TOO_OLD = "its localpuppet is too old to take a release by request: update it"


async def next_serials(
    client: RequestClient, nodes: Sequence[NodeName], *, patience: float, rollout: str = ""
) -> tuple[dict[str, int], dict[str, NodeAnswer]]:
    """Return a new serial for each node, and the answers of nodes without one.

    Each node has its own serials, so a wrong serial of one node does not affect others. The
    assignment of `rollout` keeps its serial on nodes that have it.
    """
    answers = await client.ask_all(nodes, "status", messages.StatusRequest(), patience=patience)
    serials, problems = {}, {}
    for node, answer in answers.items():
        if answer.reply is None or not answer.ok:
            problems[node] = answer
            continue
        report = reported_assignment(answer.reply.result)
        if report is None:
            refusal = replace(answer.reply, ok=False, result={}, error=TOO_OLD)
            problems[node] = replace(answer, reply=refusal)
        else:
            taken = bool(rollout) and report.rollout == rollout
            serials[node] = min(report.serial + (not taken), MAX_SERIAL)
    return serials, problems


async def deploy_to(
    client: RequestClient, nodes: Sequence[NodeName], args: messages.Deploy, *, patience: float
) -> dict[str, NodeAnswer]:
    """Return each node's answer after its deployment, with a new serial, has ended in time."""
    slots = asyncio.Semaphore(AT_ONCE)
    serials, problems = await next_serials(client, nodes, patience=min(REPLY, patience))

    async def deploy_to(node: NodeName) -> NodeAnswer:
        if node in problems:
            return problems[node]
        async with slots:
            wanted = replace(args, serial=serials[node])
            return await until_over(client, node, "deploy", wanted, patience=patience)

    answers = await asyncio.gather(*map(deploy_to, nodes))
    return {str(node): answer for node, answer in zip(nodes, answers, strict=True)}


class AssignmentReport(Value):
    """A node's assignment by its status: serial 0 without one, and no rollout for a user's."""

    serial: int = 0
    rollout: str = ""


def reported_assignment(status: Mapping[str, Json]) -> AssignmentReport | None:
    """Return the assignment in a status; `None` if the node's version has no assignments."""
    if "assignment" not in status:
        return None
    assignment = mapping_of(status["assignment"])
    serial, rollout = assignment.get("serial"), assignment.get("rollout")
    return AssignmentReport(
        serial=max(serial, 0) if isinstance(serial, int) and not isinstance(serial, bool) else 0,
        rollout=rollout if isinstance(rollout, str) else "",
    )
