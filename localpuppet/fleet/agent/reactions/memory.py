"""Store the reactor's state in `agent/reactions.json` of the state directory.

- The file is replaced, never written in place.
"""

from functools import partial
from pathlib import Path

from localpuppet.base.formats.json_file import read_record
from localpuppet.base.formats.json_text import compact
from localpuppet.base.formats.records import from_stored_record, to_stored_record
from localpuppet.base.machine.files import make_private, write_durably
from localpuppet.fleet.agent.reactions.state import ReactionState

SCHEMA = 1
FILE = Path("agent", "reactions.json")


class ReactionMemory:
    """The stored state.

    Args:
        state: The state directory.
    """

    def __init__(self, state: Path) -> None:
        self._path = state / FILE

    def load(self) -> ReactionState:
        """Return the state, empty before the first write.

        Raises:
            StateError: The file is damaged or unreadable.
        """
        hint = "move it away: the agent rebuilds it from the last successful run"
        parse = partial(from_stored_record, ReactionState, schema=SCHEMA)
        return read_record(self._path, parse, hint=hint) or ReactionState()

    def save(self, state: ReactionState) -> None:
        """Write the state durably; on an error the old state remains."""
        make_private(self._path.parent)
        # In one line: with one line per node, ten thousand nodes would make the write ten times
        # slower.
        record = to_stored_record(state, schema=SCHEMA)
        write_durably(self._path, f"{compact(record)}\n".encode())
