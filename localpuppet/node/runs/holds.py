"""The holds on this node: localpuppet's in `holds/`, and Puppet's own disable file.

A hold also writes Puppet's disable file, so that `puppet agent` stops; a disable file that
localpuppet did not write counts as a hold.
"""

import hashlib
from pathlib import Path

from localpuppet.base.errors import OnHoldError, StateError
from localpuppet.base.formats.json_file import json_files, read_json
from localpuppet.base.formats.schema_number import without_schema
from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.files import make_private, make_public, remove, write_json
from localpuppet.base.machine.ports import Clock
from localpuppet.node.runs.hold import Hold, active

# In Puppet's disable file: who wrote it. Puppet reads `disabled_message` only.
MARK = "localpuppet"
SCHEMA = 1
_ENDING = "'localpuppet enable' ends your own hold, 'localpuppet enable --all-owners' every one"


class Holds:
    """The holds on this node.

    Args:
        directory: `holds/` in the state directory.
        disable_file: Puppet's `agent_disabled_lockfile`; `None` if Puppet is not found.
        clock: Decides which holds have expired.
    """

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

        Args:
            through: The owner whose hold does not stop the run.

        Raises:
            OnHoldError: A hold of another owner is in force.
        """
        holds = [hold for hold in self.active() if hold.owner != through]
        if holds:
            others = f" and {len(holds) - 1} more" if len(holds) > 1 else ""
            shown = holds[0].shown(self._clock.now())
            raise OnHoldError(f"on hold: {shown}{others}", hint=_ENDING)

    def _path(self, owner: str) -> Path:
        return self._directory / f"{hashlib.sha256(owner.encode()).hexdigest()[:24]}.json"


def _read_hold(path: Path) -> Hold:
    return Hold.from_dict(without_schema(read_json(path), SCHEMA))
