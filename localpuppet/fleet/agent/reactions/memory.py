"""What is remembered of reactions, on the disk: `agent/reactions.json` in the state directory.

Owns: the file; it is replaced, never written in place. Refuses to know: what is in it (`state`).
"""

from pathlib import Path

from localpuppet.base.errors import StateError
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.json_text import compact
from localpuppet.base.machine.files import make_private, write_durably
from localpuppet.fleet.agent.reactions.state import State

FILE = Path("agent", "reactions.json")


class ReactionMemory:
    """The file.

    Args:
        state: The state directory.
    """

    def __init__(self, state: Path) -> None:
        self._path = state / FILE

    def load(self) -> State:
        """Return what is remembered; nothing before the first time.

        Raises:
            StateError: It cannot be read, or is damaged.
        """
        try:
            return State.from_dict(read_json(self._path))
        except FileNotFoundError:
            return State()
        except StateError as error:
            raise StateError(
                error.what,
                where=str(self._path),
                hint="move it away: what is watched comes from the last good run again",
            ) from error

    def save(self, state: State) -> None:
        """Remember it.

        Raises:
            StateError: The disk refused; what was remembered stays.
        """
        make_private(self._path.parent)
        # In one line: of ten thousand nodes each is another line, and written ten times as slowly.
        write_durably(self._path, f"{compact(state.to_dict())}\n".encode())
