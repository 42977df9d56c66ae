"""What keeps a run from starting: holds on this node, Puppet's own disable file, another run.

A hold is a reason, an owner and a deadline; while it is in force, the node does not run.

Puppet inherits the lock's descriptor: if the supervisor dies, no second run starts beside Puppet.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from localpuppet.base.errors import BusyError, InvalidInputError, OnHoldError, StateError
from localpuppet.base.formats.converter import JsonRecord
from localpuppet.base.formats.json_file import json_files, read_json
from localpuppet.base.formats.names import RolloutId, RunId, SignerName
from localpuppet.base.formats.schema_number import without_schema
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import one_line, parse_line
from localpuppet.base.formats.times import TimeText, checked_time, parse_time
from localpuppet.base.machine.files import make_private, make_public, remove, write_json
from localpuppet.base.machine.flock import Flock
from localpuppet.base.machine.ports import Clock, Processes, ProcessId
from localpuppet.base.value import Value
from localpuppet.node.runs.run import Status

_ROLLOUT = "/rollout/"
# How far this node's clock may be behind the one of the process that made a hold.
CLOCK_TOLERANCE = timedelta(minutes=1)
SHORT = timedelta(minutes=10)  # times of a shorter hold are shown with seconds
# In Puppet's disable file: who wrote it. Puppet reads `disabled_message` only.
MARK = "localpuppet"
SCHEMA = 1
_ENDING = "'localpuppet enable' ends your own hold, 'localpuppet enable --all-owners' every one"


def _time_or_nothing(text: str) -> str:
    return text and checked_time(text)


class Hold(JsonRecord):
    """One reason why a node does not run.

    Attributes:
        owner: The owner, who has at most one hold on a node. A rollout owns its hold as
            `CALLER/rollout/ID`.
        until: When the hold expires; `None` for never.
    """

    owner: str
    reason: Annotated[str, partial(parse_line, what="reason")]
    since: Annotated[str, _time_or_nothing]
    until: TimeText | None

    @property
    def of_rollout(self) -> bool:
        return _ROLLOUT in self.owner

    def active(self, now: datetime) -> bool:
        """Return whether the hold is in force at `now`."""
        return self.until is None or now < parse_time(self.until)

    def is_misdated(self, now: datetime) -> bool:
        """Return whether the hold's deadline is too late because the clock was ahead."""
        made = parse_time(self.since) if self.since else now
        return self.until is not None and made > now + CLOCK_TOLERANCE

    def shown(self, now: datetime) -> str:
        """Return one line for people, with a note if a wrong clock set the deadline."""
        wrong = "; the clock was wrong when this hold was created, so its deadline is wrong too"
        return f"{self}{wrong if self.is_misdated(now) else ''}"

    def __str__(self) -> str:
        begin, end = (parse_time(text) if text else None for text in (self.since, self.until))
        short = begin is not None and end is not None and end - begin < SHORT
        form = "%Y-%m-%d %H:%M:%S UTC" if short else "%Y-%m-%d %H:%M UTC"
        since = f" since {begin.strftime(form)}" if begin else ""
        deadline = f" until {end.strftime(form)}" if end else ""
        return f"{self.reason} (held by {self.owner}{since}{deadline})"


class HoldStatus(Value):
    """The holds in force on a node, summarised.

    Attributes:
        reason: The oldest hold, in one line; a hold of a person comes before those of rollouts.
        alone: Whether only rollouts hold the node: a step of the rollout may run, and other
            requests wait until the rollout is over, whatever their ttl.
    """

    reason: str
    rollouts: frozenset[str] = frozenset()
    alone: bool = False

    @classmethod
    def by(cls, holds: Iterable[Hold]) -> "HoldStatus | None":
        """Return the summary of holds in force, oldest first; `None` without any."""
        listed = list(holds)
        if not listed:
            return None
        others = [hold for hold in listed if not hold.of_rollout]
        owners = frozenset(hold.owner for hold in listed if hold.of_rollout)
        return cls(
            reason=str((others or listed)[0]),
            rollouts=owners,
            alone=not others and len(owners) == 1,
        )


