"""The assignment in force on this node: `assignment.json` in the state directory.

Invariant: what is there is followed by what came after it, whoever else puts one in force at a
time: staging takes minutes, and a child goes on with it when its agent was killed.
"""

from pathlib import Path

from localpuppet.base.errors import BusyError, StateError
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.machine.files import make_private, write_json
from localpuppet.base.machine.flock import Flock
from localpuppet.node.enc.assignment import Assignment, check_newer


class AssignedRelease:
    """Keeps the assignment in force.

    Args:
        state: The state directory.
    """

    def __init__(self, state: Path) -> None:
        self._state = state
        self._file = state / "assignment.json"

    def read(self) -> Assignment | None:
        """Return the assignment in force; `None` before the first.

        Raises:
            StateError: It is damaged, or cannot be read.
        """
        try:
            return Assignment.from_dict(read_json(self._file))
        except FileNotFoundError:
            return None
        except StateError as error:
            where = error if error.where else error.at(str(self._file))
            raise StateError(
                where.what, where=where.where, hint="move it away, and assign a release anew"
            ) from error

    def keep(self, assignment: Assignment) -> None:
        """Put an assignment in force, unless it is already.

        Raises:
            InvalidInputError: It is not the next one any more; see `check_newer`.
            BusyError: Another process does so now.
        """
        make_private(self._state)
        path = self._state / "assignment.lock"
        lock = Flock.take(path)
        if lock is None:
            raise BusyError("another process assigns a release", where=str(path))
        try:
            if check_newer(assignment, self.read()):
                write_json(self._file, assignment.to_dict())
        finally:
            lock.release()
