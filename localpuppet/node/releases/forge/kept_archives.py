"""Finds old archives in the cache of a forge.

An archive is unpacked into the store once. Only a damaged tree, or another release with the same
module, needs it again, and the forge still has it then. So age decides.
"""

from pathlib import Path

from localpuppet.base.machine.files import disk_errors

PLACE = "forge"


def old_archives(state: Path, *, since: float) -> list[Path]:
    """Return the archives, whole ones and parts, that were written before a moment.

    Args:
        state: The state directory.
        since: The moment, in seconds since 1970.
    """
    directory = state / PLACE
    if not directory.is_dir():
        return []
    with disk_errors(directory):
        files = sorted(path for path in directory.iterdir() if path.is_file())
        return [path for path in files if path.lstat().st_mtime < since]
