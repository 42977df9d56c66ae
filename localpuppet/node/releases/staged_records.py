"""The records of staged releases, one file each in `staged/` of the state directory."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar

from localpuppet.base.formats.converter import JsonForm, JsonRecord
from localpuppet.base.formats.json_file import read_json, read_record
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.machine.files import make_private, remove, write_json
from localpuppet.node.releases.git.git_modules import Pin
from localpuppet.node.releases.manifest import parse_inner_path

SCHEMA = 1


_pin = partial(Pin.from_dict, where="", allow_file=True)


class StagedRelease(JsonRecord):
    """The record of a staged release: its trees by digest.

    Attributes:
        pin: The pin of the release's tag, with the digest of its tree.
        composition: The name of its link directory.
        modules: Digests of its single modules by name.
        sources: Digests of its collections by path.
        moduledir: The directory of single modules in it; empty for its top.
    """

    SCHEMA: ClassVar = SCHEMA
    release: ReleasePath
    pin: Annotated[Pin, JsonForm(_pin, asdict)]
    composition: str
    modules: Mapping[str, str]
    sources: Mapping[str, str]
    moduledir: Annotated[str, partial(parse_inner_path, where="")]

    @property
    def named(self) -> dict[ReleasePath, str]:
        """Digests of the trees with a name below `modules/`, by that name; the release's first."""
        sources = {ReleasePath(name): sha256 for name, sha256 in self.sources.items()}
        return {self.release: self.pin.tree_sha256, **sources}

    @property
    def trees(self) -> dict[str, str]:
        """Digests of all trees that it needs, by their names in messages."""
        modules = {f"module {name}": sha256 for name, sha256 in self.modules.items()}
        return {str(self.release): self.pin.tree_sha256, **modules, **self.sources}

    @property
    def digests(self) -> set[str]:
        """Digests of all trees that it needs."""
        return set(self.trees.values())


def composition(links: Mapping[str, str]) -> str:
    """Return the name of a link directory: the SHA-256 of its listing."""
    import hashlib  # 3 ms that `enc` saves

    listing = "".join(f"{name} {links[name]}\n" for name in sorted(links))
    return hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest()


class StagedRecords:
    """The records on this node."""

    def __init__(self, state: Path) -> None:
        self._directory = state / "staged"

    def of(self, app: ReleasePath) -> StagedRelease | None:
        """Return the record of a release; `None` if it was never staged."""
        return read_record(self._file(app), StagedRelease.from_dict)

    def all(self) -> list[StagedRelease]:
        """Return every staged release, by name."""
        if not self._directory.is_dir():
            return []
        records = [
            StagedRelease.from_dict(read_json(path)) for path in self._directory.glob("*.json")
        ]
        return sorted(records, key=lambda staged: staged.release)

    def written_at(self, app: ReleasePath) -> float:
        """Return when a record was written, seconds since 1970; 0 without one."""
        try:
            return self._file(app).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def write(self, staged: StagedRelease) -> None:
        """Write a record durably."""
        make_private(self._directory)
        write_json(self._file(staged.release), staged.to_dict())

    def remove(self, app: ReleasePath) -> None:
        """Remove a record."""
        remove(self._file(app))

    def rubbish(self) -> list[Path]:
        """Return incomplete files of a dead process."""
        return list(self._directory.glob(".*"))

    def _file(self, app: ReleasePath) -> Path:
        return self._directory / file_name(app)


def file_name(app: ReleasePath) -> str:
    """Return the file name of a release's record."""
    return f"{app.replace('/', '%')}.json"


def release_of(file: Path) -> ReleasePath:
    """Return the release of a record's file."""
    return ReleasePath(file.stem.replace("%", "/"))
