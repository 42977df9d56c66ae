"""The ledger: the order in which releases were first applied, and the rollback in force.

The files are `applied.json` and `rollback.json` in the state directory. A source only moves forward
by itself, by the times in its tags if they are known (`releases.verification`). An operator can
decide to roll back; the rollback ends when the input changes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.converter import JsonRecord
from localpuppet.base.formats.json_file import read_record
from localpuppet.base.formats.names import ReleasePath, RunId
from localpuppet.base.formats.times import TimeText, parse_time
from localpuppet.base.machine.files import make_private, remove, write_json
from localpuppet.base.value import Value
from localpuppet.node.releases.verification import TagMemory

SCHEMA = 1


class AppliedElsewhere(Value):
    """The release that other nodes report for a reinstalled node without a ledger.

    Without the time in its tag, no order follows.
    """

    release: ReleasePath
    tagged_at: int | None


class Rollback(JsonRecord):
    """A decision to run an earlier release with its earlier node document.

    Attributes:
        run: The good run whose node document is used.
        input_sha256: The input that it overrules; a changed input ends it.
        serial: The serial of the assignment that it overrules; a new assignment ends it. 0 if the
            input named the release itself.
    """

    SCHEMA: ClassVar = SCHEMA
    release: ReleasePath
    run: RunId
    node_document: Mapping[str, Any]
    input_sha256: str
    user: str
    since: TimeText
    input_release: str
    serial: int

    def stands(self, input_sha256: str, serial: int) -> bool:
        """Return whether the decision is in force for an input; a changed input ends it."""
        return self.input_sha256 == input_sha256 and self.serial in (0, serial)

    def to_public(self) -> dict[str, str]:
        """Return what other nodes may read: all fields but the node document."""
        names = ("input_release", "release", "run", "user", "since")
        return {name: str(getattr(self, name)) for name in names}

    def __str__(self) -> str:
        """Return one line for people."""
        since = parse_time(self.since).strftime("%Y-%m-%d %H:%M UTC")
        decided = f"rolled back to {self.release} by {self.user} at {since}"
        return f"{decided}; the input names {self.input_release}"


class AppliedReleases(JsonRecord):
    """By source: the tags in the order of their first run, and the tag that was applied last."""

    SCHEMA: ClassVar = SCHEMA
    order: Mapping[str, tuple[ReleasePath, ...]]
    current: Mapping[str, ReleasePath]


class Ledger:
    """The releases that were applied on this node, in order."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._applied = state / "applied.json"
        self._rollback = state / "rollback.json"
        self._memory = TagMemory(state)

    def order(self, source: str) -> list[ReleasePath]:
        """Return the tags of `source` that were applied, in the order of their first run."""
        return [*self._read().order.get(source, ())]

    def sources(self) -> list[str]:
        """Return every source that has releases in the ledger."""
        return sorted(self._read().order)

    def current(self, source: str) -> ReleasePath | None:
        """Return the tag of `source` that was applied last; or `None`."""
        return self._read().current.get(source)

    def _read(self) -> AppliedReleases:
        hint = "move it away; the order of releases then starts again"
        applied = read_record(self._applied, AppliedReleases.from_dict, hint=hint)
        return applied or AppliedReleases(order={}, current={})

    def begins(self, app: ReleasePath) -> bool:
        """Return whether no release of a tag's source was ever applied on this node."""
        return app.is_tag and self.current(app.source) is None

    def check_forward(self, app: ReleasePath, *, before: AppliedElsewhere | None = None) -> None:
        """Reject a release that is older than the last applied release of its source.

        If the times inside both tags are known and differ, they decide, because they are signed.
        Otherwise the order of the first runs on this node decides. What other nodes report as
        applied `before`, for a source that the ledger does not know, can only lead to a rejection.
        """
        current = self.current(app.source)
        if current is None and before is not None:
            self._check_elsewhere(app, before)
        if not app.is_tag or current is None or app == current:
            return
        times = (self._memory.tagged_at(app), self._memory.tagged_at(current))
        if times[0] is not None and times[1] is not None and times[0] != times[1]:
            older, why = times[0] < times[1], "by tag timestamp"
        else:
            order = self.order(app.source)
            older = app in order and order.index(app) < order.index(current)
            why = "which was applied after it"
        if older:
            raise InvalidInputError(
                f"is older than {current}, {why}",
                where=str(app),
                hint="run 'localpuppet rollback', or 'localpuppet apply --allow-older'",
            )

    def _check_elsewhere(self, app: ReleasePath, before: AppliedElsewhere) -> None:
        mine, last = self._memory.tagged_at(app), before.tagged_at
        same_source = app.is_tag and app.source == before.release.source
        if same_source and mine is not None and last is not None and mine < last:
            raise InvalidInputError(
                f"is older, by tag timestamp, than {before.release}, which this node published"
                " as its last release",
                where=str(app),
                hint="to accept it, run 'localpuppet apply --allow-older'",
            )

    def note(self, app: ReleasePath) -> None:
        """Record that a release is applied now."""
        if not app.is_tag or self.current(app.source) == app:
            return
        applied = self._read()
        mine = applied.order.get(app.source, ())
        applied = AppliedReleases(
            order={**applied.order, app.source: mine if app in mine else (*mine, app)},
            current={**applied.current, app.source: app},
        )
        make_private(self._state)
        write_json(self._applied, applied.to_dict())

    def rollback(self) -> Rollback | None:
        """Return the rollback in force, or `None`."""
        return read_record(self._rollback, Rollback.from_dict)

    def in_force(self, input_file: Path, *, serial: int) -> Rollback | None:
        """Return the rollback in force for the current input; a changed input ends it.

        An unreadable input ends nothing.
        """
        rollback = self.rollback()
        if rollback is None:
            return None
        import hashlib  # needed only after a rollback

        try:
            digest = hashlib.sha256(input_file.read_bytes()).hexdigest()
        except OSError:
            return rollback
        return rollback if rollback.stands(digest, serial) else None

    def roll_back(self, rollback: Rollback) -> None:
        """Put a rollback in force."""
        make_private(self._state)
        write_json(self._rollback, rollback.to_dict())

    def end_rollback(self) -> None:
        """End the rollback in force."""
        remove(self._rollback)
