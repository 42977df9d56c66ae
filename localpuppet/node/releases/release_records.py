"""What a node keeps of its releases: staged ones, their tags, and the order of applied ones.

- Staged releases have one file each in `staged/` of the state directory.
- An entry in `verified.json` names the tree that git wrote, its commit and tag object, and the
  signers file that accepted the tag. So a tree that came another way never counts as the tag's
  tree. A changed signers file makes every tag of its source require verification again.
- The rule is TUF's THRESHOLD of a role: a number of keys whose signatures are required. The tag's
  own signature and its countersignatures count, one for each person (`releases.git.signatures`), by
  the current signers file: a removed signer does not count. The tag's own signature must be valid
  in any case, because it covers the tag's time.
- `tags.json` has the pin of each release, and the time in each tag object, whose bytes (and
  signature, if any) cover it. A pin is replaced only if the user accepts that the tag moved.
- `applied.json` is the ledger, and `rollback.json` the rollback in force. A source only moves
  forward by itself, by the times in its tags if they are known. An operator can decide to roll
  back; the rollback ends when the input changes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, TypeVar

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.base.formats.converter import JsonForm, JsonRecord
from localpuppet.base.formats.json_file import json_files, read_record
from localpuppet.base.formats.names import ReleasePath, RunId
from localpuppet.base.formats.times import TimeText, parse_time
from localpuppet.base.machine.files import disk_errors, make_private, remove, write_json
from localpuppet.base.value import Value
from localpuppet.node.releases.git.git_modules import Pin
from localpuppet.node.releases.git.git_names import GitUrl, Tag
from localpuppet.node.releases.manifest import parse_inner_path
from localpuppet.node.releases.source import ReleaseSource

if TYPE_CHECKING:
    from localpuppet.node.releases.git.mirrors import Git


PIN_FORM = JsonForm(partial(Pin.from_dict, where="", allow_file=True), asdict)


class NamedRecord(JsonRecord):
    release: ReleasePath


class StagedRelease(NamedRecord):
    """The record of a staged release: its trees by digest.

    `composition` is the name of its link directory; `moduledir` is that of single modules in it.
    """

    SCHEMA: ClassVar = 1
    pin: Annotated[Pin, PIN_FORM]
    composition: str
    modules: Mapping[str, str]
    sources: Mapping[str, str]
    moduledir: Annotated[str, parse_inner_path]

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
        if (record := self.of(app)) is None:
            raise InvalidInputError(
                "is not staged on this machine",
                where=str(app),
                hint=f"stage it: 'localpuppet stage {app}'",
            )
        return record

    def all(self) -> list[Record]:
        """Return every record, by the release's name, except those that are removed meanwhile."""
        files = json_files(self._directory)
        records = [read_record(path, self._form.from_dict) for path in files]
        return sorted(filter(None, records), key=lambda record: record.release)

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
        remove(self._file(app))

    def rubbish(self) -> list[Path]:
        """Return incomplete files of a dead process."""
        return list(self._directory.glob(".*"))

    def _file(self, app: ReleasePath) -> Path:
        return self._directory / file_name(app)


class StagedRecords(ReleaseRecords[StagedRelease]):
    def __init__(self, state: Path) -> None:
        super().__init__(state / "staged", StagedRelease)


def file_name(app: ReleasePath) -> str:
    """Return the file name of a release's record."""
    return f"{app.replace('/', '%')}.json"


def release_of(file: Path) -> ReleasePath:
    """Return the release of a record's file."""
    return ReleasePath(file.stem.replace("%", "/"))


UNVERIFIED = "the signature of its tag is not verified by the signers file as it is now"
VERIFIED_FILE, TAGS_FILE = "verified.json", "tags.json"


class TagVerification(JsonRecord):
    """What git verified of a tag; `rules` is the `rules_digest` of its source at that time."""

    commit: str
    tree_sha256: str
    rules: str


class VerifiedTags(JsonRecord):
    """The verifications of this node, by release and tag object."""

    SCHEMA: ClassVar = 1
    verified: Mapping[str, TagVerification]


