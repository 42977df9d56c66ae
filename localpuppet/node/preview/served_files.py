"""Files that modules serve (`source => 'puppet:///modules/x/f'`): compared as files.

A catalog has only their address, so a change of the contents is no difference of catalogs.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from localpuppet.node.preview.catalog_items import CatalogHead
from localpuppet.node.preview.difference import CHANGED, ParameterChange, ResourceChange
from localpuppet.node.preview.finding import PreviewSide
from localpuppet.node.preview.release_index import BROKEN, DIRECTORY
from localpuppet.node.puppet.command import file_name

# Larger files, and such that are not UTF-8, are shown by their digest.
MAX_SHOWN = 256 * 1024
# Bytes of all texts that are shown; further files are shown by their digest.
MAX_TEXTS = 64 * 1024 * 1024


@dataclass(slots=True, eq=False)
class ServedFiles:
    """The files of modules that differ between two releases.

    Attributes:
        before: The first release.
        after: The second.
    """

    before: PreviewSide
    after: PreviewSide
    _changes: dict[str, ParameterChange] = field(default_factory=dict, init=False)
    _left: int = field(init=False)

    def __post_init__(self) -> None:
        self._left = MAX_TEXTS
        first, second = (_served(side) for side in (self.before, self.after))
        for path in sorted(first.keys() | second.keys()):
            names = first.get(path), second.get(path)
            states = (
                names[0] and self.before.index.state(names[0]),
                names[1] and self.after.index.state(names[1]),
            )
            if states[0] != states[1] and DIRECTORY not in states:
                self._changes[path] = ParameterChange(
                    name=f"content of puppet:///modules/{path}",
                    before=self._shown(self.before, names[0]),
                    after=self._shown(self.after, names[1]),
                )

    def __bool__(self) -> bool:
        """Return whether any file differs."""
        return bool(self._changes)

    def _shown(self, side: PreviewSide, name: str | None) -> str | None:
        """Return the text of a file, or its digest; of a broken link, what it is."""
        if name is None:
            return None
        if side.index.state(name) == BROKEN:
            return "a link that leads nowhere"
        data = side.index.read(name) if self._left > 0 else b""
        with suppress(UnicodeDecodeError):
            if self._left > 0 and len(data) <= MAX_SHOWN:
                self._left -= len(data)
                return data.decode("utf-8")
        return f"{{sha256}}{side.index.state(name)}"

    def changes(self, before: CatalogHead, after: CatalogHead) -> list[ResourceChange]:
        """Return the resources of a node whose files differ, though their sources are the same."""
        changes = []
        for name in sorted(before.sources.keys() & after.sources.keys()):
            both = {*before.sources[name]} & {*after.sources[name]}
            parameters = tuple(
                change
                for path, change in self._changes.items()
                if any(path == source or path.startswith(f"{source}/") for source in both)
            )
            if parameters:
                kind, _, title = name.removesuffix("]").partition("[")
                changes.append(
                    ResourceChange(action=CHANGED, type=kind, title=title, parameters=parameters)
                )
        return changes


def _served(side: PreviewSide) -> dict[str, str]:
    """Return path below `modules` → name in the release, of all files that modules serve."""
    served: dict[str, str] = {}
    for directory in _files_directories(side):
        start = f"{directory}/"
        module = directory.split("/")[-2]
        for name in side.index.below(directory):
            served.setdefault(f"{module}/{name.removeprefix(start)}", name)
    return served


def _files_directories(side: PreviewSide) -> Sequence[str]:
    """Return the names of the directories `files` of modules, the first of each module only."""
    modules: dict[str, str] = {}
    for directory in side.release.whole_modulepath:
        for module in sorted(directory.iterdir()) if directory.is_dir() else ():
            name = file_name(f"{module}/files", side.release.directories)
            if module.name not in modules:
                modules[module.name] = name
    return [name for name in modules.values() if side.index.state(name) == DIRECTORY]
