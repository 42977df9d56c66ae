"""Finds and removes old archives in the cache of a forge.

An archive is unpacked into the store once. Only a damaged tree, or another release with the same
module, needs it again, and the forge still has it then. So age decides.
"""

from pathlib import Path

from localpuppet.base.machine.files import disk_errors, remove

PLACE = "forge"


class KeptArchives:
    """Archives, whole ones and parts, below the state directory.

    Args:
        state: The state directory.
    """

    def __init__(self, state: Path) -> None:
        self._directory = state / PLACE

    def old(self, *, since: float) -> list[Path]:
        """Return the archives that were written before a moment, in seconds since 1970."""
        if not self._directory.is_dir():
            return []
        with disk_errors(self._directory):
            files = sorted(path for path in self._directory.iterdir() if path.is_file())
            return [path for path in files if path.lstat().st_mtime < since]

    def remove(self, path: Path) -> None:
        """Remove an archive."""
        remove(path)
