"""Answer calls of Puppet code on this node: one line of JSON in, one line out.

- This module answers `leader`, `lock` and `unlock`; `trigger_calls` answers `trigger` and `kick`,
  `inventory_calls` answers `query`, `export_calls` answers `export` and `collect`.
- The line comes from the agent's socket or from `localpuppet call`.
- The answer to any input is one line with `ok` true or false; an error in it is one printable line.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.json_text import members
from localpuppet.base.formats.names import RunId
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import field_values
from localpuppet.base.machine.ports import ProcessId
from localpuppet.fleet.agent.export_calls import ExportCalls
from localpuppet.fleet.agent.inventory_calls import InventoryCalls
from localpuppet.fleet.agent.trigger_calls import TriggerCalls
from localpuppet.fleet.bus import layout
from localpuppet.fleet.captures.answers import note_answer
from localpuppet.fleet.leases.book import LockUser
from localpuppet.fleet.leases.keeper import Keeper
from localpuppet.fleet.leases.lease import LONGEST_LEADER
from localpuppet.fleet.triggers import sending
from localpuppet.node.runs.records import Records

MAX_LINE = 1024 * 1024
MAX_WAIT = 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class PuppetCalls:
    """Answers calls.

    Attributes:
        triggers: Answers calls that send triggers.
        inventory: Answers queries about nodes.
        exports: Answers exports and collectors.
        keeper: This node's leases; `None` in a process that does not stay to renew them.
        records: The records of runs.
        name: The name that this node signs with.
    """

    triggers: TriggerCalls
    inventory: InventoryCalls
    exports: ExportCalls
    keeper: Keeper | None
    records: Records
    name: str

    async def answer(self, line: bytes, process: ProcessId | None = None) -> bytes:
        """Return the answer to a line, with its newline.

        Args:
            line: The line.
            process: The calling process, if known: its locks are released when it ends.
        """
        try:
            fields = Fields.parse(line, where="call", limit=MAX_LINE)
            reply = await self._answer(fields, process)
            await asyncio.to_thread(self._note, fields, reply)
        except LocalpuppetError as error:
            reply = {"ok": False, "error": one_line(str(error))}
        return members(reply, end="\n").encode()

    async def _answer(self, fields: Fields, process: ProcessId | None) -> dict[str, Any]:
        verb = fields.text("verb")
        if verb == "trigger":
            return await self.triggers.trigger(fields, _run(fields))
        if verb == "kick":
            return await self.triggers.kick(fields, _run(fields))
        if verb == "query":
            return await self.inventory.answer(fields, _run(fields))
        if verb == "export":
            return await self.exports.export(_run(fields))
        if verb == "collect":
            return await self.exports.collect(fields, _run(fields))
        if self.keeper is None:
            raise InvalidInputError(
                "no process on this node would renew the lease",
                where=verb,
                hint="start 'localpuppet agent'",
            )
        if verb == "leader":
            return await self._leader(fields, self.keeper)
        if verb == "lock":
            return await self._lock(fields, self.keeper, process)
        if verb == "unlock":
            return await self._unlock(fields, self.keeper, process)
        raise InvalidInputError(f"the verb {verb[:40]!r} is unknown", where="call")

    def _note(self, fields: Fields, reply: Mapping[str, Any]) -> None:
        """Note the answer to a catalog that is compiled in a run, for the run's capture."""
        verb = fields.text("verb")
        if verb not in ("query", "collect", "leader") or not (run := self.records.on(_run(fields))):
            return
        if verb == "query":
            arguments = fields.values("arguments")
            note_answer(run, fields.text("function"), arguments, reply["answer"])
        elif verb == "collect":
            arguments = [fields.text("type"), fields.values_or_none("filter")]
            note_answer(run, verb, arguments, reply["resources"])
        else:
            arguments = [fields.text("name"), fields.integer("ttl")]
            note_answer(run, verb, arguments, reply["holder"])

    async def _leader(self, fields: Fields, keeper: Keeper) -> dict[str, Any]:
        name = layout.parse_lease_name(fields.text("name"))
        ttl = fields.integer("ttl", minimum=1, maximum=LONGEST_LEADER)
        take = fields.boolean("take") if "take" in fields else True
        holder = await keeper.leader(name, ttl=ttl, take=take)
        return {"ok": True, "holder": holder, "mine": holder == self.name}

    async def _lock(
        self, fields: Fields, keeper: Keeper, process: ProcessId | None
    ) -> dict[str, Any]:
        name = layout.parse_lease_name(fields.text("name"))
        wait = fields.integer("wait", minimum=0, maximum=MAX_WAIT)
        user = LockUser(run=_run(fields), process=process)
        revision = await keeper.lock(name, wait=wait, user=user)
        return {"ok": True, "revision": revision}

    async def _unlock(
        self, fields: Fields, keeper: Keeper, process: ProcessId | None
    ) -> dict[str, Any]:
        name = layout.parse_lease_name(fields.text("name"))
        if await keeper.unlock(name, user=LockUser(run=_run(fields), process=process)):
            return {"ok": True}
        raise InvalidInputError(
            f"the lease {name} was lost before its lock was released",
            hint="another node may have had it meanwhile; see the agent's log",
        )


def _run(fields: Fields) -> str | None:
    return fields.parsed_or_none("run", RunId.parse)


def trigger_line(call: sending.Outgoing) -> bytes:
    """Return the line that sends a trigger on behalf of the run in progress."""
    question = {"verb": "trigger", "name": "by hand", "engine": None, "run": None}
    return json.dumps(question | field_values(call)).encode() + b"\n"
