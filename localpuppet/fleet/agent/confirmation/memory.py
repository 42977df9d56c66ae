"""Store the pending or last confirmation in `confirmation.json` of the state directory."""

from functools import partial
from pathlib import Path

from localpuppet.base.formats.json_file import read_record
from localpuppet.base.formats.records import from_stored_record, to_stored_record
from localpuppet.base.machine.files import make_private, write_json
from localpuppet.fleet.agent.confirmation.pending import Confirmation

SCHEMA = 1


class ConfirmationMemory:
    """The stored confirmation, which survives kills and reboots.

    Args:
        state: The state directory.
    """

    def __init__(self, state: Path) -> None:
        self._state = state
        self._file = state / "confirmation.json"

    def read(self) -> Confirmation | None:
        """Return the confirmation; `None` before the first.

        Raises:
            StateError: The file is damaged or unreadable.
        """
        hint = "move it away: the node then starts a new confirmation"
        parse = partial(from_stored_record, Confirmation, schema=SCHEMA)
        return read_record(self._file, parse, hint=hint)

    def write(self, confirmation: Confirmation) -> None:
        """Write the confirmation durably."""
        make_private(self._state)
        write_json(self._file, to_stored_record(confirmation, schema=SCHEMA))
