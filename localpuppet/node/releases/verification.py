"""Which tags were staged on this node, and which were verified with which signers file.

- An entry in `verified.json` of the state directory names the tree that git wrote, its commit and
  tag object, and the signers file that accepted the tag. So a tree that came another way never
  counts as the tag's tree.
- A changed signers file makes every tag of its source require verification again.
- The rule is TUF's THRESHOLD of a role: a number of keys whose signatures are required.
- The tag's own signature and its countersignatures count, one for each person
  (`releases.git.signatures`), by the current signers file: a removed signer does not count.
- The tag's own signature must be valid in any case, because it covers the tag's time.
- `tags.json` in the state directory has the pin of each release, and the time in each tag object.
- A pin is replaced only if the user accepts that the tag moved.
- A time belongs to a tag object, whose bytes (and signature, if any) cover it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from localpuppet.base.errors import IntegrityError
from localpuppet.base.formats.converter import JsonRecord
from localpuppet.base.formats.json_file import read_record
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.machine.files import disk_errors, make_private, write_json
from localpuppet.node.releases.git.git_modules import Pin
from localpuppet.node.releases.git.git_names import GitUrl, Tag
from localpuppet.node.releases.source import ReleaseSource
from localpuppet.node.releases.staged_records import PIN_FORM, StagedRelease

if TYPE_CHECKING:
    from localpuppet.node.releases.git.mirrors import Git


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
        name = self.unverified(staged, sources)
        if name is not None:
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
        """Remember the pin of a release."""
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
