"""The confirmation that this node waits for, or had last: `confirmation.json` in its state."""

from pathlib import Path

from localpuppet.base.errors import StateError
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.machine.files import make_private, write_json
from localpuppet.fleet.agent.confirming.pending import Confirmation


class ConfirmationMemory:
    """Keeps it, over a kill and a reboot.

    Args:
        state: The state directory.
    """

    def __init__(self, state: Path) -> None:
        self._state = state
        self._file = state / "confirmation.json"

    def read(self) -> Confirmation | None:
        """Return it; `None` before the first.

        Raises:
            StateError: It is damaged, or cannot be read.
        """
        try:
            return Confirmation.from_dict(read_json(self._file))
        except FileNotFoundError:
            return None
        except StateError as error:
            raise StateError(
                error.what,
                where=error.where or str(self._file),
                hint="move it away: the release that is in force is then confirmed anew",
            ) from error

    def write(self, confirmation: Confirmation) -> None:
        """Have it on the disk.

        Raises:
            StateError: It is not.
        """
        make_private(self._state)
        write_json(self._file, confirmation.to_dict())