class Verifications:
    """The verifications of this node, for one decision: each file is read at most once."""

    def __init__(self, state: Path) -> None:
        self._file = state / VERIFIED_FILE
        self._rules: dict[ReleaseSource, str] = {}

    def accepts(self, source: ReleaseSource, pin: Pin) -> bool:
        """Return whether a pin was verified, or needs no verification."""
        if source.signers is None:
            return True
        return self._entries.get(_key(source, pin)) == _entry(pin, self._rules_of(source))

    def unverified(
        self, staged: StagedRelease, sources: Mapping[str, ReleaseSource]
    ) -> ReleasePath | None:
        """Return a name in a release, or of its trees, whose tag lacks a required verification."""
        for name, sha256 in staged.named.items():
            source = sources.get(name.source)
            if source is None or source.signers is None:
                continue
            wanted = sha256, self._rules_of(source)
            if not any(
                key.startswith(f"{name} ") and (entry.tree_sha256, entry.rules) == wanted
                for key, entry in self._entries.items()
            ):
                return name
        return None

    def refuse(self, staged: StagedRelease, sources: Mapping[str, ReleaseSource]) -> None:
        """Reject a release with a tag that lacks a required verification."""
        if (name := self.unverified(staged, sources)) is not None:
            raise IntegrityError(
                UNVERIFIED,
                where=str(name),
                hint=f"'localpuppet stage {staged.release}' verifies again, from what is on this"
                " node; what only a removed signer has signed stays refused: name a release that"
                " others have signed",
            )

    def _rules_of(self, source: ReleaseSource) -> str:
        if source not in self._rules:
            self._rules[source] = rules_digest(source)
        return self._rules[source]

    @cached_property
    def _entries(self) -> Mapping[str, TagVerification]:
        hint = "remove it: 'localpuppet stage' verifies again"
        known = read_record(self._file, VerifiedTags.from_dict, hint=hint)
        return {} if known is None else known.verified


def note_verified(state: Path, tags: Iterable[tuple[ReleaseSource, Pin, str]]) -> None:
    """Record verified tags, with their trees as git wrote them.

    Each has its source, its pin, and `rules_digest` of the source, taken before the verification
    began. Tags of sources without signers are ignored.
    """
    new = {
        _key(source, pin): _entry(pin, rules)
        for source, pin, rules in tags
        if source.signers is not None
    }
    known = Verifications(state)._entries if new else {}
    if any(known.get(key) != entry for key, entry in new.items()):
        make_private(state)
        write_json(state / VERIFIED_FILE, VerifiedTags(verified={**known, **new}).to_dict())


def rules_digest(source: ReleaseSource) -> str:
    """Return the digest of a source's verification rules; a changed one voids verifications."""
    if source.signers is None:
        return ""
    import hashlib  # 3 ms that `enc` saves

    with disk_errors(source.signers):
        rules = hashlib.sha256(source.signers.read_bytes())
    if source.unnamed_tags:
        rules.update(b"\0unnamed tags")
    if source.signatures > 1:
        rules.update(b"\0%d signatures" % source.signatures)
    return rules.hexdigest()


def _key(source: ReleaseSource, pin: Pin) -> str:
    return f"{source.name}/tags/{pin.tag} {pin.tag_object}"


def _entry(pin: Pin, rules: str) -> TagVerification:
    return TagVerification(commit=pin.commit, tree_sha256=pin.tree_sha256, rules=rules)


def _people(
    repository: "Git", source: ReleaseSource, url: GitUrl, tag: Tag, *, refresh: bool
) -> tuple[list[str], list[str]]:
    """Return the people who have signed a tag, and why further signatures do not count."""
    if source.signers is None:
        return [], []
    own = repository.verify_signature(url, tag, signers=source.signers)
    if source.signatures == 1:
        return [own.name], []
    from localpuppet.node.releases.git.signatures import people

    beside = repository.countersignatures(
        url, tag, signers=source.signers, source=source.name, refresh=refresh
    )
    names = people([own, *(one.signer for one in beside if one.signer is not None)])
    return names, [f"{one.id[:12]} {one.problem}" for one in beside if one.problem]


def signed_by(repository: "Git", source: ReleaseSource, *, url: GitUrl, tag: Tag) -> list[str]:
    """Return the people who have signed a tag, without fetching anything.

    Raises:
        IntegrityError: The tag's own signature does not count.
    """
    return _people(repository, source, url, tag, refresh=False)[0]