def rollout_owner(caller: str, rollout: str) -> str:
    """Return the owner of a rollout's holds."""
    return f"{caller}{_ROLLOUT}{rollout}"


def rollout_of(owner: str) -> tuple[str, RolloutId] | None:
    """Return the caller and the id in the owner of a rollout's holds; `None` for other owners."""
    caller, between, rollout = owner.partition(_ROLLOUT)
    if not between:
        return None
    try:
        return SignerName.parse_caller(caller).caller, RolloutId.parse(rollout)
    except InvalidInputError:
        return None


def active(holds: Iterable[Hold], now: datetime) -> list[Hold]:
    """Return the holds that are in force at `now`, oldest first."""
    return sorted((hold for hold in holds if hold.active(now)), key=lambda hold: hold.since)


class Holds:
    """The holds on this node, below `directory`, and in Puppet's `agent_disabled_lockfile`."""

    def __init__(self, directory: Path, disable_file: Path | None, clock: Clock) -> None:
        self._directory = directory
        self._disable_file = disable_file
        self._clock = clock

    @property
    def with_puppets(self) -> bool:
        """Whether the path of Puppet's disable file is known."""
        return self._disable_file is not None

    def active(self) -> list[Hold]:
        """Return the holds in force, oldest first; Puppet's own disable is one of them.

        Raises:
            StateError: A hold cannot be read, so that the node must not run.
        """
        return active([*self._read().values(), *self._foreign()], self._clock.now())

    def _read(self) -> dict[Path, Hold]:
        holds = {}
        for path in json_files(self._directory):
            try:
                holds[path] = _read_hold(path)
            except FileNotFoundError:
                continue  # its owner was faster
            except StateError as error:
                raise (error if error.where else error.at(str(path))) from error
        return holds

    def _foreign(self) -> list[Hold]:
        content = self._disabled()
        if content is None or MARK in content:
            return []
        reason = one_line(str(content.get("disabled_message") or "no reason given"))
        return [Hold(owner="puppet agent --disable", reason=reason, since="", until=None)]

    def _disabled(self) -> dict[str, object] | None:
        if self._disable_file is None:
            return None
        try:
            return read_json(self._disable_file)
        except FileNotFoundError:
            return None
        except StateError:
            return {}  # Puppet takes any file there for "disabled", and localpuppet does, too

    def add(self, hold: Hold) -> None:
        """Put a hold on this node, in place of the same owner's earlier one."""
        make_private(self._directory)
        write_json(self._path(hold.owner), {"schema": SCHEMA, **hold.to_dict()})
        self.settle()

    def remove(self, owner: str | None) -> list[Hold]:
        """Remove the holds of `owner`, or all with Puppet's own for `None`; return them."""
        if owner is None:
            self._remove_damaged()
        ended = [hold for hold in self.active() if owner in (None, hold.owner)]
        for hold in ended:
            remove(self._path(hold.owner))
        if owner is None and self._disable_file is not None and self._disable_file.exists():
            remove(self._disable_file)
        self.settle()
        return ended

    def _remove_damaged(self) -> None:
        for path in json_files(self._directory):
            try:
                _read_hold(path)
            except FileNotFoundError:
                continue
            except StateError:
                remove(path)

    def settle(self) -> None:
        """Remove expired holds, and make Puppet's disable file agree with the rest."""
        now = self._clock.now()
        holds = self._read()
        for path, hold in holds.items():
            if not hold.active(now):
                remove(path)
        ours = active(holds.values(), now)
        content = self._disabled()
        if self._disable_file is None or (content is not None and MARK not in content):
            return
        if ours:
            make_public(self._disable_file.parent)
            message = f"localpuppet: {ours[0]}"
            write_json(self._disable_file, {"disabled_message": message, MARK: True}, mode=0o644)
        elif not ours and content is not None:
            remove(self._disable_file)

    def check(self, *, through: str | None = None) -> None:
        """Refuse a run while a hold is in force.

        Raises:
            OnHoldError: A hold of another owner is in force.
        """
        holds = [hold for hold in self.active() if hold.owner != through]
        if holds:
            others = f" and {len(holds) - 1} more" if len(holds) > 1 else ""
            shown = holds[0].shown(self._clock.now())
            raise OnHoldError(f"on hold: {shown}{others}", hint=_ENDING)

    def _path(self, owner: str) -> Path:
        import hashlib  # 3 ms that `status` saves

        return self._directory / f"{hashlib.sha256(owner.encode()).hexdigest()[:24]}.json"


