"""Answer calls of Puppet code on this node: one line of JSON in, one line out.

- `TriggerCalls` answers `trigger` and `kick`, `InventoryCalls` answers `query`, `ExportCalls`
  answers `export` and `collect`, `PuppetCalls` answers `leader`, `lock` and `unlock`.
- The line comes from the agent's socket or from `localpuppet call`.
- The answer to any input is one line with `ok` true or false; an error in it is one printable line.
"""

import asyncio
import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from itertools import islice
from typing import Annotated, Any

from localpuppet.base.errors import (
    InvalidInputError,
    LocalpuppetError,
    StateError,
    UnavailableError,
)
from localpuppet.base.formats.converter import AllowedRange, Message
from localpuppet.base.formats.names import NodeName, RunId
from localpuppet.base.formats.strict_json import JsonText, members, parse_object
from localpuppet.base.formats.text import one_line, shown_names
from localpuppet.base.formats.times import show_duration, show_time
from localpuppet.base.formats.values import Json, field_values
from localpuppet.base.machine.ports import Clock, ProcessId
from localpuppet.base.value import Value
from localpuppet.fleet.agent.entry_lender import HINT, Lend, RequestService
from localpuppet.fleet.bus import layout
from localpuppet.fleet.bus.bus_limits import MAX_RECEIVERS, MAX_TRIGGER_TTL
from localpuppet.fleet.bus.key_value import KeyValue, check_key
from localpuppet.fleet.bus.servers import ENGINES
from localpuppet.fleet.captures import note_answer
from localpuppet.fleet.edges.kicks import HeldKicks, Kick
from localpuppet.fleet.exports import recording
from localpuppet.fleet.exports.collectors import CollectorResult, Search, TakenResource
from localpuppet.fleet.exports.resource import named_type
from localpuppet.fleet.inventory.query.functions import FunctionCall, FunctionReply
from localpuppet.fleet.inventory.reading import InventoryAnswer
from localpuppet.fleet.leases.keeper import Keeper, LockUser
from localpuppet.fleet.leases.lease import LONGEST_LEADER
from localpuppet.fleet.triggers import sending
from localpuppet.fleet.triggers.trigger_admission import next_path
from localpuppet.fleet.trust.signing import MessageSigner
from localpuppet.node.runs.query_record import RecordedQuery, note_query, read_queries
from localpuppet.node.runs.run_records import Records, RunDirectory

MAX_LINE = 1024 * 1024
MAX_WAIT = 86400


Paths = Callable[[str | None], Iterable[tuple[NodeName, ...]]]
# Seconds for which a kick is valid and the bus keeps it, unless the resource gives another time.
KICK_TTL = 180
# The number of runs that are searched for the last answer to a query.
LOOKED_BACK = 50


def _engine(text: str) -> str:
    if text not in ENGINES:
        raise InvalidInputError(f"the engine {text[:20]!r} is unknown")
    return text


_Ttl = Annotated[int, AllowedRange(minimum=1, maximum=MAX_TRIGGER_TTL)]


class CodeCall(Message):
    """What each call has; a key that localpuppet does not know is ignored."""

    WHERE, LIMIT, IS_OPEN = "call", MAX_LINE, True
    verb: str
    run: RunId | None = None


class QueryCall(Message):
    WHERE, IS_OPEN = "call", True
    function: str
    arguments: tuple[Json, ...]


class CollectCall(Message):
    """A collector: its type, and its filter in Puppet's JSON form."""

    WHERE, IS_OPEN = "call", True
    type: Annotated[str, named_type]
    filter: list[Json] | None = None


class TriggerCall(Message):
    """A trigger to named nodes; see `sending.Outgoing`."""

    WHERE, IS_OPEN = "call", True
    hosts: sending.Receivers
    tags: sending.Tags
    ttl: _Ttl | None = None
    keyprefix: Annotated[str, check_key]
    keyttl: sending.Life
    engine: Annotated[str, _engine] | None = None


class KickCall(Kick):
    """A kick, with the tags and the ttl of its trigger."""

    tags: sending.Tags
    ttl: _Ttl | None = None


class _LeaseCall(Message):
    WHERE, IS_OPEN = "call", True
    name: Annotated[str, layout.parse_lease_name]


class _LeaderCall(_LeaseCall):
    ttl: Annotated[int, AllowedRange(minimum=1, maximum=LONGEST_LEADER)]
    take: bool = True


