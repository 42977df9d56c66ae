"""Links the modules of a lock in one directory, for mutable code that is not in the store.

    STATE/links/SHA256/ntp -> ../../objects/SHA256

- A directory is named by the digest of its contents, so it is complete or absent and never changes.
- Trees are written before the links that name them.
- Each directory records when it was last used.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from localpuppet.base.machine.files import disk_errors, make_private, remove_tree, sync_directory
from localpuppet.node.releases.staged import composition


class ModuleLinks:
    """The link directories on this node.

    Args:
        state: The state directory.
    """

    def __init__(self, state: Path) -> None:
        self._directory = state / "links"

    def path(self, trees: Mapping[str, str]) -> Path:
        """Return the path of the link directory, which may not exist.

        Args:
            trees: By module name: a digest, or the absolute path of a work tree.
        """
        return self._directory / composition(_targets(trees))

    def has(self, trees: Mapping[str, str]) -> bool:
        """Return whether the directory exists with exactly its links."""
        path = self.path(trees)
        wanted = _targets(trees)
        try:
            links = {name: str((path / name).readlink()) for name in os.listdir(path)}  # noqa: PTH208 - names only
        except OSError:
            return False
        return links == wanted

    def make(self, trees: Mapping[str, str]) -> Path:
        """Create the directory if missing, record its use, and return it.

        The trees are in the store, and the caller holds its lock.
        """
        final = self.path(trees)
        with disk_errors(final):
            if not self.has(trees):
                make_private(self._directory)
                for dead in self._directory.glob(".*"):  # of a process that died here
                    remove_tree(dead)
                remove_tree(final)
                new = self._directory / f".{os.urandom(4).hex()}"
                make_private(new)
                for name, target in _targets(trees).items():
                    (new / name).symlink_to(target)
                sync_directory(new)
                new.rename(final)
                sync_directory(self._directory)
            os.utime(final)
        return final

    def unused(self, *, since: float) -> list[Path]:
        """Return the directories that were not used since a time, in seconds since 1970."""
        return [path for path in self._all() if path.stat().st_mtime < since]

    def needed(self, *, but: list[Path]) -> set[str]:
        """Return the digests of the trees that the directories name.

        Args:
            but: Directories to ignore.
        """
        return {
            link.readlink().name
            for path in self._all()
            if path not in but
            for link in path.iterdir()
            if not link.readlink().is_absolute()
        }

    def _all(self) -> list[Path]:
        with disk_errors(self._directory), suppress(FileNotFoundError):
            return sorted(path for path in self._directory.iterdir() if path.is_dir())
        return []


def _targets(trees: Mapping[str, str]) -> dict[str, str]:
    return {
        name: tree if tree.startswith("/") else f"../../objects/{tree}"
        for name, tree in trees.items()
    }
