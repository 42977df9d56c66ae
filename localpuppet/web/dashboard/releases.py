"""The releases that nodes run, and those that are staged on this machine.

- Signatures are judged by the current signers file of the source, and again after it changes.
- Nothing is fetched. If this machine lacks a tag, or the tag moved since staging, the signers of
  the staged release are unknown.
"""

import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import partial
from itertools import pairwise
from urllib.parse import quote

from localpuppet.base.bounded_dict import BoundedDict
from localpuppet.base.errors import IntegrityError, LocalpuppetError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.text import url_without_secrets
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.presence import TAGS, is_older, tag_order
from localpuppet.node.releases.comparison import NameDifference, differences, manifest, texts
from localpuppet.node.releases.git.git_modules import Pin
from localpuppet.node.releases.git.git_names import TagObject
from localpuppet.node.releases.git.mirrors import Git
from localpuppet.node.releases.manifest import ReleaseFiles
from localpuppet.node.releases.release import Release
from localpuppet.node.releases.release_records import (
    StagedRecords,
    StagedRelease,
    TagMemory,
    rules_digest,
    signed_by,
)
from localpuppet.node.releases.source import ReleaseSource
from localpuppet.web.dashboard.list_query import ListQuery
from localpuppet.web.dashboard.nodes import Tally
from localpuppet.web.dashboard.rollouts import RolloutRow


class ReleaseRow(Tally):
    """A release, with the nodes that ran it last."""

    release: str  # its name; empty for nodes whose last run had none
    tag: str = ""
    commit: str = ""
    staged: str = ""  # the digest of the staged release
    url: str = ""
    signed: str = ""  # its signers; empty if no signature is required
    about: TagObject | None = None
    tagged: float | None = None  # when it was tagged; `None` if this machine does not know
    previous: str = ""
    has_older: bool = False  # whether nodes ran an older tag of its source last


class SourceInUse(Value):
    """The tags of a source that nodes ran last.

    `behind` has the nodes of each release but the newest, with the end of its last run, newest tag
    first.
    """

    newest: str
    nodes: int
    failed: int
    behind: Sequence[tuple[str, Sequence[str], float | None]]

    @property
    def late_nodes(self) -> int:
        """Return the number of nodes that are behind."""
        return sum(len(nodes) for _, nodes, _ in self.behind)


def sources_in_use(tallies: Mapping[str, Tally]) -> list[SourceInUse]:
    """Return the sources whose tags nodes ran last, those with most nodes behind first."""
    sources: dict[str, list[str]] = {}
    for release in tallies:
        if TAGS in release:
            sources.setdefault(_source(release), []).append(release)
    in_use = []
    for releases in sources.values():
        newest, *older = sorted(releases, key=tag_order, reverse=True)
        behind = [(item, tallies[item].nodes, tallies[item].last) for item in older]
        tally = tallies[newest]
        in_use.append(
            SourceInUse(newest=newest, nodes=len(tally.nodes), failed=tally.bad, behind=behind)
        )
    return sorted(in_use, key=lambda item: (-item.late_nodes, item.newest))


def releases(
    asked: ListQuery, tallies: Mapping[str, Tally], staged: "StagedReleases", *, all_: Iterable[str]
) -> list[ReleaseRow]:
    """Return releases in order: those that nodes run, and those staged on this machine."""
    oldest = {_source(release): release for release in sorted(all_, key=tag_order, reverse=True)}
    here = {str(release.release): release for release in staged.all()}
    signed = {app: staged.signed(release) for app, release in here.items()}
    times = staged.tagged()
    previous: Mapping[str, str] = {**predecessors(times)}
    tagged = {str(release): at for release, at in times.items()}
    rows = [
        replace(
            _release(app, tallies.get(app, Tally()), here.get(app)),
            signed=signed.get(app, ""),
            tagged=tagged.get(app),
            previous=previous.get(app, ""),
            has_older=is_older(oldest.get(_source(app), ""), app),
        )
        for app in tallies.keys() | (set() if asked.q else here.keys())
        if asked.name in app.lower()
    ]
    # Of equal ones, the tag with the higher number is the newer one.
    rows.sort(key=lambda row: tag_order(row.release), reverse=asked.down)
    rows.sort(key=lambda row: _key(row, asked.order), reverse=asked.down)
    return rows


