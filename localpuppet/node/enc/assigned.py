"""The assignment in force on this node: `assignment.json` in the state directory.

Only the next assignment replaces the one in force, even if several processes write at a time:
staging takes minutes, and a child process continues it after its agent was killed.
"""

from pathlib import Path

from localpuppet.base.formats.json_file import read_record
from localpuppet.base.machine.files import write_json
from localpuppet.base.machine.flock import Flock
from localpuppet.node.enc.assignment import Assignment, check_newer


class AssignedRelease:
    """Reads and writes the assignment in force.

    Args:
        state: The state directory.
    """

    def __init__(self, state: Path) -> None:
        self._state = state
        self._file = state / "assignment.json"

    def read(self) -> Assignment | None:
        """Return the assignment in force; `None` before the first."""
        hint = "move it away, and assign a release again"
        return read_record(self._file, Assignment.from_dict, hint=hint)

    def keep(self, assignment: Assignment) -> None:
        """Put an assignment in force, unless it is in force already.

        Raises:
            InvalidInputError: The assignment is no longer the next one; see `check_newer`.
            BusyError: Another process is doing the same.
        """
        path = self._state / "assignment.lock"
        with Flock.need(path, "another process assigns a release"):
            if check_newer(assignment, self.read()):
                write_json(self._file, assignment.to_dict())