class _LockCall(_LeaseCall):
    wait: Annotated[int, AllowedRange(minimum=0, maximum=MAX_WAIT)]


class Sender(Value):
    """How this node sends triggers.

    `store` lends a connected store of an engine; `None` means the site's. `paths` returns the paths
    of the causes of a run, or of the run in progress.
    """

    store: Callable[[str | None], AbstractAsyncContextManager[KeyValue]]
    signer: MessageSigner
    paths: Paths
    keyprefix: str
    clock: Clock


def _listed(dropped: Mapping[NodeName, str]) -> list[dict[str, str]]:
    return [{"node": node, "reason": reason} for node, reason in dropped.items()]


class InventoryCalls:
    """Answers queries about nodes."""

    def __init__(self, lend: Lend, *, max_stale: float, records: Records, clock: Clock) -> None:
        self._asking = RequestService(lend, max_stale=max_stale, clock=clock)
        self._records = records
        self._clock = clock

    async def answer(self, call: QueryCall, run: str | None) -> dict[str, Any]:
        """Return the answer to a query.

        Raises:
            InvalidInputError: The query is invalid.
        """
        question = FunctionCall.of(call.function, call.arguments)
        directory = self._records.running(run)
        inventory_answer = await self.ask(question, run=None if directory is None else directory.id)
        if isinstance(inventory_answer, str):
            if directory is not None:
                note_query(directory, self._failed(question, inventory_answer))
            raise UnavailableError(
                f"could not ask: {one_line(inventory_answer)}{self._before(question)}",
                where=f"{question.function}()",
                hint=HINT,
            )
        if directory is not None:
            # In another thread, which digests the answer of ten thousand nodes; a lock keeps two
            # from writing one file.
            note_query(
                directory, await asyncio.to_thread(self._answered, question, inventory_answer)
            )
        reply = inventory_answer.answer
        return {"ok": True, "answer": JsonText(text=reply.text), "warnings": list(reply.warnings)}

    async def ask(
        self, question: FunctionCall, *, run: RunId | None = None
    ) -> InventoryAnswer[FunctionReply] | str:
        """Return the answer to a query, or the reason for no answer.

        Raises:
            InvalidInputError: The query is invalid.
        """
        try:
            return await self._asking.ask(question.answer, run=run)
        except (StateError, UnavailableError) as error:
            return str(error)

    def _failed(self, question: FunctionCall, reason: str) -> RecordedQuery:
        return RecordedQuery(
            function=question.function,
            arguments=question.arguments,
            text=question.text,
            at=show_time(self._clock.now()),
            reason=reason,
        )

    def _answered(
        self, question: FunctionCall, answer: InventoryAnswer[FunctionReply]
    ) -> RecordedQuery:
        return replace(
            self._failed(question, ""),
            digest=answer.answer.digest,
            names=answer.answer.names,
            parts=answer.answer.parts,
            revision=answer.revision,
            age=answer.age,
        )

    def _before(self, question: FunctionCall) -> str:
        """Return the last recorded answer to a query, as an addition to the error."""
        for name in islice(self._records.ids(), LOOKED_BACK):
            run = RunDirectory(self._records.directory / name)
            try:
                asked = read_queries(run)
            except StateError:
                continue  # a damaged old record does not concern this error
            for query in asked:
                if (
                    query.call == (question.function, question.arguments)
                    and query.digest is not None
                ):
                    ago = (self._clock.now() - name.time).total_seconds()
                    names = shown_names(query.names) or "no node"
                    return f"; the last answer, {show_duration(ago)} ago, was {names}"
        return ""


