"""Modules of a lock, as a directory of links into the store: for code that is not in the store.

    STATE/links/SHA256/ntp -> ../../objects/SHA256

Owns: `links/` in the state directory, and when each directory was wanted last. Invariants: a
directory's name is the digest of what is in it, so it is whole or absent and never changes; links
come after the trees that they name. Refuses to know: who wants modules, and where they come from.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from localpuppet.base.machine.files import (
    make_private,
    remove_tree,
    state_problem,
    sync_directory,
)
from localpuppet.node.releases.staged import composition


class ModuleLinks:
    """Directories of links on this node.

    Args:
        state: The state directory.
    """

    def __init__(self, state: Path) -> None:
        self._directory = state / "links"

    def path(self, trees: Mapping[str, str]) -> Path:
        """Return where the links are, or would be.

        Args:
            trees: By name of the module: a digest, or the absolute path of a work tree.
        """
        return self._directory / composition(_targets(trees))

    def has(self, trees: Mapping[str, str]) -> bool:
        """Return whether the directory is there, with its links and nothing else."""
        path = self.path(trees)
        wanted = _targets(trees)
        try:
            found = {name: str((path / name).readlink()) for name in os.listdir(path)}  # noqa: PTH208 - names only
        except OSError:
            return False
        return found == wanted

    def make(self, trees: Mapping[str, str]) -> Path:
        """Make the directory where it is not there, note that it was wanted, and return it.

        Call it with the store's lock, when the trees are in the store.
        """
        final = self.path(trees)
        try:
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
        except OSError as error:
            raise state_problem(error, final) from error
        return final

    def unused(self, *, since: float) -> list[Path]:
        """Return the directories that nobody has wanted since a time, seconds since 1970."""
        return [path for path in self._all() if path.stat().st_mtime < since]

    def needed(self, *, but: list[Path]) -> set[str]:
        """Return the digests of the trees that the directories name.

        Args:
            but: Directories that do not count.
        """
        return {
            link.readlink().name
            for path in self._all()
            if path not in but
            for link in path.iterdir()
            if not link.readlink().is_absolute()
        }

    def remove(self, path: Path) -> None:
        """Remove a directory."""
        remove_tree(path)

    def _all(self) -> list[Path]:
        try:
            return sorted(path for path in self._directory.iterdir() if path.is_dir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise state_problem(error, self._directory) from error


def _targets(trees: Mapping[str, str]) -> dict[str, str]:
    return {
        name: tree if tree.startswith("/") else f"../../objects/{tree}"
        for name, tree in trees.items()
    }