def predecessors(tagged: Mapping[ReleasePath, int]) -> Mapping[str, ReleasePath]:
    """Return the release before each one: of the same source, by tag timestamp."""
    known = sorted(tagged.items(), key=lambda pair: (pair[0].source, pair[1]))
    return {
        after: before
        for (before, _), (after, _) in pairwise(known)
        if before.source == after.source
    }


class ReleaseChoice(Value):
    """A release to roll out: its tag if this machine has it, and how many nodes ran it last.

    `rollout` is its newest one, if that did not succeed.
    """

    release: str
    tag: TagObject | None
    nodes: int
    failed: int
    rollout: RolloutRow | None

    @property
    def tagged_at(self) -> int:
        """Return when it was tagged, seconds since 1970; 0 if unknown."""
        return (self.tag.tagged_at if self.tag else None) or 0


def release_choices(
    staged: "StagedReleases",
    tallies: Mapping[str, Tally],
    rollouts: Iterable[RolloutRow],
    *,
    most: int,
) -> list[ReleaseChoice]:
    """Return the releases that can be rolled out, the newest first; git reads only their tags."""
    here = {str(release.release): release for release in staged.all()}
    times = {str(release): at for release, at in staged.tagged().items()}
    newest = {row.release: row for row in sorted(rollouts, key=lambda row: row.id) if not row.noop}
    choices = []
    # Of equal times, the tag with the higher number is the newer one.
    names = sorted(here.keys() | {app for app in tallies if TAGS in app}, key=tag_order)
    for name in sorted(names, key=lambda name: times.get(name, 0))[: -most - 1 : -1]:
        tally, last = tallies.get(name, Tally()), newest.get(name)
        choices.append(
            ReleaseChoice(
                release=name,
                tag=staged.tag(here[name]) if name in here else None,
                nodes=len(tally.nodes),
                failed=tally.bad,
                rollout=last if last is not None and last.state in _UNLUCKY else None,
            )
        )
    return choices


def staged_row(staged: StagedRelease, signed: str, about: TagObject | None) -> ReleaseRow:
    """Return the row of a staged release, without its nodes."""
    row = _release(str(staged.release), Tally(), staged)
    return replace(row, signed=signed, about=about)


def _source(release: str) -> str:
    return release.partition(TAGS)[0]


def _release(app: str, tally: Tally, staged: StagedRelease | None) -> ReleaseRow:
    row = ReleaseRow(release=app, **{one.name: getattr(tally, one.name) for one in fields(Tally)})
    if staged is None:
        return row
    pin = staged.pin
    return replace(
        row,
        tag=f"{pin.tag} {pin.short}",
        commit=pin.commit,
        staged=staged.composition,
        url=url_without_secrets(str(pin.url)),
    )


def _key(row: ReleaseRow, order: str) -> float | str:
    keys: Mapping[str, float | str] = {
        "release": row.release,
        "nodes": len(row.nodes),
        "bad": row.bad,
        "last": row.last or 0.0,
        "tagged": row.tagged or row.last or 0.0,
    }
    return keys[order]


# The states of a rollout that warn of its release.
_UNLUCKY = ("failed", "done with failures", "rolled back", "stopped", "interrupted")
# Signatures and comparisons that are remembered.
MOST_SIGNED = 1000
MOST_COMPARED = 8
# Characters of unified diffs in one answer; the file that exceeds them is the last one.
MOST_TEXT = 256 * 1024
# What stands behind "signed by" where no name does.
# Seconds after which unknown signers are checked again.
AGAIN = 60.0
NOBODY = "no trusted signer"
UNTOLD = "signers unknown on this machine"