def _read_hold(path: Path) -> Hold:
    return Hold.from_dict(without_schema(read_json(path), SCHEMA))


# How long a holder may take to write its name after it got the lock.
INTRODUCTION = 2.0


class NodeLock:
    """The right to run on this node."""

    def __init__(self, path: Path, processes: Processes) -> None:
        self._path = path
        self._processes = processes
        self._flock: Flock | None = None
        self._owner = 0

    @property
    def fd(self) -> int:
        """The descriptor that carries the lock, for Puppet to inherit."""
        if self._flock is None:
            raise AssertionError("the lock is asked for only while it is held")
        return self._flock.fd

    def take(self, run: RunId, clock: Clock) -> None:
        """Take the lock for `run`."""
        deadline = clock.monotonic() + INTRODUCTION
        while (flock := Flock.take(self._path)) is None:
            holder = self._holder()
            if holder is not None or clock.monotonic() > deadline:
                raise _busy(holder)
            self._processes.sleep(0.01)
        self._flock = flock
        self._owner = os.getpid()
        self._say(run, asdict(self._processes.me()))

    def held_by(self, status: Status) -> None:
        """Write which processes carry the lock now; this process is its owner from here on."""
        self._owner = os.getpid()
        self._say(status.id, status.supervisor, status.puppet)

    def release(self) -> None:
        """Release the lock, also if a daemon inherited it from Puppet.

        A process that passed the lock to its child has nothing to release.
        """
        if self._flock is not None and self._owner == os.getpid():
            self._flock.say(None)
            self._flock.release()
        self._flock = None

    def leave(self) -> None:
        """Leave the lock to a Puppet that does not die; the lock is free when Puppet ends."""
        if self._flock is not None:
            os.close(self._flock.fd)
            self._flock = None

    def _say(self, run: RunId, *processes: Mapping[str, Any] | None) -> None:
        if self._flock is not None:
            self._flock.say(
                {"run": run, "processes": [process for process in processes if process]}
            )

    def _holder(self) -> "_Holder | None":
        """Return the run that the lock names, if a process that it names lives."""
        try:
            content = loads(self._path.read_bytes())
            processes = [ProcessId.from_dict(process) for process in content["processes"]]
            living = [process for process in processes if self._processes.alive(process)]
            supervised = bool(living) and living[0] == processes[0]
            return (
                _Holder(RunId.parse(content["run"]), living[-1].pid, supervised) if living else None
            )
        except (OSError, ValueError, KeyError, TypeError, InvalidInputError):
            return None


class _Holder(NamedTuple):
    """The holder of the lock: a run, one of its processes, and whether its supervisor lives."""

    run: RunId
    pid: int
    supervised: bool


def _busy(holder: _Holder | None) -> BusyError:
    if holder is None:
        return BusyError("busy: another run holds this node (it has not recorded its id yet)")
    if holder.supervised:
        return BusyError(
            f"busy: run {holder.run} is using this node",
            hint="'localpuppet status --wait' waits for it",
        )
    return BusyError(
        f"busy: Puppet of run {holder.run} (pid {holder.pid}) still runs without its supervisor",
        hint="try again when it has ended",
    )
