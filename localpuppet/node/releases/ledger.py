"""The ledger: in which order releases were first applied, and what an operator rolled back to.

Owns: `applied.json` and `rollback.json` in the state directory. Invariants: a source only goes
forward by itself, by the times in its tags where they are known (`releases.tag_memory`); going back
is somebody's decision, which holds until the input says something new.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.names import ReleasePath, RunId
from localpuppet.base.formats.times import parse_time
from localpuppet.base.machine.files import make_private, remove, write_json
from localpuppet.node.releases.tag_memory import TagMemory

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedElsewhere:
    """What is said of an order that the ledger does not know: the node was made anew.

    Attributes:
        app: The release that the node applied last.
        tagged_at: When its tag says that it was made, in seconds since 1970; `None` where that is
            not known, and nothing can be told from it.
    """

    app: ReleasePath
    tagged_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """A decision to run an earlier release, as it ran then.

    Attributes:
        app: The release.
        run: The good run whose node document is used.
        node_document: That document.
        input_sha256: The input that it overrules; another one ends it.
        user: Who decided.
        since: When, ISO 8601.
        wanted: The release that the input names; empty in a decision of an older version.
        serial: The serial of the assignment that it overrules; another one ends it. 0 where the
            input named the release itself.
    """

    app: ReleasePath
    run: RunId
    node_document: Mapping[str, Any]
    input_sha256: str
    user: str
    since: str
    wanted: str = ""
    serial: int = 0

    def stands(self, input_sha256: str, serial: int) -> bool:
        """Whether the decision holds for an input: another one than it overrules ends it.

        Args:
            input_sha256: The input.
            serial: The serial of the assignment in force; 0 without one.
        """
        return self.input_sha256 == input_sha256 and self.serial in (0, serial)

    def to_public(self) -> dict[str, str]:
        """Return what others may know: all but the node document."""
        names = ("wanted", "app", "run", "user", "since")
        return {name: str(getattr(self, name)) for name in names}

    def __str__(self) -> str:
        """Return one line for people."""
        since = parse_time(self.since).strftime("%Y-%m-%d %H:%M UTC")
        wants = f"input wants {self.wanted}, " if self.wanted else ""
        return f"{wants}running {self.app}, rolled back by {self.user} at {since}"


class Ledger:
    """What was applied on this node.

    Args:
        state: The state directory.
    """

    def __init__(self, state: Path) -> None:
        self._state = state
        self._applied = state / "applied.json"
        self._rollback = state / "rollback.json"
        self._memory = TagMemory(state)

    def order(self, source: str) -> list[ReleasePath]:
        """Return the tags of `source` that were applied, in the order in which each came first.

        Raises:
            StateError: The ledger is damaged.
        """
        return [ReleasePath(app) for app in self._read()[0].get(source, [])]

    def sources(self) -> list[str]:
        """Return every source that has releases in the ledger."""
        return sorted(self._read()[0])

    def current(self, source: str) -> ReleasePath | None:
        """Return the tag of `source` that was applied last; `None` before there was one.

        Raises:
            StateError: The ledger is damaged.
        """
        order, current = self._read()
        applied = order.get(source, [])
        found = current.get(source) or (applied[-1] if applied else None)
        return None if found is None else ReleasePath(found)

    def _read(self) -> tuple[dict[str, list[str]], dict[str, str]]:
        """Return the order of each source, and which release of each was applied last."""
        try:
            raw = read_json(self._applied)
        except FileNotFoundError:
            return {}, {}
        order, current = raw.get("order"), raw.get("current", {})
        if (
            raw.get("schema") != SCHEMA
            or not isinstance(order, dict)
            or not isinstance(current, dict)
            or not all(
                isinstance(apps, list) and all(isinstance(app, str) for app in apps)
                for apps in order.values()
            )
            or not all(isinstance(app, str) for app in current.values())
        ):
            raise StateError(
                "is damaged",
                where=str(self._applied),
                hint="move it away; the order of releases starts anew then",
            )
        return order, current

    def begins(self, app: ReleasePath) -> bool:
        """Return whether no release of a tag's source was ever applied here.

        Raises:
            StateError: The ledger is damaged.
        """
        return app.is_tag and self.current(app.source) is None

    def check_forward(self, app: ReleasePath, *, before: AppliedElsewhere | None = None) -> None:
        """Refuse a release that is older than the one of its source that was applied last.

        The times inside the tags decide, where both are known and differ: they are what is signed.
        Otherwise it is the order in which the releases were first applied here.

        Args:
            app: The release.
            before: What others say that this node applied, for a source of which the ledger knows
                nothing; it can only make a release older.

        Raises:
            InvalidInputError: The release is older.
            StateError: What is known of releases is damaged.
        """
        current = self.current(app.source)
        if current is None and before is not None:
            self._check_elsewhere(app, before)
        if not app.is_tag or current is None or app == current:
            return
        times = (self._memory.tagged_at(app), self._memory.tagged_at(current))
        if times[0] is not None and times[1] is not None and times[0] != times[1]:
            older, why = times[0] < times[1], "by the times of their tags"
        else:
            order = self.order(app.source)
            older = app in order and order.index(app) < order.index(current)
            why = "which was applied after it"
        if older:
            raise InvalidInputError(
                f"{app} is older than {current}, {why}",
                where="app",
                hint="'localpuppet rollback' goes back, or 'apply --allow-rollback'",
            )

    def _check_elsewhere(self, app: ReleasePath, before: AppliedElsewhere) -> None:
        mine, last = self._memory.tagged_at(app), before.tagged_at
        same_source = app.is_tag and app.source == before.app.source
        if same_source and mine is not None and last is not None and mine < last:
            raise InvalidInputError(
                f"{app} is older, by the times of their tags, than {before.app}, which this node"
                " said on the bus that it applied last",
                where="app",
                hint="'apply --allow-rollback', if going back is meant",
            )

    def note(self, app: ReleasePath) -> None:
        """Write down that a release is applied now."""
        if not app.is_tag or self.current(app.source) == app:
            return
        order, current = self._read()
        mine = order.get(app.source, [])
        if app not in mine:
            order[app.source] = [*mine, str(app)]
        current[app.source] = str(app)
        make_private(self._state)
        write_json(self._applied, {"schema": SCHEMA, "order": order, "current": current})

    def rollback(self) -> Rollback | None:
        """Return the decision in force, if there is one.

        Raises:
            StateError: It is damaged.
        """
        try:
            raw = read_json(self._rollback)
        except FileNotFoundError:
            return None
        fields = {key: value for key, value in raw.items() if key != "schema"}
        try:
            fields["app"] = ReleasePath.parse(fields["app"], where="app")
            fields["run"] = RunId.parse(fields["run"])
            return Rollback(**fields)
        except (KeyError, TypeError, InvalidInputError) as error:
            raise StateError(f"is damaged: {error}", where=str(self._rollback)) from error

    def in_force(self, input_file: Path, *, serial: int) -> Rollback | None:
        """Return the decision in force while the input stands as it does; it ends with a new one.

        Args:
            input_file: The node's own input; one that cannot be read ends nothing.
            serial: The serial of the assignment in force; 0 without one.

        Raises:
            StateError: The decision is damaged.
        """
        rollback = self.rollback()
        if rollback is None:
            return None
        import hashlib  # not paid for where nobody rolled back

        try:
            digest = hashlib.sha256(input_file.read_bytes()).hexdigest()
        except OSError:
            return rollback
        return rollback if rollback.stands(digest, serial) else None

    def roll_back(self, rollback: Rollback) -> None:
        """Put a decision in force."""
        make_private(self._state)
        fields = asdict(rollback)
        if not rollback.serial:
            del fields["serial"]  # as it was written before there was such a thing
        write_json(self._rollback, {"schema": SCHEMA, **fields})

    def end_rollback(self) -> None:
        """End the decision in force."""
        remove(self._rollback)
