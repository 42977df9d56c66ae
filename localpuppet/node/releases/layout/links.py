"""Links the modules of a lock in one directory, for mutable code that is not in the store.

    STATE/links/SHA256/modules/ntp          -> ../../../objects/SHA256
    STATE/links/SHA256/release/hiera.yaml   -> the file of the release
    STATE/links/SHA256/release/modules/ntp  -> ../../../../objects/SHA256

- `modules` is a directory of the modulepath. `release` is composed as a staged release is, so that
  `hiera.yaml` finds the same data in modules.
- A directory is named by the digest of its contents, so it is complete or absent and never changes.
- Trees are written before the links that name them.
- Each directory records when it was last used.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from localpuppet.base.machine.files import (
    disk_errors,
    is_file,
    make_private,
    remove_tree,
    sync_directory,
)
from localpuppet.node.releases.layout.composing import composed_names
from localpuppet.node.releases.staged import composition

HIERA = "hiera.yaml"
_MODULES, _RELEASE = "modules", "release"


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
            trees: By name: a digest, or an absolute path.
        """
        return self._directory / composition(_targets(trees))

    def places(self, directory: Path, links: Mapping[str, str]) -> tuple[Path, Path]:
        """Return the directories of a release's modules, and of its `hiera.yaml`."""
        path, has_hiera = self.path(links), f"{_RELEASE}/{HIERA}" in links
        return path / _MODULES, path / _RELEASE if has_hiera else directory

    def has(self, trees: Mapping[str, str]) -> bool:
        """Return whether the directory exists with exactly its links."""
        path = self.path(trees)
        try:
            return path.is_dir() and {
                str(link.relative_to(path)): str(link.readlink()) for link in _entries(path)
            } == _targets(trees)
        except OSError:
            return False

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
                    make_private((new / name).parent)
                    (new / name).symlink_to(target)
                for directory in {(new / name).parent for name in trees} | {new}:
                    sync_directory(directory)
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
            for link in _entries(path)
            if not link.readlink().is_absolute()
        }

    def _all(self) -> list[Path]:
        with disk_errors(self._directory), suppress(FileNotFoundError):
            return sorted(path for path in self._directory.iterdir() if path.is_dir())
        return []


def release_links(directory: Path, moduledir: str, trees: Mapping[str, str]) -> dict[str, str]:
    """Return the links for a release whose modules are outside of it, for `ModuleLinks`.

    Args:
        directory: The release.
        moduledir: The directory for single modules in its manifest; empty for its top.
        trees: By module name: a digest, or the absolute path of a work tree.
    """
    links = {f"{_MODULES}/{name}": tree for name, tree in trees.items()}
    if trees and is_file(directory / HIERA):
        own = {name: str(directory / name) for name in composed_names(directory, moduledir)}
        inner = f"{moduledir}/" if moduledir else ""
        own.update({f"{inner}{name}": tree for name, tree in trees.items()})
        links.update({f"{_RELEASE}/{name}": tree for name, tree in own.items()})
    return links


def _entries(top: Path) -> Iterator[Path]:
    """Yield what is in a link directory, except the directories on the way to its links."""
    for place, directories, files in os.walk(top):
        for path in (Path(place, name) for name in (*directories, *files)):
            if path.is_symlink() or not path.is_dir():
                yield path


def _targets(trees: Mapping[str, str]) -> dict[str, str]:
    return {
        name: tree if tree.startswith("/") else f"{'../' * (name.count('/') + 2)}objects/{tree}"
        for name, tree in trees.items()
    }
