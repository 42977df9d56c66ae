"""The records of staged releases, one file each in `staged/` of the state directory."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Generic, TypeVar

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.converter import JsonForm, JsonRecord
from localpuppet.base.formats.json_file import read_json, read_record
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.machine.files import make_private, remove, write_json
from localpuppet.node.releases.git.git_modules import Pin
from localpuppet.node.releases.manifest import parse_inner_path

SCHEMA = 1


PIN_FORM = JsonForm(partial(Pin.from_dict, where="", allow_file=True), asdict)


class NamedRecord(JsonRecord):
    """A record of one release."""

    release: ReleasePath


class StagedRelease(NamedRecord):
    """The record of a staged release: its trees by digest.

    `composition` is the name of its link directory; `moduledir` is that of single modules in it.
    """

    SCHEMA: ClassVar = SCHEMA
    pin: Annotated[Pin, PIN_FORM]
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


Record = TypeVar("Record", bound=NamedRecord)


class ReleaseRecords(Generic[Record]):
    """Records of releases, one file each in a directory."""

    def __init__(self, directory: Path, form: type[Record]) -> None:
        self._directory = directory
        self._form = form

    def of(self, app: ReleasePath) -> Record | None:
        """Return the record of a release, or `None`."""
        return read_record(self._file(app), self._form.from_dict)

    def need(self, app: ReleasePath) -> Record:
        """Return the record of a release; raise `InvalidInputError` if it has none."""
        record = self.of(app)
        if record is None:
            raise InvalidInputError(
                "is not staged on this machine",
                where=str(app),
                hint=f"stage it: 'localpuppet stage {app}'",
            )
        return record

    def all(self) -> list[Record]:
        """Return every record, by the release's name."""
        if not self._directory.is_dir():
            return []
        records = [self._form.from_dict(read_json(path)) for path in self._directory.glob("*.json")]
        return sorted(records, key=lambda record: record.release)

    def written_at(self, app: ReleasePath) -> float:
        """Return when a record was written, seconds since 1970; 0 without one."""
        try:
            return self._file(app).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def write(self, record: Record) -> None:
        """Write a record durably."""
        make_private(self._directory)
        write_json(self._file(record.release), record.to_dict())

    def remove(self, app: ReleasePath) -> None:
        """Remove a record."""
        remove(self._file(app))

    def rubbish(self) -> list[Path]:
        """Return incomplete files of a dead process."""
        return list(self._directory.glob(".*"))

    def _file(self, app: ReleasePath) -> Path:
        return self._directory / file_name(app)


class StagedRecords(ReleaseRecords[StagedRelease]):
    """The records of the staged releases on this node."""

    def __init__(self, state: Path) -> None:
        super().__init__(state / "staged", StagedRelease)


def file_name(app: ReleasePath) -> str:
    """Return the file name of a release's record."""
    return f"{app.replace('/', '%')}.json"


def release_of(file: Path) -> ReleasePath:
    """Return the release of a record's file."""
    return ReleasePath(file.stem.replace("%", "/"))