def refuse_unsigned(
    repository: "Git", source: ReleaseSource, *, url: GitUrl, tag: Tag, where: str
) -> None:
    """Reject a tag that too few people have signed.

    The mirror's signatures are judged first; the repository is asked only if they are too few.
    """
    names: list[str] = []
    problems: list[str] = []
    for refresh in (False, True):
        names, problems = _people(repository, source, url, tag, refresh=refresh)
        if len(names) >= source.signatures:
            return
    missing = source.signatures - len(names)
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    void = f"; does not count: {problems[0]}{more}" if problems else ""
    raise IntegrityError(
        f"{source.name} requires {source.signatures} signatures, and the tag {tag} is"
        f" signed by {', '.join(names)}: {missing} more must sign{void}",
        where=where,
        hint=f"'localpuppet release sign DIR {tag}' signs; then stage again",
    )


class SeenTags(JsonRecord):
    """The pins of releases, and the times in tag objects, in seconds since 1970."""

    SCHEMA: ClassVar = 1
    pins: Mapping[ReleasePath, Annotated[Pin, PIN_FORM]]
    times: Mapping[str, int]


class TagMemory:
    """Tags that this node has seen."""

    def __init__(self, state: Path) -> None:
        self._file = state / TAGS_FILE

    def pin(self, app: ReleasePath) -> Pin | None:
        """Return the pin of a release; `None` if it was never staged."""
        return self._read().pins.get(app)

    def tagged_at(self, app: ReleasePath) -> int | None:
        """Return the time in the tag of a release; `None` if git never fetched it, or without one.

        The time is in seconds since 1970.
        """
        seen = self._read()
        return seen.times.get(seen.pins[app].tag_object) if app in seen.pins else None

    def times(self) -> Mapping[str, int]:
        """Return the time in each known tag object, in seconds since 1970."""
        return self._read().times

    def note_pin(self, app: ReleasePath, pin: Pin) -> None:
        seen = self._read()
        if seen.pins.get(app) != pin:
            self._write(replace(seen, pins={**seen.pins, app: pin}))

    def note_time(self, tag_object: str, time: int | None) -> None:
        """Remember the time in a tag object, in seconds since 1970."""
        seen = self._read()
        if time is not None and seen.times.get(tag_object) != time:
            self._write(replace(seen, times={**seen.times, tag_object: time}))

    def _write(self, seen: SeenTags) -> None:
        make_private(self._file.parent)
        write_json(self._file, seen.to_dict())

    def _read(self) -> SeenTags:
        hint = "move it away; moved tags of collected releases are not noticed then"
        seen = read_record(self._file, SeenTags.from_dict, hint=hint)
        return seen or SeenTags(pins={}, times={})


class AppliedElsewhere(Value):
    """The release that other nodes report for a reinstalled node without a ledger.

    Without the time in its tag, no order follows.
    """

    release: ReleasePath
    tagged_at: int | None


class Rollback(JsonRecord):
    """A decision to run an earlier release with its earlier node document.

    Attributes:
        run: The good run whose node document is used.
        input_sha256: The input that it overrules; a changed input ends it.
        serial: The serial of the assignment that it overrules; a new assignment ends it. 0 if the
            input named the release itself.
    """

    SCHEMA: ClassVar = 1
    release: ReleasePath
    run: RunId
    node_document: Mapping[str, Any]
    input_sha256: str
    user: str
    since: TimeText
    input_release: str
    serial: int

    def stands(self, input_sha256: str, serial: int) -> bool:
        """Return whether the decision is in force for an input; a changed input ends it."""
        return self.input_sha256 == input_sha256 and self.serial in (0, serial)

    def to_public(self) -> dict[str, str]:
        """Return what other nodes may read: all fields but the node document."""
        names = ("input_release", "release", "run", "user", "since")
        return {name: str(getattr(self, name)) for name in names}

    def __str__(self) -> str:
        since = parse_time(self.since).strftime("%Y-%m-%d %H:%M UTC")
        decided = f"rolled back to {self.release} by {self.user} at {since}"
        return f"{decided}; the input names {self.input_release}"


