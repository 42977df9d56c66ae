"""Finds and removes mirrors that are no longer needed.

Mirrors of the site's sources stay: after a change of a signers file their tags are verified again
without the network. Mirrors of single modules are used once per release and expire by age.
"""

from collections.abc import Iterable
from pathlib import Path

from localpuppet.base.machine.files import disk_errors, remove_tree
from localpuppet.node.releases.git.mirror import PLACE, mirror_name

# What a fetch that brings something writes to.
_WRITTEN = ("objects/pack", "refs/tags", "refs/commits")


class KeptMirrors:
    """Mirrors below the state directory.

    Args:
        state: The state directory.
        sources: The URLs of the site's sources.
    """

    def __init__(self, state: Path, sources: Iterable[str]) -> None:
        self._directory = state / PLACE
        self._needed = {mirror_name(url) for url in sources}

    def old(self, *, since: float) -> list[Path]:
        """Return the mirrors without a fetch since a time, in seconds since 1970."""
        if not self._directory.is_dir():
            return []
        with disk_errors(self._directory):
            others = [path for path in self._directory.iterdir() if path.name not in self._needed]
            return sorted(path for path in others if path.is_dir() and _written(path) < since)

    def remove(self, path: Path) -> None:
        """Remove a mirror."""
        remove_tree(path)


def _written(mirror: Path) -> float:
    places = [mirror, *(mirror / name for name in _WRITTEN)]
    return max(place.stat().st_mtime for place in places if place.is_dir())
