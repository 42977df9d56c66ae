"""Brings tagged trees from git into the store: fetches, verifies, writes, compares.

    fetch the tag -> has it moved? -> who signed it? -> write its tree -> are the bytes as pinned?

- The store takes all trees of a call or none. Callers hold the store's lock.
- A tag that differs from its pin stops the call.
- If a source requires signatures, each of its tags is verified and its tree written by git, even if
  the store has the tree already (`releases.release_records` remembers the result).
- A tree beyond `releases.limits` is not written.

    fetcher.bring({"modules.ntp": WantedTag(url=url, tag="v1", where="manifest.lock: modules.ntp")})
    # {"modules.ntp": Pin(url=…, tag="v1", tag_object=…, commit=…, tree_sha256=…)}
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import IntegrityError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.value import Value
from localpuppet.node.releases import modules, release_records
from localpuppet.node.releases.git.git_modules import Pin
from localpuppet.node.releases.git.git_names import GitUrl, Tag, TagObject
from localpuppet.node.releases.limits import Budget
from localpuppet.node.releases.manifest import Lock, ReleaseFiles
from localpuppet.node.releases.source import ReleaseSource, refuse_other_source
from localpuppet.node.releases.store import Store

if TYPE_CHECKING:
    from localpuppet.node.releases.git.mirrors import Git


Pins = Mapping[str, modules.ModulePin]
Batches = Generator[Sequence[tuple[str, str, str]], None, None]


class WantedTag(Value):
    """A tag whose tree the store needs.

    The rules of `source` apply to it. `hint` is the cure in the message if the tree differs.
    """

    url: GitUrl
    tag: Tag
    where: str
    source: ReleaseSource | None = None
    pinned: Pin | None = None
    tree_sha256: str | None = None
    hint: str = ""


def wanted_of(
    lock: Lock, sources: Mapping[str, ReleaseSource], *, file: str, hint: str = ""
) -> dict[str, WantedTag]:
    """Return the tags that a lock pins, with their pins, by their key in the lock."""
    places = {f"sources.{name}": sources.get(name.source) for name in lock.sources}
    return {
        key: WantedTag(
            url=pin.url,
            tag=pin.tag,
            where=f"{file}: {key}",
            source=places.get(key),
            pinned=pin,
            tree_sha256=pin.tree_sha256,
            hint=hint,
        )
        for key, pin in lock.pins.items()
        if isinstance(pin, Pin)
    }


class Fetcher:
    """Fetches and verifies trees.

    With `proves` each tree is written again, even if the store has it: then the repository has it,
    too.
    """

    def __init__(self, *, repository: "Git", store: Store, proves: bool = False) -> None:
        self._repository = repository
        self._store = store
        self._proves = proves
        self._rules: dict[ReleaseSource, str] = {}  # before the first check by them

    def judge(self, wanted: WantedTag, *, refresh: bool) -> TagObject:
        """Return a tag that passed every check without its tree; `refresh` asks its repository."""
        self._repository.fetch([(wanted.url, wanted.tag)], refresh=refresh)
        tag_object = self._repository.tag(wanted.url, wanted.tag)
        self._check(wanted, tag_object)
        return tag_object

    def bring(
        self,
        wanted: Mapping[str, WantedTag],
        *,
        judged: Mapping[str, TagObject] | None = None,
        ask_all: bool = False,
        budget: Budget | None = None,
    ) -> dict[str, Pin]:
        """Bring trees into the store, and return the pins of their tags.

        A tree that the store has is not fetched, unless its tag must be verified. All trees of one
        release count for its `budget`, those in the store, too.
        """
        tags = dict(judged or {})
        noted = release_records.Verifications(self._store.directory)
        absent = {key for key, item in wanted.items() if not self._has(item, noted)}
        budget = budget or self._store.budget()
        for key, item in wanted.items():
            if key not in absent and item.tree_sha256 is not None:
                members, size = self._store.weight(item.tree_sha256)
                budget.take(size, where=item.where, members=members)
        asked = [key for key in wanted if key not in tags and (ask_all or key in absent)]
        digests: dict[str, str] = {}
        if asked or absent:
            with closing(self._arrivals(wanted, asked, absent, tags)) as arrivals:
                digests = self._write(arrivals, wanted, budget)
        pins = {key: _pin(item, tags.get(key), digests.get(key)) for key, item in wanted.items()}
        release_records.note_verified(
            self._store.directory,
            (
                (source, pins[key], self._rules.get(source, ""))
                for key in digests
                if (source := wanted[key].source) is not None
            ),
        )
        return pins

    def _write(
        self, arrivals: Batches, wanted: Mapping[str, WantedTag], budget: Budget
    ) -> dict[str, str]:
        """Bring trees into the store, all of them or none; return their digests by key."""

        def accept(digests: Mapping[str, str]) -> None:
            for key, sha256 in digests.items():
                item = wanted[key]
                hint = item.hint or "the repository does not contain the locked bytes"
                refuse_other_bytes(item.tree_sha256, sha256, where=item.where, hint=hint)

        with (
            self._store.scratch() as staging,
            closing(self._written(arrivals, staging, budget)) as trees,
        ):
            return self._store.add(trees, accept=accept)

    def _written(
        self, batches: Batches, staging: Path, budget: Budget
    ) -> Generator[tuple[str, Path], None, None]:
        names: list[str] = []
        for batch in batches:
            first = len(names)
            names += [name for _, _, name in batch]
            numbered = [(url, tree, str(i)) for i, (url, tree, _) in enumerate(batch, first)]
            with closing(self._repository.write(numbered, staging, budget)) as written:
                for number in written:
                    yield names[int(number)], staging / number

    def _has(self, item: WantedTag, noted: release_records.Verifications) -> bool:
        """Return whether the store has a tree, verified if its source requires that."""
        if item.tree_sha256 is None or not self._store.sound(item.tree_sha256) or self._proves:
            return False
        if item.source is None or item.source.signers is None:
            return True
        pin = item.pinned
        return (
            pin is not None
            and pin.tree_sha256 == item.tree_sha256
            and noted.accepts(item.source, pin)
        )

    def _check(self, item: WantedTag, tag_object: TagObject) -> None:
        if item.pinned is not None:
            refuse_moved(item.pinned, tag_object, where=item.where)
        if item.source is not None and item.source.signers is not None:
            # Before the check: a signers file that changes meanwhile voids what is noted.
            self._rules.setdefault(item.source, release_records.rules_digest(item.source))
            release_records.refuse_unsigned(
                self._repository, item.source, url=item.url, tag=item.tag, where=item.where
            )
            refuse_other_source(item.source, tag_object, where=item.where)

    def _arrivals(
        self,
        wanted: Mapping[str, WantedTag],
        asked: Sequence[str],
        absent: set[str],
        tags: dict[str, TagObject],
    ) -> Batches:
        """Fetch and check tags; yield URLs, trees and keys of those that have arrived.

        Tags that were judged before come with the first batch, because each checkout is expensive.
        """
        waiting: list[tuple[str, str, str]] = [
            (wanted[key].url, tags[key].tree, key) for key in sorted(absent & set(tags))
        ]
        for come in self._come({key: wanted[key] for key in asked}, absent):
            for key, tag in come.items():
                self._check(wanted[key], tag)
            tags |= come
            waiting += [(wanted[k].url, tag.tree, k) for k, tag in come.items() if k in absent]
            if waiting:
                yield waiting
            waiting = []
        if waiting:
            yield waiting

    def _come(
        self, wanted: Mapping[str, WantedTag], absent: set[str]
    ) -> Generator[dict[str, TagObject], None, None]:
        """Fetch tags; yield those that have arrived, by key.

        A tag that only needs verification is taken from its mirror if possible: a changed signers
        file must not need the network.
        """
        groups: dict[bool, dict[tuple[str, str], list[str]]] = {False: {}, True: {}}
        for key, item in wanted.items():
            tree = item.tree_sha256
            refresh = key not in absent or tree is None or not self._store.has(tree)
            groups[refresh].setdefault((item.url, item.tag), []).append(key)
        for refresh, keys in groups.items():
            with closing(self._repository.arrivals(list(keys), refresh=refresh)) as arrivals:
                for names in arrivals:
                    tag_objects = self._repository.tags(names)
                    yield {key: tag_objects[name] for name in names for key in keys[name]}


def _pin(item: WantedTag, tag: TagObject | None, sha256: str | None) -> Pin:
    tree = sha256 or item.tree_sha256
    if tag is not None and tree is not None:
        return Pin(
            url=item.url, tag=item.tag, tag_object=tag.id, commit=tag.commit, tree_sha256=tree
        )
    if item.pinned is None:
        raise ValueError(f"{item.where}: neither fetched nor pinned")
    return item.pinned


def refuse_other_bytes(expected: str | None, sha256: str, *, where: str, hint: str) -> None:
    """Reject a tree with another digest than the lock's; a lock may have none yet."""
    if expected and sha256 != expected:
        raise IntegrityError(
            f"has the digest {sha256[:16]}…, the lock says {expected[:16]}…", where=where, hint=hint
        )


