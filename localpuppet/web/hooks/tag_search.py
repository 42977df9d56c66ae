"""Looks at the tags of a source, and checks those that are new by the usual rules of releases.

- What a look has judged is remembered by a mark: the digest of the references of a tag and of its
  countersignatures. If one of them changes, the tag counts as new again.
- The first look only remembers. Later ones accept the newest tag whose time is after that of the
  accepted one.
- Nothing is written besides the mirror of the source; nodes fetch and verify for themselves.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256

from localpuppet.base.errors import (
    BusyError,
    IntegrityError,
    InvalidInputError,
    LocalpuppetError,
    UnavailableError,
)
from localpuppet.base.formats.converter import JsonRecord
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.text import one_line, shortened
from localpuppet.node.releases.fetch import Supply, WantedTag
from localpuppet.node.releases.git.git_names import Tag, countersignature_refs
from localpuppet.node.releases.git.mirrors import Git
from localpuppet.node.releases.limits import MAX_TAG_AHEAD
from localpuppet.node.releases.manifest import LOCK, MANIFEST
from localpuppet.node.releases.release_records import TagMemory
from localpuppet.node.releases.source import ReleaseSource, refuse_stale, tag_of

# Tags of a source, and new ones that one look judges.
MOST_TAGS = 20_000
MOST_NEW = 50
# Characters of a result or a problem.
MOST_TEXT = 500
# Seconds before the first look in which a tag may have been made that is pushed after it.
MADE_BEFORE = 3600.0
_TAGS = "refs/tags/"
_MARK = 16  # hexadecimal digits


class LookRecord(JsonRecord):
    """What the looks at a source have led to.

    Attributes:
        source: The source; another one in the settings is looked at for the first time.
        result: What came of the newest release that was judged, and whether that is a failure.
        unfinished: Whether the release was accepted, and what came of it is not known yet.
    """

    source: str = ""
    marks: frozenset[str] = frozenset()
    release: str = ""
    tagged_at: float = 0.0
    delivered_at: float = 0.0
    looked_at: float = 0.0
    result: str = ""
    failed: bool = False
    unfinished: bool = False
    problem: str = ""

    @property
    def failing(self) -> str:
        """Return why a person should look, one line; empty if none need."""
        return self.problem or (self.result if self.failed else "")


@dataclass(frozen=True, slots=True)
class TagSearch:
    """Asks git hosts; each call may take as long as git may."""

    supply: Supply
    repository: Git

    def look(self, name: str, record: LookRecord, now: float) -> LookRecord:
        """Return the record after a look at a source.

        Args:
            record: The record before; an empty one for the first look.

        Raises:
            UnavailableError: The repository cannot be reached.
            BusyError: Another process changes the store.
        """
        source = self.supply.sources[name]
        marks = marks_of(self.repository.listed(source.url))
        if len(marks) > MOST_TAGS:
            raise InvalidInputError(f"has more than {MOST_TAGS} tags", where=f"source {name}")
        known = frozenset(marks.values())
        if record.source != name:
            return LookRecord(
                source=name,
                marks=known,
                tagged_at=now - MADE_BEFORE,
                delivered_at=record.delivered_at,
                looked_at=now,
                result="waits for a tag that is new",
            )
        new = sorted(tag for tag, mark in marks.items() if mark not in record.marks)[:MOST_NEW]
        judged = (record.marks & known) | {marks[tag] for tag in new}
        accepted, refused = replace(record, marks=judged, looked_at=now, problem=""), ""
        for tag in new:
            app = ReleasePath(f"{name}/tags/{tag}")
            try:
                at = self._check(source, app, after=accepted.tagged_at, now=now)
            except (UnavailableError, BusyError):
                raise
            except LocalpuppetError as error:
                refused = shortened(one_line(f"{app}: refused: {error}"), MOST_TEXT)
                continue
            if at is not None:
                accepted = replace(accepted, release=app, tagged_at=at, result="", failed=False)
        if refused and accepted.tagged_at == record.tagged_at:
            return replace(accepted, result=refused, failed=True)
        return accepted

    def _check(
        self, source: ReleaseSource, app: ReleasePath, *, after: float, now: float
    ) -> float | None:
        """Return the time in the tag of a release that nodes may get; `None` if it is not newer."""
        pinned = TagMemory(self.supply.store.directory).pin(app)
        wanted = WantedTag(url=source.url, tag=tag_of(app), where=app, source=source, pinned=pinned)
        with self.supply.store.locks.take_for_changes():
            tag = self.supply.tags(self.repository).judge(wanted, refresh=True)
            files = self.repository.files(source.url, tag.commit, [MANIFEST, LOCK])
        if tag.tagged_at is None:
            raise IntegrityError("has no time, as its tag is not annotated", where=app)
        if tag.tagged_at > now + MAX_TAG_AHEAD:
            raise IntegrityError("has a tag timestamp more than a day from now", where=app)
        if tag.tagged_at <= after:
            return None
        refuse_stale(source, tag, now=now, where=app)
        self.supply.files.locked(app, files.get)
        return tag.tagged_at


def marks_of(listed: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the mark of each tag that can be a release, by references and their objects' ids."""
    refs = {name: object_id for name, object_id in listed if not name.endswith("^{}")}
    beside: dict[str, list[str]] = {}
    for name in sorted(refs):
        beside.setdefault(f"{name.rpartition('/')[0]}/", []).append(f"{name} {refs[name]}")
    marks = {}
    for name, object_id in refs.items():
        tag = name.removeprefix(_TAGS)
        with suppress(InvalidInputError):
            if f"{_TAGS}{Tag.parse(tag, where=name)}" == name and "/" not in tag:
                parts = [tag, object_id, *beside.get(countersignature_refs(tag), ())]
                marks[tag] = sha256(" ".join(parts).encode()).hexdigest()[:_MARK]
    return marks
