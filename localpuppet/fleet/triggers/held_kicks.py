"""Kicks of a run, stored on disk until the run is over and its changes are published.

`kicks/RUN.json` in the state directory has the receivers, and whether the kick may be sent;
`runs/RUN/kicks.json` has the receivers for people.

- A kicked node queries data of the node that kicked it. So a kick is sent after the run's entry:
  otherwise the receiver would run with outdated data.
- A run sends each node one trigger, however many of its kicks match the node.
- A kick survives the agent, a crash and an outage of the bus, for `GIVE_UP` seconds.
- A kick that is sent again, after a send with an unknown result, has the same id: it counts once.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.names import NodeName, RunId, parse_tag, parse_uuid
from localpuppet.base.formats.times import parse_time
from localpuppet.base.formats.values import field_values
from localpuppet.base.machine.files import disk_errors, make_private, remove, write_json
from localpuppet.base.machine.ports import Clock
from localpuppet.base.value import Value
from localpuppet.fleet.triggers.trigger import MAX_TAGS
from localpuppet.node.runs.records import Records, RunDirectory
from localpuppet.node.runs.run import RunState

if TYPE_CHECKING:
    from localpuppet.fleet.triggers.sending import Outgoing

SCHEMA = 1
GIVE_UP = 3600.0
# Seconds for a running supervisor to release the kicks after it closed a record.
SETTLING = 30.0
MAX_RECEIVERS = 10_000
MAX_LIFE = 86400


class HeldKick(Value):
    """The kick of one run.

    Attributes:
        run: The run.
        uuid: The id of the trigger.
        at: When the first of its kicks was made: seconds since 1970, UTC.
        call: The trigger to send.
        released_at: When the run was over and had published its entry; `None` before.
    """

    run: RunId
    uuid: str
    at: float
    call: "Outgoing"
    released_at: float | None = None

    @classmethod
    def parse(cls, raw: Fields) -> "HeldKick":
        """Return the value that `to_dict` wrote."""
        from localpuppet.fleet.triggers.sending import (
            Outgoing,  # 20 ms that a run without kicks saves
        )

        raw.schema(SCHEMA)
        released = raw.number("released_at")
        return cls(
            run=raw.parsed("run", RunId.parse),
            uuid=raw.parsed("uuid", parse_uuid),
            at=raw.number("at"),
            call=Outgoing(
                hosts=raw.parsed_list("hosts", NodeName.parse, maximum=MAX_RECEIVERS),
                tags=raw.parsed_list("tags", parse_tag, maximum=MAX_TAGS),
                ttl=raw.integer("ttl", minimum=1),
                keyprefix=raw.text("keyprefix"),
                keyttl=raw.integer("keyttl", minimum=1, maximum=MAX_LIFE),
            ),
            released_at=released or None,
        )

    def to_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "schema": SCHEMA,
            "run": str(self.run),
            "uuid": self.uuid,
            "at": self.at,
            "released_at": self.released_at or 0,
            **field_values(self.call),
        }

    def with_more(self, call: "Outgoing") -> "HeldKick":
        """Return the kick with the receivers of another one of the same run added.

        Raises:
            InvalidInputError: There are too many receivers.
        """
        mine = self.call
        hosts = tuple(dict.fromkeys((*mine.hosts, *call.hosts)))
        if len(hosts) > MAX_RECEIVERS:
            raise InvalidInputError(
                f"the run kicks {len(hosts)} nodes, the limit is {MAX_RECEIVERS}", where="kick"
            )
        tags = tuple(dict.fromkeys((*mine.tags, *call.tags)))[:MAX_TAGS]
        longest = max(mine.ttl, call.ttl)
        together = replace(mine, hosts=hosts, tags=tags, ttl=longest, keyttl=longest)
        return replace(self, call=together)


class HeldKicks:
    """The stored kicks.

    Args:
        state: The state directory.
        records: The runs.
        clock: The node's clock.
    """

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

    def hold(self, run: RunId, call: "Outgoing", *, uuid: str) -> None:
        """Store a kick until its run is over.

        Args:
            run: The run.
            call: The trigger to send.
            uuid: The id of the trigger, if this is the run's first kick.

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
        hosts = [*map(str, kick.call.hosts)]
        record = _record(self._records, run)
        if record.parent.is_dir():  # the record of a forgotten run is gone
            write_json(record, {"schema": SCHEMA, "nodes": hosts})

    def release(self, run: RunId) -> bool:
        """Release a finished run's kicks; return whether there are any.

        Raises:
            StateError: The disk fails; the kicks are sent all the same, like those of a crashed
                run.
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
        from localpuppet.fleet.triggers.sending import paths_of

        return paths_of(self._records, kick.run)

    def _is_dead(self, run: RunId) -> bool:
        """Return whether a run ended without a release of its kicks: its supervisor crashed."""
        status = self._records.status(RunDirectory(self._records.directory / run))
        if status.state is not RunState.FINISHED:
            return False
        ended = status.finished_at
        return ended is None or self._now() - parse_time(ended).timestamp() > SETTLING

    def _read(self, run: RunId) -> HeldKick | None:
        path = self._file(run)
        try:
            return HeldKick.parse(Fields(read_json(path), where=str(path)))
        except FileNotFoundError:
            return None
        except InvalidInputError as error:
            raise StateError(
                f"is damaged: {error.what}", where=str(path), hint="remove it"
            ) from error

    def _file(self, run: RunId) -> Path:
        return self._directory / f"{run}.json"

    def _now(self) -> float:
        return self._clock.now().timestamp()


def kicked_by(records: Records, run: RunId) -> tuple[NodeName, ...]:
    """Return the nodes that a run kicked, or was about to kick when its node crashed."""
    path = _record(records, run)
    try:
        raw = Fields(read_json(path), where=str(path))
        raw.schema(SCHEMA)
        return raw.parsed_list("nodes", NodeName.parse, maximum=MAX_RECEIVERS)
    except FileNotFoundError:
        return ()
    except InvalidInputError as error:
        raise StateError(f"is damaged: {error.what}", where=str(path)) from error


def _record(records: Records, run: RunId) -> Path:
    return records.directory / run / "kicks.json"
