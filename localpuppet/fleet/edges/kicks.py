"""Kicks: triggers of a finished run to the nodes of a role or query, held until it is published.

- A kick has roles, literally, or a query in the language of `query_nodes`; never both.
- In the inventory, a kick is a list of queries in that language, one for each role.

Example: `Kick(roles=("haproxy",)).texts == ('role="haproxy"',)`.

`kicks/RUN.json` in the state directory has the receivers, and whether the kick may be sent;
`runs/RUN/kicks.json` has the receivers for people.

- A kicked node queries data of the node that kicked it. So a kick is sent after the run's entry:
  otherwise the receiver would run with outdated data.
- A run sends each node one trigger, however many of its kicks match the node.
- A kick survives the agent, a crash and an outage of the bus, for `GIVE_UP` seconds.
- A kick that is sent again, after a send with an unknown result, has the same id: it counts once.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, StateError
from localpuppet.base.formats.converter import AllowedRange, JsonRecord, Message
from localpuppet.base.formats.json_file import read_record
from localpuppet.base.formats.names import NodeName, RunId, parse_uuid
from localpuppet.base.formats.text import shown_names
from localpuppet.base.formats.times import parse_time
from localpuppet.base.machine.files import disk_errors, make_private, remove, write_json
from localpuppet.base.machine.ports import Clock, LineKind, Log
from localpuppet.fleet.bus.bus_limits import MAX_RECEIVERS, MAX_ROLES, MAX_TRIGGER_TAGS
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.store_calls import ours
from localpuppet.fleet.inventory.entry import parse_role
from localpuppet.fleet.inventory.query.functions import FunctionCall
from localpuppet.fleet.triggers import sending
from localpuppet.fleet.trust.signing import MessageSigner
from localpuppet.node.runs.run import RunState
from localpuppet.node.runs.run_records import Records, RunDirectory

_QUOTED, _ESCAPED = re.compile(r'(["\\])'), r"\\\1"


class Kick(Message):
    """The receivers of a kick: nodes with one of the roles, or of a query, never both."""

    WHERE, IS_OPEN = "kick", True
    roles: Annotated[tuple[Annotated[str, parse_role], ...], AllowedRange(maximum=MAX_ROLES)]
    query: str | None = None

    def __post_init__(self) -> None:
        if bool(self.roles) == bool((self.query or "").strip()):
            raise InvalidInputError(
                "has roles and a query" if self.roles else "has neither roles nor a query",
                hint="kick { 'haproxy': roles => ['haproxy'] }",
            )

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the queries that find the receivers."""
        if self.query:
            return (self.query,)
        roles = dict.fromkeys(self.roles)
        return tuple(f'role="{_QUOTED.sub(_ESCAPED, role)}"' for role in roles)

    @property
    def question(self) -> FunctionCall:
        """Return the inventory query for the receivers."""
        return FunctionCall.of("query_nodes", [" or ".join(self.texts)])


class NotedKick(Kick):
    """A kick as the Puppet modules record it."""

    SCHEMA: ClassVar = 1


GIVE_UP = 3600.0
# Seconds for a running supervisor to release the kicks after it closed a record.
SETTLING = 30.0


class HeldKick(JsonRecord):
    """The kick of one run, since its first one; released when the run has published its entry."""

    SCHEMA: ClassVar = 1
    run: RunId
    uuid: Annotated[str, parse_uuid]
    at: float
    call: sending.Outgoing
    released_at: float | None = None

    def with_more(self, call: sending.Outgoing) -> "HeldKick":
        """Return the kick with the receivers of another one of the same run added."""
        mine = self.call
        hosts = tuple(dict.fromkeys((*mine.hosts, *call.hosts)))
        if len(hosts) > MAX_RECEIVERS:
            raise InvalidInputError(
                f"the run kicks {len(hosts)} nodes, the limit is {MAX_RECEIVERS}", where="kick"
            )
        tags = tuple(dict.fromkeys((*mine.tags, *call.tags)))[:MAX_TRIGGER_TAGS]
        longest = max(mine.ttl, call.ttl)
        together = replace(mine, hosts=hosts, tags=tags, ttl=longest, keyttl=longest)
        return replace(self, call=together)


class _KickedNodes(JsonRecord):
    SCHEMA: ClassVar = 1
    nodes: sending.Receivers