def refuse_moved(pin: Pin, tag_object: TagObject, *, where: str) -> None:
    """Reject a tag that differs from its pin."""
    if (tag_object.id, tag_object.commit) != (pin.tag_object, pin.commit):
        raise IntegrityError(
            f"the tag {pin.tag} has moved: it was {pin.commit[:12]}"
            f" (tag object {pin.tag_object[:12]}), the repository now says {tag_object.commit[:12]}"
            f" ({tag_object.id[:12]})",
            where=where,
            hint="find out who moved it and why; '--accept-moved' accepts the new commit",
        )


def compare_commits(app: ReleasePath, pin: Pin, commits: Mapping[str, Sequence[str]]) -> str:
    """Compare a tag that is new to this node with the commits that other nodes staged for it.

    Return a warning; empty if all nodes agree. If other nodes differ among themselves, the tag is
    accepted: one node with a stolen key could otherwise block every release on new nodes.

    Args:
        commits: Commit → nodes whose last good run was of the release with that commit.

    Raises:
        IntegrityError: Other nodes report other commits, and no node reports this one.
    """
    others = {commit: nodes for commit, nodes in commits.items() if commit != pin.commit}
    if not others:
        return ""
    reported = "; ".join(
        f"{commit[:12]} on {_name_nodes(others[commit])}" for commit in sorted(others)
    )
    what = f"the tag {pin.tag} is {pin.commit[:12]} here, but {reported}"
    if pin.commit in commits:
        agree = _name_nodes(commits[pin.commit])
        return f"warning: {app}: {what}; as here on {agree}: the tag was moved"
    raise IntegrityError(
        what,
        where=app,
        hint="find out who moved the tag and why; 'localpuppet stage --accept-moved' takes it as it"
        " is now",
    )