@dataclass(slots=True, eq=False)
class StagedReleases:
    """The staged releases of this machine; of git, only mirrors are read."""

    records: StagedRecords
    resolve: Callable[[ReleasePath], Release]
    _: KW_ONLY
    repository: Git
    sources: Mapping[str, ReleaseSource]
    reader: ReleaseFiles
    tags: TagMemory
    monotonic: Callable[[], float]
    # One at a time: each request reads whole trees and starts git.
    _turn: threading.Lock = field(default_factory=threading.Lock, init=False)
    _signed: BoundedDict[tuple[str, str], tuple[str, float]] = field(
        default_factory=partial(BoundedDict, MOST_SIGNED), init=False
    )
    _compared: BoundedDict[tuple[str, str], Mapping[str, NameDifference]] = field(
        default_factory=partial(BoundedDict, MOST_COMPARED), init=False
    )
    _texts: BoundedDict[tuple[str, ...], Mapping[str, str]] = field(
        default_factory=partial(BoundedDict, MOST_COMPARED), init=False
    )
    _tags: BoundedDict[str, TagObject] = field(
        default_factory=partial(BoundedDict, MOST_SIGNED), init=False
    )

    def all(self) -> Sequence[StagedRelease]:
        """Return all, by name."""
        return self.records.all()

    def signed(self, staged: StagedRelease) -> str:
        """Return the signers of a release, one line; empty if its source requires none."""
        source = self.sources.get(staged.release.source)
        if source is None or source.signers is None:
            return ""
        try:
            key = (f"{staged.release} {staged.pin.tag_object}", rules_digest(source))
        except LocalpuppetError:
            return UNTOLD
        with self._turn:
            signers, until = self._signed.get(key, (UNTOLD, 0.0))
            if until <= self.monotonic():
                signers = self._signers(source, staged.pin)
                until = self.monotonic() + AGAIN if signers == UNTOLD else math.inf
                self._signed[key] = signers, until
            return signers

    def _signers(self, source: ReleaseSource, pin: Pin) -> str:
        try:
            if self.repository.tag(pin.url, pin.tag).id != pin.tag_object:
                return UNTOLD
            return ", ".join(signed_by(self.repository, source, url=pin.url, tag=pin.tag))
        except IntegrityError:
            return NOBODY
        except LocalpuppetError:
            return UNTOLD

    def about(self, release: str) -> TagObject | None:
        """Return the tag of a release by name; `None` if it is not staged, or unknown."""
        staged = next((one for one in self.all() if one.release == release), None)
        return None if staged is None else self.tag(staged)

    def tag(self, staged: StagedRelease) -> TagObject | None:
        """Return the tag of a release; `None` if unknown."""
        pin = staged.pin
        try:
            with self._turn:
                if pin.tag_object not in self._tags:
                    tag_object = self.repository.tag(pin.url, pin.tag)
                    self._tags[tag_object.id] = tag_object
        except LocalpuppetError:
            return None
        return self._tags.get(pin.tag_object)

    def web_url(self, release: str, **part: str) -> str:
        """Return the web page of a commit (`hash`) or an author (`user`), or empty."""
        source = self.sources.get(release.partition("/")[0])
        ((name, text),) = part.items()
        if source is None or not text:
            return ""
        form = source.commit_url_format if name == "hash" else source.user_url_format
        return form.replace(f"{{{name}}}", quote(text, safe=""))

    def differences(self, before: ReleasePath, after: ReleasePath) -> Mapping[str, NameDifference]:
        """Return the differences of two staged releases: `dependencies`, `files`."""
        first, second = self.records.need(before), self.records.need(after)
        key = first.composition, second.composition
        with self._turn:
            if key not in self._compared:
                pair = self.resolve(before), self.resolve(after)
                self._compared[key] = differences(*pair, reader=self.reader)
            return self._compared[key]

    def texts(
        self, before: ReleasePath, after: ReleasePath, names: Collection[str]
    ) -> Mapping[str, str]:
        """Return differing files as unified diffs of at most `MOST_TEXT` characters, by name."""
        key = self.records.need(before).composition, self.records.need(after).composition, *names
        with self._turn:
            if key not in self._texts:
                pair = self.resolve(before), self.resolve(after)
                self._texts[key] = texts(*pair, names, most=MOST_TEXT)
            return self._texts[key]

    def manifest(self, release: ReleasePath, place: str) -> tuple[str, str]:
        """Return the name and the text of a module's manifest; see `comparison.manifest`."""
        self.records.need(release)
        return manifest(self.resolve(release), place)

    def tagged(self) -> Mapping[ReleasePath, int]:
        """Return when each staged release was tagged, seconds since 1970, if that is known."""
        try:
            times = self.tags.times()
        except LocalpuppetError:
            return {}  # the links to comparisons are omitted; the form to compare remains
        pins = {release.release: release.pin.tag_object for release in self.all()}
        return {release: times[pin] for release, pin in pins.items() if pin in times}
