"""The last good run of each recent release, with its node document: the targets of rollbacks.

    good_runs/web%tags%r1.json    {"release": "web/tags/r1", "run": ID, "node_document": {...}, ...}

- A release has its last good, whole run here, however few records of runs are kept.
- Each source keeps its newest `releases` of them, by the order of the runs and not by a clock.
- A kill between two writes loses nothing: a run is added before an older one is removed, and a
  record is removed only after its run was noted here.
- A damaged file harms no other release; the next good run of its release replaces it.
- One process writes at a time, and cleans up after one that was killed.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from localpuppet.base.errors import StateError
from localpuppet.base.formats.json_file import json_files, read_json
from localpuppet.base.formats.names import ReleasePath, RunId
from localpuppet.base.formats.schema_number import check_schema, damage_errors
from localpuppet.base.formats.times import parse_time
from localpuppet.base.machine.files import make_private, remove, remove_half_written, write_json
from localpuppet.base.machine.flock import Flock
from localpuppet.node.releases.staged_records import file_name, release_of
from localpuppet.node.runs.records import Records, RunDirectory
from localpuppet.node.runs.run import Status

SCHEMA = 1
# Seconds for which a writer waits for another.
PATIENCE = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodRun:
    """A good, whole run of an immutable release.

    Attributes:
        release: The release.
        run: The run; its record may be gone.
        finished_at: When the run ended, ISO 8601, UTC.
        node_document: The node document of that run.
    """

    release: ReleasePath
    run: RunId
    finished_at: str
    node_document: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "GoodRun":
        """Return the good run."""
        with damage_errors():
            check_schema(raw, SCHEMA)
            if not isinstance(raw["node_document"], dict):
                raise ValueError("node_document")
            parse_time(raw["finished_at"])
            return cls(
                release=ReleasePath.parse(raw["release"], where="release"),
                run=RunId.parse(raw["run"]),
                finished_at=raw["finished_at"],
                node_document=raw["node_document"],
            )


class GoodRuns:
    """The good runs that this node can go back to.

    Args:
        directory: `good_runs/` in the state directory.
        records: The runs of this node.
        releases: How many releases of each source are kept.
    """

    def __init__(self, directory: Path, *, records: Records, releases: int) -> None:
        self._directory = directory
        self._records = records
        self._releases = releases

    def note(self, status: Status) -> None:
        """Keep a run if it is good and the newest of its release, and drop one that is too many.

        Raises:
            StateError: Another process holds the lock for too long. The earlier runs are still
                kept.
        """
        good = self._recorded(status)
        if good is None:
            return
        make_private(self._directory)
        lock = Flock.wait(self._directory / "lock", seconds=PATIENCE, waits=lambda: None)
        if lock is None:
            raise StateError("locked by another process", where=str(self._directory))
        with lock:
            self._keep(good)

    def _keep(self, good: GoodRun) -> None:
        """Keep a run. The caller holds the lock."""
        kept = {
            other.release: other
            for other in self._kept()
            if other.release.source == good.release.source
        }
        if good.release in kept and kept[good.release].run >= good.run:
            return
        kept[good.release] = good
        newest = sorted(kept.values(), key=_by_run, reverse=True)
        if good in newest[: self._releases]:
            write_json(self._directory / file_name(good.release), good.to_dict())
        for surplus in newest[self._releases :]:
            remove(self._directory / file_name(surplus.release))
        remove_half_written(self._directory)

    def newest(self, accept: Callable[[RunId, ReleasePath], bool]) -> GoodRun | None:
        """Return the newest good run that `accept` takes, or `None`.

        The records of runs count, too: they may have more releases, or a run that ended just before
        its supervisor was killed.
        """
        kept = (good for good in self._kept() if accept(good.run, good.release))
        best = max(kept, key=_by_run, default=None)
        for status in self._records.history():
            if best is not None and status.id <= best.run:
                break
            if accept(status.id, ReleasePath(status.release)) and (good := self._recorded(status)):
                return good
        return best

    def releases(self) -> set[ReleasePath]:
        """Return the releases that are kept, including those whose file is damaged."""
        kept = set(map(release_of, json_files(self._directory)))
        recent: dict[str, set[ReleasePath]] = {}
        for status in self._records.history():
            release = ReleasePath(status.release)
            same_source = recent.setdefault(release.source, set())
            if status.good and release.is_tag and len(same_source) < self._releases:
                same_source.add(release)
        return kept.union(*recent.values())

    def _recorded(self, status: Status) -> GoodRun | None:
        """Return the good run of a record; `None` if the node cannot return to it."""
        release = ReleasePath(status.release)
        if not (status.good and release.is_tag):
            return None
        with suppress(FileNotFoundError, StateError, KeyError):  # being removed, or damaged
            request = RunDirectory(self._records.directory / status.id).read_request()
            return GoodRun(
                release=release,
                run=status.id,
                finished_at=status.finished_at or status.started_at,
                node_document=request["node_document"],
            )
        return None

    def _kept(self) -> Iterator[GoodRun]:
        for path in json_files(self._directory):
            with suppress(FileNotFoundError, StateError):
                yield GoodRun.from_dict(read_json(path))


def _by_run(good: GoodRun) -> RunId:
    return good.run