def _name_nodes(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
    return f"{min(nodes)}{more}"


class ModuleFetcher(Value):
    """Brings modules that are no tags; `proves` as in `Fetcher`."""

    source: Callable[[str], modules.ModuleSource]
    store: Store
    proves: bool = False

    def bring(
        self, pins: Pins, *, file: str, ask_all: bool = False, budget: Budget | None = None
    ) -> dict[str, modules.ModulePin]:
        """Bring trees into the store, and return their complete pins; pins of tags are ignored."""
        wanted = {key: pin for key, pin in pins.items() if not pin.is_tag}
        present = {key: pin for key, pin in wanted.items() if self._has(pin)}
        budget = budget or self.store.budget()
        for key, pin in present.items():
            members, size = self.store.weight(pin.tree_sha256)
            budget.take(size, where=f"{file}: {key}", members=members)
        whole = dict(wanted)
        absent = {key: pin for key, pin in wanted.items() if key not in present}
        for kind, some in modules.by_kind(absent).items():
            whole |= self._write(self.source(kind), some, file, budget)
        for kind, some in modules.by_kind(present if ask_all else {}).items():
            self.source(kind).confirm(some.values())
        return whole

    def _has(self, pin: modules.ModulePin) -> bool:
        return bool(pin.tree_sha256) and self.store.sound(pin.tree_sha256) and not self.proves

    def _write(
        self, source: modules.ModuleSource, pins: Pins, file: str, budget: Budget
    ) -> dict[str, modules.ModulePin]:
        """Bring the trees of one kind into the store, all of them or none."""
        whole: dict[str, modules.ModulePin] = {}

        def written(trees: modules.Trees) -> Generator[tuple[str, Path], None, None]:
            for key, pin, directory in trees:
                whole[key] = pin
                yield key, directory

        def accept(digests: Mapping[str, str]) -> None:
            for key, sha256 in digests.items():
                refuse_other_bytes(
                    pins[key].tree_sha256,
                    sha256,
                    where=f"{file}: {key}",
                    hint="find out who edited the lock, or what was locked",
                )

        with self.store.scratch() as scratch, closing(source.write(pins, scratch, budget)) as trees:
            digests = self.store.add(written(trees), accept=accept)
        return {key: replace(pin, tree_sha256=digests[key]) for key, pin in whole.items()}


class Supply(Value):
    """Provides code from sources, and stores it; `proves` as in `Fetcher`."""

    store: Store
    sources: Mapping[str, ReleaseSource]
    files: ReleaseFiles
    access: modules.ModuleAccess
    proves: bool = False

    def tags(self, repository: "Git") -> Fetcher:
        return Fetcher(repository=repository, store=self.store, proves=self.proves)

    def modules(self, repository: "Git") -> ModuleFetcher:
        """Return the fetcher of single modules that are not tags."""

        @cache
        def source(kind: str) -> modules.ModuleSource:
            return modules.source_of_kind(kind).open(self.access, repository)

        return ModuleFetcher(source=source, store=self.store, proves=self.proves)
