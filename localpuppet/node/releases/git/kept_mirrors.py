"""Finds mirrors that are no longer needed.

Mirrors of the site's sources stay: after a change of a signers file their tags are verified again
without the network. Mirrors of single modules are used once per release and expire by age.
"""

from collections.abc import Iterable
from pathlib import Path

from localpuppet.base.machine.files import disk_errors
from localpuppet.node.releases.git.mirror import PLACE, mirror_name

# What a fetch that brings something writes to.
_WRITTEN = ("objects/pack", "refs/tags", "refs/commits")


def old_mirrors(state: Path, sources: Iterable[str], *, since: float) -> list[Path]:
    """Return the mirrors without a fetch since a time.

    Args:
        state: The state directory.
        sources: The URLs of the site's sources, whose mirrors stay.
        since: The time, in seconds since 1970.
    """
    directory = state / PLACE
    if not directory.is_dir():
        return []
    needed = {mirror_name(url) for url in sources}
    with disk_errors(directory):
        others = [path for path in directory.iterdir() if path.name not in needed]
        return sorted(path for path in others if path.is_dir() and _written(path) < since)


def _written(mirror: Path) -> float:
    places = [mirror, *(mirror / name for name in _WRITTEN)]
    return max(place.stat().st_mtime for place in places if place.is_dir())