class ExportCalls:
    """Answers the export and collect termini of a catalog."""

    def __init__(
        self,
        lend: Lend,
        collecting: recording.CollectorService,
        *,
        max_stale: float,
        records: Records,
        clock: Clock,
    ) -> None:
        self._asking = RequestService(lend, max_stale=max_stale, clock=clock)
        self._collecting = collecting
        self._records = records
        self._clock = clock

    async def export(self, run: str | None) -> dict[str, Any]:
        """Record the exports that a catalog left in the directory of its run.

        Raises:
            InvalidInputError: An export is invalid, or the run does not exist.
        """
        directory = self._records.running(run)
        if directory is None:
            raise InvalidInputError("this node has no such run", where="export")
        return {"ok": True, "count": await asyncio.to_thread(recording.note_exports, directory)}

    async def collect(self, call: CollectCall, run: str | None) -> dict[str, Any]:
        """Return the resources for a collector.

        Raises:
            InvalidInputError: The policy stops the run, or the query is invalid.
        """
        kind, condition = call.type, call.filter
        search = Search.parse(condition)
        directory = self._records.running(run)
        asked = recording.CollectorRecord(
            type=kind, filter=condition, at=show_time(self._clock.now())
        )
        where = one_line(recording.collector_text(kind, condition))[:200]
        try:
            answer = await self._ask(kind, search, run=None if directory is None else directory.id)
        except LocalpuppetError as error:
            self._note(directory, replace(asked, reason=one_line(str(error))))
            raise error.at(where) from error
        choice = answer.answer
        self._note(
            directory,
            recording.answered(replace(asked, revision=answer.revision, age=answer.age), choice),
        )
        return {
            "ok": True,
            "resources": [_to_dict(resource) for resource in choice.taken],
            "warnings": await asyncio.to_thread(self._collecting.warnings, choice),
        }

    async def _ask(
        self, kind: str, search: Search, *, run: RunId | None
    ) -> InventoryAnswer[CollectorResult]:
        answer = await self._asking.ask(lambda _: self._collecting.collect(kind, search), run=run)
        if isinstance(answer, str):
            raise UnavailableError(f"could not ask: {one_line(answer)}", hint=HINT)
        return answer

    def _note(self, run: RunDirectory | None, collected: recording.CollectorRecord) -> None:
        if run is not None:
            recording.note_collected(run, collected)


def _to_dict(item: TakenResource) -> dict[str, Json]:
    """Return a resource in the form that the terminus expects."""
    resource = item.resource
    return {
        "node": item.node,
        "how": str(item.how),
        "title": resource.title,
        "parameters": dict(resource.parameters),
        "file": resource.file,
        "line": resource.line,
    }


class TriggerCalls:
    """Answers `trigger` and `kick`."""

    def __init__(self, sender: Sender, *, inventory: InventoryCalls, held: HeldKicks) -> None:
        self._sender = sender
        self._inventory = inventory
        self._held = held

    async def trigger(self, call: TriggerCall, run: str | None) -> dict[str, Any]:
        """Send a trigger to named nodes."""
        outgoing = sending.Outgoing(
            hosts=call.hosts,
            tags=call.tags,
            ttl=min(call.keyttl, MAX_TRIGGER_TTL) if call.ttl is None else call.ttl,
            keyprefix=call.keyprefix,
            keyttl=call.keyttl,
        )
        return await self._send(outgoing, call.engine, run)

    async def kick(self, kick: KickCall, run: str | None) -> dict[str, Any]:
        """Send a trigger to the nodes that a kick selects, except this node; see `trigger`.

        The kicks of a run in progress are sent when it has ended (`edges.kicks`).
        """
        receivers, ttl = await self._receivers(kick), kick.ttl or KICK_TTL
        call = sending.Outgoing(
            hosts=receivers, tags=kick.tags, ttl=ttl, keyprefix=self._sender.keyprefix, keyttl=ttl
        )
        answer: dict[str, Any] = {"ok": True, "receivers": list(receivers), "deferred": False}
        if not receivers:
            return {**answer, "sent": [], "dropped": []}
        if run is None or not self._held.is_on(run):
            return {**answer, **await self._send(call, None, run)}
        return {**answer, "deferred": True, **self._hold(call, RunId(run))}

    def _hold(self, call: sending.Outgoing, run: RunId) -> dict[str, Any]:
        me, paths = NodeName(self._sender.signer.name), list(self._sender.paths(run))
        ways = {host: next_path(paths, me=me, receiver=host) for host in call.hosts}
        kept = [host for host, way in ways.items() if not isinstance(way, str)]
        if kept:
            self._held.hold(run, replace(call, hosts=tuple(kept)), uuid=str(uuid.uuid4()))
        dropped = {host: way for host, way in ways.items() if isinstance(way, str)}
        return {"sent": kept, "dropped": _listed(dropped)}

    async def _receivers(self, kick: Kick) -> tuple[NodeName, ...]:
        answer = await self._inventory.ask(kick.question)
        if isinstance(answer, str):
            raise UnavailableError(
                f"could not query the nodes to run: {one_line(answer)}",
                where="kick",
                hint="run the same query with 'localpuppet query'",
            )
        names = [name for name in answer.answer.names if name != self._sender.signer.name]
        if len(names) > MAX_RECEIVERS:
            raise InvalidInputError(
                f"{len(names)} nodes match, the limit is {MAX_RECEIVERS}", where="kick"
            )
        return tuple(NodeName(name) for name in names)

    async def _send(
        self, call: sending.Outgoing, engine: str | None, run: str | None
    ) -> dict[str, Any]:
        paths = self._sender.paths(run)
        async with self._sender.store(engine) as kv:
            sent = await sending.send(
                call,
                kv=kv,
                signer=self._sender.signer,
                paths=paths,
                clock=self._sender.clock,
                uuid=str(uuid.uuid4()),
            )
        report = {"sent": list(sent.sent), "dropped": _listed(sent.dropped)}
        return {"ok": True, "uuid": sent.uuid, **report}


