"""The records of staged releases, one file each in `staged/` of the state directory."""

from pathlib import Path

from localpuppet.base.formats.json_file import read_json, read_record
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.machine.files import make_private, remove, write_json
from localpuppet.node.releases.staged import StagedRelease


class StagedRecords:
    """The records on this node.

    Args:
        state: The state directory.
    """

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
