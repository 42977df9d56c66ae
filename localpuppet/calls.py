"""What Puppet code on this node asks of the bus: one line of JSON in, one out.

Owns: the verbs `trigger`, `leader`, `lock`, `unlock` and their fields (docs/puppet-module.md).
Refuses to know: where the line came from (the agent's socket, or `localpuppet call`).

Invariant: whatever the line holds, the answer is one line, `ok` true or false, and an error in it
is one printable line.
"""

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from localpuppet import bus
from localpuppet.errors import InvalidInputError, LocalpuppetError
from localpuppet.keeper import Keeper
from localpuppet.key_value import KeyValue, check_key
from localpuppet.lease_book import Asker
from localpuppet.model.bus_settings import ENGINES
from localpuppet.model.names import NodeName, RunId, parse_tag
from localpuppet.model.strict_json import parse_object
from localpuppet.model.text import one_line
from localpuppet.model.trigger import MAX_TTL
from localpuppet.model.values import Json
from localpuppet.ports import Clock, ProcessId
from localpuppet.signing import Signer

MAX_LINE = 1024 * 1024
MAX_RECEIVERS = 10_000
MAX_WAIT = 86400
MAX_LEASE = 86400

Paths = Callable[[str | None], Iterable[tuple[NodeName, ...]]]


class Calls:
    """Answers calls.

    Args:
        store: Lends the store of an engine, connected; that of the site for `None`.
        signer: This node.
        keeper: This node's leases; `None` where nobody stays to renew them.
        paths: Returns the paths of the causes of a run, or of the run that is on.
        clock: The node's clock.
    """

    def __init__(
        self,
        *,
        store: Callable[[str | None], AbstractAsyncContextManager[KeyValue]],
        signer: Signer,
        keeper: Keeper | None,
        paths: Paths,
        clock: Clock,
    ) -> None:
        self._store = store
        self._signer = signer
        self._keeper = keeper
        self._paths = paths
        self._clock = clock

    async def answer(self, line: bytes, process: ProcessId | None = None) -> bytes:
        """Return the answer to a line, with its newline.

        Args:
            line: The line.
            process: Who asks, where that is known: a lock is given back when it ends.
        """
        try:
            question = parse_object(line, where="call", limit=MAX_LINE)
            found = await self._answer(question, process)
        except LocalpuppetError as error:
            found = {"ok": False, "error": one_line(str(error))}
        return json.dumps(found).encode() + b"\n"

    async def _answer(
        self, question: Mapping[str, Json], process: ProcessId | None
    ) -> dict[str, Any]:
        fields = _Fields(question)
        verb = fields.text("verb")
        if verb == "trigger":
            return await self._trigger(fields)
        if self._keeper is None:
            raise InvalidInputError(
                "nobody on this node would renew the lease",
                where=verb,
                hint="start 'localpuppet agent'",
            )
        if verb == "leader":
            return await self._leader(fields, self._keeper)
        if verb == "lock":
            return await self._lock(fields, self._keeper, process)
        if verb == "unlock":
            return await self._unlock(fields, self._keeper, process)
        raise InvalidInputError(f"the verb {verb[:40]!r} is unknown", where="call")

    async def _trigger(self, fields: "_Fields") -> dict[str, Any]:
        keyttl = fields.whole("keyttl", most=MAX_LEASE)
        hosts = tuple(NodeName.parse(name) for name in fields.texts("hosts", MAX_RECEIVERS))
        call = bus.Call(
            hosts=hosts,
            tags=tuple(parse_tag(tag, where="tags") for tag in fields.texts("tags", 100)),
            ttl=fields.whole("ttl", most=MAX_TTL, default=min(keyttl, MAX_TTL)),
            keyprefix=check_key(fields.text("keyprefix")),
            keyttl=keyttl,
        )
        engine = fields.optional("engine")
        if engine is not None and engine not in ENGINES:
            raise InvalidInputError(f"the engine {engine[:20]!r} is unknown", where="call")
        paths = self._paths(fields.run())
        async with self._store(engine) as kv:
            sent = await bus.send(
                call,
                kv=kv,
                signer=self._signer,
                paths=paths,
                clock=self._clock,
                uuid=str(uuid.uuid4()),
            )
        return {
            "ok": True,
            "uuid": sent.uuid,
            "sent": list(sent.sent),
            "dropped": [{"node": node, "reason": reason} for node, reason in sent.dropped.items()],
        }

    async def _leader(self, fields: "_Fields", keeper: Keeper) -> dict[str, Any]:
        name = bus.parse_lease_name(fields.text("name"))
        ttl = fields.whole("ttl", most=MAX_LEASE)
        holder = await keeper.leader(name, ttl=ttl, take=fields.truth("take", default=True))
        return {"ok": True, "holder": holder, "mine": holder == self._signer.name}

    async def _lock(
        self, fields: "_Fields", keeper: Keeper, process: ProcessId | None
    ) -> dict[str, Any]:
        name = bus.parse_lease_name(fields.text("name"))
        wait = fields.whole("wait", least=0, most=MAX_WAIT)
        asker = Asker(run=fields.run(), process=process)
        revision = await keeper.lock(name, wait=wait, asker=asker)
        return {"ok": True, "revision": revision}

    async def _unlock(
        self, fields: "_Fields", keeper: Keeper, process: ProcessId | None
    ) -> dict[str, Any]:
        name = bus.parse_lease_name(fields.text("name"))
        if await keeper.unlock(name, asker=Asker(run=fields.run(), process=process)):
            return {"ok": True}
        raise InvalidInputError(
            f"the lease {name} was lost before its lock was given back",
            hint="another node may have had it meanwhile; see the agent's log",
        )


def trigger_line(call: bus.Call) -> bytes:
    """Return the line that asks for a trigger in the name of the run that is on."""
    question = {
        "verb": "trigger",
        "name": "by hand",
        "hosts": list(call.hosts),
        "tags": list(call.tags),
        "ttl": call.ttl,
        "keyprefix": call.keyprefix,
        "keyttl": call.keyttl,
        "engine": None,
        "run": None,
    }
    return json.dumps(question).encode() + b"\n"


class _Fields:
    """The fields of a question, each read once and strictly."""

    def __init__(self, raw: Mapping[str, Json]) -> None:
        self.raw = raw

    def text(self, key: str) -> str:
        value = self.raw.get(key)
        if not isinstance(value, str):
            raise InvalidInputError("must be a string", where=f"call: {key}")
        return value

    def optional(self, key: str) -> str | None:
        return None if self.raw.get(key) is None else self.text(key)

    def run(self) -> str | None:
        run = self.optional("run")
        return None if run is None else RunId.parse(run)

    def truth(self, key: str, *, default: bool) -> bool:
        value = self.raw.get(key, default)
        if not isinstance(value, bool):
            raise InvalidInputError("must be true or false", where=f"call: {key}")
        return value

    def texts(self, key: str, most: int) -> list[str]:
        value = self.raw.get(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise InvalidInputError("must be a list of strings", where=f"call: {key}")
        if len(value) > most:
            raise InvalidInputError(
                f"has {len(value)} elements, the limit is {most}", where=f"call: {key}"
            )
        return [str(item) for item in value]

    def whole(self, key: str, *, most: int, least: int = 1, default: int | None = None) -> int:
        value = self.raw.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise InvalidInputError(
                f"must be an integer from {least} to {most}", where=f"call: {key}"
            )
        return value
