"""The ledger: in which order releases were first applied, and what an operator rolled back to.

Owns: `applied.json` and `rollback.json` in the state directory. Invariants: a source only goes
forward by itself; going back is somebody's decision, which holds until the input says something
new.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from localpuppet.errors import InvalidInputError, StateError
from localpuppet.formats.json_file import read_json
from localpuppet.formats.names import ReleasePath, RunId
from localpuppet.formats.times import parse_time
from localpuppet.machine.files import make_private, remove, write_json

SCHEMA = 1


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
    """

    app: ReleasePath
    run: RunId
    node_document: Mapping[str, Any]
    input_sha256: str
    user: str
    since: str
    wanted: str = ""

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

    def order(self, source: str) -> list[ReleasePath]:
        """Return the tags of `source` that were applied, in the order in which each came first.

        Raises:
            StateError: The ledger is damaged.
        """
        return [ReleasePath(app) for app in self._read().get(source, [])]

    def sources(self) -> list[str]:
        """Return every source that has releases in the ledger."""
        return sorted(self._read())

    def _read(self) -> dict[str, list[str]]:
        try:
            raw = read_json(self._applied)
        except FileNotFoundError:
            return {}
        order = raw.get("order")
        if raw.get("schema") != SCHEMA or not isinstance(order, dict):
            raise StateError("is damaged", where=str(self._applied))
        for apps in order.values():
            if not isinstance(apps, list) or not all(isinstance(app, str) for app in apps):
                raise StateError("is damaged: not lists of releases", where=str(self._applied))
        return order

    def check_forward(self, app: ReleasePath) -> None:
        """Refuse to go back to a release that a later one has followed.

        Raises:
            InvalidInputError: One has.
        """
        order = self.order(app.source)
        if app.is_tag and app in order and order[-1] != app:
            raise InvalidInputError(
                f"{app} is older than {order[-1]}, which was applied after it",
                where="app",
                hint="'localpuppet rollback' goes back, or 'apply --allow-rollback'",
            )

    def note(self, app: ReleasePath) -> None:
        """Write down that a release is applied now: it is the newest of its source from here on.

        Raises:
            StateError: The disk refused.
        """
        if not app.is_tag:
            return
        order = self._read()
        mine = order.get(app.source, [])
        if mine and mine[-1] == app:
            return
        order[app.source] = [*(other for other in mine if other != app), str(app)]
        make_private(self._state)
        write_json(self._applied, {"schema": SCHEMA, "order": order})

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

    def in_force(self, input_file: Path) -> Rollback | None:
        """Return the decision in force while the input stands as it does; it ends with a new one.

        Args:
            input_file: The node's own input; one that cannot be read ends nothing.

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
        return rollback if digest == rollback.input_sha256 else None

    def roll_back(self, rollback: Rollback) -> None:
        """Put a decision in force.

        Raises:
            StateError: The disk refused.
        """
        make_private(self._state)
        write_json(self._rollback, {"schema": SCHEMA, **asdict(rollback)})

    def end_rollback(self) -> None:
        """End the decision in force.

        Raises:
            StateError: The disk refused.
        """
        remove(self._rollback)