class AppliedReleases(JsonRecord):
    """By source: the tags in the order of their first run, and the tag that was applied last."""

    SCHEMA: ClassVar = 1
    order: Mapping[str, tuple[ReleasePath, ...]]
    current: Mapping[str, ReleasePath]


class Ledger:
    """The releases that were applied on this node, in order."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._applied = state / "applied.json"
        self._rollback = state / "rollback.json"
        self._memory = TagMemory(state)

    def order(self, source: str) -> list[ReleasePath]:
        """Return the tags of `source` that were applied, in the order of their first run."""
        return [*self._read().order.get(source, ())]

    def sources(self) -> list[str]:
        """Return every source that has releases in the ledger."""
        return sorted(self._read().order)

    def current(self, source: str) -> ReleasePath | None:
        """Return the tag of `source` that was applied last; or `None`."""
        return self._read().current.get(source)

    def _read(self) -> AppliedReleases:
        hint = "move it away; the order of releases then starts again"
        applied = read_record(self._applied, AppliedReleases.from_dict, hint=hint)
        return applied or AppliedReleases(order={}, current={})

    def begins(self, app: ReleasePath) -> bool:
        """Return whether no release of a tag's source was ever applied on this node."""
        return app.is_tag and self.current(app.source) is None

    def check_forward(self, app: ReleasePath, *, before: AppliedElsewhere | None = None) -> None:
        """Reject a release that is older than the last applied release of its source.

        If the times inside both tags are known and differ, they decide, because they are signed.
        Otherwise the order of the first runs on this node decides. What other nodes report as
        applied `before`, for a source that the ledger does not know, can only lead to a rejection.
        """
        current = self.current(app.source)
        if current is None and before is not None:
            self._check_elsewhere(app, before)
        if not app.is_tag or current is None or app == current:
            return
        times = (self._memory.tagged_at(app), self._memory.tagged_at(current))
        if times[0] is not None and times[1] is not None and times[0] != times[1]:
            older, why = times[0] < times[1], "by tag timestamp"
        else:
            order = self.order(app.source)
            older = app in order and order.index(app) < order.index(current)
            why = "which was applied after it"
        if older:
            raise InvalidInputError(
                f"is older than {current}, {why}",
                where=str(app),
                hint="run 'localpuppet rollback', or 'localpuppet apply --allow-older'",
            )

    def _check_elsewhere(self, app: ReleasePath, before: AppliedElsewhere) -> None:
        mine, last = self._memory.tagged_at(app), before.tagged_at
        same_source = app.is_tag and app.source == before.release.source
        if same_source and mine is not None and last is not None and mine < last:
            raise InvalidInputError(
                f"is older, by tag timestamp, than {before.release}, which this node published"
                " as its last release",
                where=str(app),
                hint="to accept it, run 'localpuppet apply --allow-older'",
            )

    def note(self, app: ReleasePath) -> None:
        """Record that a release is applied now."""
        if not app.is_tag or self.current(app.source) == app:
            return
        applied = self._read()
        mine = applied.order.get(app.source, ())
        applied = AppliedReleases(
            order={**applied.order, app.source: mine if app in mine else (*mine, app)},
            current={**applied.current, app.source: app},
        )
        make_private(self._state)
        write_json(self._applied, applied.to_dict())

    def rollback(self) -> Rollback | None:
        """Return the rollback in force, or `None`."""
        return read_record(self._rollback, Rollback.from_dict)

    def in_force(self, input_file: Path, *, serial: int) -> Rollback | None:
        """Return the rollback in force for the current input; a changed input ends it.

        An unreadable input ends nothing.
        """
        if (rollback := self.rollback()) is None:
            return None
        import hashlib  # needed only after a rollback

        try:
            digest = hashlib.sha256(input_file.read_bytes()).hexdigest()
        except OSError:
            return rollback
        return rollback if rollback.stands(digest, serial) else None

    def roll_back(self, rollback: Rollback) -> None:
        """Put a rollback in force."""
        make_private(self._state)
        write_json(self._rollback, rollback.to_dict())

    def end_rollback(self) -> None:
        remove(self._rollback)
