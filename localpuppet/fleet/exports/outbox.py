"""What this node exports, on its disk: `exports/offered/DIGEST` in the state directory.

`exports/landed` says which of them others are sent to.

Owns: the files. Refuses to know: the bus, runs.

- A file is there before the inventory's outbox names it, and as long as it does. Its name is the
  digest of what is in it.
"""

from collections.abc import Collection
from pathlib import Path

from localpuppet.base.errors import StateError
from localpuppet.base.machine.files import make_private, remove, state_problem, write_durably
from localpuppet.fleet.exports.document import PackedResources, digest_of

DIRECTORY = Path("exports", "offered")
LANDED = Path("exports", "landed")


class ExportsOutbox:
    """The files.

    Args:
        state: The state directory.
    """

    def __init__(self, state: Path) -> None:
        self._directory = state / DIRECTORY
        self._landed = state / LANDED

    def write(self, packed: PackedResources) -> None:
        """Write down what the bus is to hold."""
        path = self._directory / packed.digest
        if packed.count and not path.exists():
            make_private(self._directory)
            write_durably(path, packed.data)

    def read(self, digest: str) -> bytes:
        """Return packed resources.

        Raises:
            StateError: They are not there, or damaged.
        """
        path = self._directory / digest
        try:
            data = path.read_bytes()
        except OSError as error:
            raise state_problem(error, path) from error
        if digest_of(data) != digest:
            raise StateError("is damaged", where=str(path), hint="the next good run writes it anew")
        return data

    def note_landed(self, slot: str, digest: str) -> None:
        """Note in which slot of the bus stand the exports that the entry there names."""
        write_durably(self._landed, f"{slot} {digest}".encode("ascii"))

    def landed(self) -> tuple[str, str] | None:
        """Return the slot and the digest that were noted; `None` for none, or none that reads."""
        try:
            slot, _, digest = self._landed.read_text("ascii").partition(" ")
        except (OSError, ValueError):
            return None
        return slot, digest

    def keep(self, digests: Collection[str]) -> None:
        """Remove every file but those of `digests`."""
        try:
            found = list(self._directory.iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            raise state_problem(error, self._directory) from error
        for path in found:
            if path.name not in digests:
                remove(path)