class HeldKicks:
    """The stored kicks."""

    def __init__(self, state: Path, records: Records, clock: Clock) -> None:
        self._directory = state / "kicks"
        self._records = records
        self._clock = clock

    @property
    def are_there(self) -> bool:
        """Whether any run has a stored kick."""
        return bool(self.runs())

    def is_on(self, run: str) -> bool:
        """Return whether a run's record is open, so that its supervisor will release its kicks."""
        return RunDirectory(self._records.directory / run).is_open

    def hold(self, run: RunId, call: sending.Outgoing, *, uuid: str) -> None:
        """Store a kick until its run is over; `uuid` is for the run's first kick.

        Raises:
            InvalidInputError: The run kicks too many nodes.
            StateError: The disk fails; nothing is stored.
        """
        before = self._read(run)
        kick = (
            HeldKick(run=run, uuid=uuid, at=self._now(), call=call)
            if before is None
            else before.with_more(call)
        )
        make_private(self._directory)
        write_json(self._file(run), kick.to_dict())
        # The record second: it must not name receivers of a kick that is not stored.
        record = _record(self._records, run)
        if record.parent.is_dir():  # the record of a forgotten run is gone
            write_json(record, _KickedNodes(nodes=kick.call.hosts).to_dict())

    def release(self, run: RunId) -> bool:
        """Release a finished run's kicks; return whether there are any.

        If the disk fails, they are sent all the same, like those of a crashed run.
        """
        kick = self._read(run)
        if kick is None:
            return False
        write_json(self._file(run), replace(kick, released_at=self._now()).to_dict())
        return True

    def runs(self) -> list[RunId]:
        """Return the runs with stored kicks, the oldest first."""
        ids = []
        with disk_errors(self._directory):
            names = [path.stem for path in self._directory.glob("*.json")]
        for name in names:
            try:
                ids.append(RunId.parse(name))
            except InvalidInputError:
                continue  # not a kick
        return sorted(ids)

    def due(self, run: RunId) -> HeldKick | None:
        """Return the kicks of a finished run; `None` while it runs, or without kicks."""
        kick = self._read(run)
        if kick is None or (kick.released_at is None and not self._is_dead(run)):
            return None
        return kick

    def drop(self, kick: HeldKick) -> None:
        """Delete a kick that was sent or is too old."""
        remove(self._file(kick.run))

    def is_too_old(self, kick: HeldKick) -> bool:
        """Return whether a kick has waited too long to be sent."""
        return self.waited(kick) > GIVE_UP

    def waited(self, kick: HeldKick) -> float:
        """Return for how many seconds a kick has waited since its run was over."""
        return self._now() - (kick.released_at or kick.at)

    def paths(self, kick: HeldKick) -> list[tuple[NodeName, ...]]:
        """Return the paths along which a kick is sent; see `paths_of`."""
        return sending.paths_of(self._records, kick.run)

    def _is_dead(self, run: RunId) -> bool:
        """Return whether a run ended without a release of its kicks: its supervisor crashed."""
        status = self._records.status(RunDirectory(self._records.directory / run))
        if status.state is not RunState.FINISHED:
            return False
        ended = status.finished_at
        return ended is None or self._now() - parse_time(ended).timestamp() > SETTLING

    def _read(self, run: RunId) -> HeldKick | None:
        return read_record(self._file(run), HeldKick.from_dict, hint="remove it")

    def _file(self, run: RunId) -> Path:
        return self._directory / f"{run}.json"

    def _now(self) -> float:
        return self._clock.now().timestamp()


def kicked_by(records: Records, run: RunId) -> tuple[NodeName, ...]:
    """Return the nodes that a run kicked, or was about to kick when its node crashed."""
    kicked = read_record(_record(records, run), _KickedNodes.from_dict)
    return () if kicked is None else kicked.nodes


def _record(records: Records, run: RunId) -> Path:
    return records.directory / run / "kicks.json"


# Seconds after a run for which its kicks wait for the publication of its changes.
PATIENCE = 10.0


@dataclass(slots=True, eq=False)
class KickSending:
    """Sends stored kicks."""

    held: HeldKicks
    _: KW_ONLY
    signer: MessageSigner
    store: Callable[[], Awaitable[KeyValue]]
    clock: Clock
    log: Log
    _logged: str = field(default="", init=False)

    async def step(self, *, notified: bool) -> None:
        """Send the kicks that may be sent; log failures, and try them again in the next step.

        `notified` is whether this node's changes are on the bus.
        """
        problems = []
        try:
            for run in self.held.runs():
                try:
                    await self._step(run, notified=notified)
                except StateError as error:
                    problems.append(str(error))  # one damaged file does not delay the others
        except LocalpuppetError as error:
            problems.append(str(error))
        problem = "; ".join(problems)
        if problem and problem != self._logged:
            self._warn(f"kicks wait: {problem}")
        self._logged = problem

    async def _step(self, run: RunId, *, notified: bool) -> None:
        kick = self.held.due(run)
        if kick is None:
            return
        if self.held.is_too_old(kick):
            self.held.drop(kick)
            self._warn(f"{_who(kick)} not kicked: the bus was unreachable for too long")
        elif notified or self.held.waited(kick) > PATIENCE:
            await self._send(kick)

    async def _send(self, kick: HeldKick) -> None:
        try:
            sent = await sending.send(
                kick.call,
                kv=await ours(self.store()),
                signer=self.signer,
                paths=self.held.paths(kick),
                clock=self.clock,
                uuid=kick.uuid,
            )
        except InvalidInputError as error:
            # Its run is forgotten, or no receiver accepts the trigger: a retry cannot help.
            self._warn(f"{_who(kick)} not kicked: {error}")
        else:
            self._tell(kick, sent)
        self.held.drop(kick)

    def _tell(self, kick: HeldKick, sent: sending.SendResult) -> None:
        if sent.sent:
            names = shown_names(sent.sent)
            self.log.info(f"run {kick.run} kicks {names} ({sent.uuid})", kind=LineKind.KICK)
        for node, reason in sent.dropped.items():
            self.log.info(f"{node} is not kicked: {reason}", kind=LineKind.KICK)

    def _warn(self, text: str) -> None:
        self.log.warning(text, kind=LineKind.KICK)


def _who(kick: HeldKick) -> str:
    few = len(kick.call.hosts) == 1
    return f"{shown_names(kick.call.hosts)} {'is' if few else 'are'}"