class PuppetCalls(Value):
    """Answers calls; without a keeper in a process that does not stay to renew its leases."""

    triggers: TriggerCalls
    inventory: InventoryCalls
    exports: ExportCalls
    keeper: Keeper | None
    records: Records
    name: str

    async def answer(self, line: bytes, process: ProcessId | None = None) -> bytes:
        """Return the answer to a line, with its newline.

        Args:
            process: The calling process, if known: its locks are released when it ends.
        """
        try:
            raw = parse_object(line, where=CodeCall.WHERE, limit=MAX_LINE)
            call = CodeCall.read(raw)
            reply = await self._answer(call, raw, process)
            await asyncio.to_thread(self._note, call, raw, reply)
        except LocalpuppetError as error:
            reply = {"ok": False, "error": one_line(str(error))}
        return members(reply, end="\n").encode()

    async def _answer(
        self, call: CodeCall, raw: Mapping[str, Json], process: ProcessId | None
    ) -> dict[str, Any]:
        run = call.run
        if call.verb == "trigger":
            return await self.triggers.trigger(TriggerCall.read(raw), run)
        if call.verb == "kick":
            return await self.triggers.kick(KickCall.read(raw), run)
        if call.verb == "query":
            return await self.inventory.answer(QueryCall.read(raw), run)
        if call.verb == "export":
            return await self.exports.export(run)
        if call.verb == "collect":
            return await self.exports.collect(CollectCall.read(raw), run)
        if self.keeper is None:
            raise InvalidInputError(
                "no process on this node would renew the lease",
                where=call.verb,
                hint="start 'localpuppet agent'",
            )
        user = LockUser(run=run, process=process)
        if call.verb == "leader":
            asked = _LeaderCall.read(raw)
            holder = await self.keeper.leader(asked.name, ttl=asked.ttl, take=asked.take)
            return {"ok": True, "holder": holder, "mine": holder == self.name}
        if call.verb == "lock":
            lock = _LockCall.read(raw)
            revision = await self.keeper.lock(lock.name, wait=lock.wait, user=user)
            return {"ok": True, "revision": revision}
        if call.verb == "unlock":
            return await self._unlock(_LeaseCall.read(raw).name, self.keeper, user)
        raise InvalidInputError(f"the verb {call.verb[:40]!r} is unknown", where="call")

    def _note(self, call: CodeCall, raw: Mapping[str, Any], reply: Mapping[str, Any]) -> None:
        """Note the answer to a catalog that is compiled in a run, for the run's capture."""
        noted = call.verb in ("query", "collect", "leader")
        if not noted or not (run := self.records.running(call.run)):
            return
        if call.verb == "query":
            note_answer(run, raw["function"], raw["arguments"], reply["answer"])
        elif call.verb == "collect":
            arguments = [raw["type"], raw.get("filter")]
            note_answer(run, call.verb, arguments, reply["resources"])
        else:
            note_answer(run, call.verb, [raw["name"], raw["ttl"]], reply["holder"])

    async def _unlock(self, name: str, keeper: Keeper, user: LockUser) -> dict[str, Any]:
        if await keeper.unlock(name, user=user):
            return {"ok": True}
        raise InvalidInputError(
            f"the lease {name} was lost before its lock was released",
            hint="another node may have had it meanwhile; see the agent's log",
        )


def trigger_line(call: sending.Outgoing) -> bytes:
    """Return the line that sends a trigger on behalf of the run in progress."""
    question = {"verb": "trigger", "name": "by hand", "engine": None, "run": None}
    return json.dumps(question | field_values(call)).encode() + b"\n"
