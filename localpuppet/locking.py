"""lock: from a manifest to `manifest.lock`.

Owns: resolving every tag of a manifest, and the form of the lock file. Invariants: a lock names
everything that the manifest names, and nothing else; a tag that moved since the last lock is an
alarm.
"""

import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.documents import Documents
from localpuppet.errors import IntegrityError, InvalidInputError, LocalpuppetError
from localpuppet.files import read_user_file, remove_tree, write_durably
from localpuppet.model.lock import Lock, Pin
from localpuppet.model.manifest import Manifest, Tagged, check_modulepath
from localpuppet.model.names import ReleasePath
from localpuppet.model.source import Source, split
from localpuppet.model.tag_object import TagObject
from localpuppet.store import Store

if TYPE_CHECKING:
    # Protocols cost 4 ms to make, and a type needs none of them at run time.
    from localpuppet.ports import Repository

MANIFEST = "manifest.yaml"
LOCK = "manifest.lock"
EMPTY = Lock(modules={}, sources={})
# What a working copy is called where rules need a release's name.
ITSELF = ReleasePath("the-release/tags/itself")


def parse_manifest(data: bytes, *, documents: Documents, where: str, allow_file: bool) -> Manifest:
    """Return the manifest in `data`.

    Raises:
        InvalidInputError: It is refused.
    """
    raw = documents.recall(data, schema="manifest")
    if raw is None:
        from localpuppet.model import block  # its patterns cost 5 ms, where nothing is new

        with suppress(LocalpuppetError, KeyError, TypeError, ValueError, AttributeError):
            text = data.decode("ascii")
            read = block.read(text) or {}
            manifest = Manifest.from_dict(read, allow_file=allow_file)
            if manifest.to_text({}) == block.without_comments(text):
                documents.accept(data, read, schema="manifest")
                return manifest
        raw = documents.parse(data, schema="manifest", where=where, may_be_empty=True)
    try:
        return Manifest.from_dict(raw, allow_file=allow_file)
    except LocalpuppetError as error:
        raise error.at(where) from error


def parse_lock(data: bytes, *, documents: Documents, where: str, allow_file: bool) -> Lock:
    """Return the lock in `data`.

    Raises:
        InvalidInputError: It is refused.
    """
    from localpuppet.model import block

    with suppress(LocalpuppetError, KeyError, TypeError, ValueError, AttributeError):
        text = data.decode("ascii")
        lock = Lock.from_dict(block.read(text) or {}, allow_file=allow_file)
        if to_text(lock) == text:
            return lock
    raw = documents.parse(data, schema="lock", where=where)
    try:
        return Lock.from_dict(raw, allow_file=allow_file)
    except LocalpuppetError as error:
        raise error.at(where) from error


def read_lock(
    app: ReleasePath,
    read: Callable[[str], bytes | None],
    *,
    documents: Documents,
    allow_file: bool,
) -> Lock:
    """Return the lock of a release, that fits its manifest.

    Args:
        app: The release.
        read: Returns the bytes of a file at the top of its own tree; `None` when there is none.
        documents: Reads manifests and locks.
        allow_file: Whether `file://` URLs are allowed.

    Raises:
        InvalidInputError: There is no manifest, or no lock for its dependencies; one of the two is
            refused, or they disagree.
    """
    data = read(MANIFEST)
    if data is None:
        raise InvalidInputError(f"there is no {MANIFEST}", where=app, hint="an empty one will do")
    manifest = parse_manifest(
        data, documents=documents, where=f"{app}/{MANIFEST}", allow_file=allow_file
    )
    check_modulepath(app, manifest, tags_only=True)
    locked = read(LOCK)
    if locked is None:
        if manifest.modulepath or manifest.modules:
            raise InvalidInputError(
                f"there is no {LOCK}, and the manifest has dependencies",
                where=app,
                hint="run 'localpuppet release lock', commit, tag",
            )
        return EMPTY
    lock = parse_lock(locked, documents=documents, where=f"{app}/{LOCK}", allow_file=allow_file)
    check_complete(manifest, lock, where=str(app))
    return lock


def check_complete(manifest: Manifest, lock: Lock, *, where: str) -> None:
    """Refuse a lock that does not fit its manifest.

    Raises:
        InvalidInputError: Something is named by only one of the two, or at another tag.
    """
    wanted = {f"modules.{name}": module.tag for name, module in manifest.modules.items()}
    wanted |= {f"sources.{entry}": split(entry) for entry in manifest.modulepath}
    locked = {place: pin.tag for place, pin in lock.pins.items()}
    for name in sorted({*wanted, *locked}):
        if wanted.get(name) != locked.get(name):
            raise InvalidInputError(
                f"manifest and lock disagree: the manifest wants {wanted.get(name, 'nothing')},"
                f" the lock has {locked.get(name, 'nothing')}",
                where=f"{where}: {name}",
                hint="run 'localpuppet release lock' and commit its result",
            )
    for name, module in manifest.modules.items():
        if lock.modules[name].url != module.url:
            raise InvalidInputError(
                "manifest and lock name different repositories", where=f"{where}: modules.{name}"
            )


class Locker:
    """Makes locks.

    Args:
        repository: Git.
        store: Trees; what is locked is in it afterwards.
        sources: The site's sources by name.
        documents: Reads manifests and locks.
        allow_file: Whether `file://` URLs are allowed.
    """

    def __init__(
        self,
        *,
        repository: "Repository",
        store: Store,
        sources: Mapping[str, Source],
        documents: Documents,
        allow_file: bool,
    ) -> None:
        self._repository = repository
        self._store = store
        self._sources = sources
        self._documents = documents
        self._allow_file = allow_file

    def lock(self, directory: Path, *, accept_moved: bool) -> Lock:
        """Resolve the manifest in `directory` and write the lock beside it.

        Args:
            directory: A working copy of a release.
            accept_moved: Lock a tag again that is not what it was.

        Raises:
            InvalidInputError: The manifest is refused, or names something mutable or unknown.
            IntegrityError: A tag moved, or is no honest tag, or its signature is not trusted.
            UnavailableError: A repository or tag cannot be had.
            StateError: The disk refused.
        """
        file = directory / MANIFEST
        manifest = parse_manifest(
            read_user_file(file),
            documents=self._documents,
            where=str(file),
            allow_file=self._allow_file,
        )
        try:
            check_modulepath(ITSELF, manifest, tags_only=True)
            wanted = self._wanted(manifest)
        except LocalpuppetError as error:
            raise error.at(str(file)) from error
        held = self._store.exclusively()
        try:
            self._repository.sweep()
            return self._resolve(directory, manifest, wanted, accept_moved=accept_moved)
        finally:
            held.release()

    def _resolve(
        self,
        directory: Path,
        manifest: Manifest,
        wanted: Mapping[str, Tagged],
        *,
        accept_moved: bool,
    ) -> Lock:
        self._repository.fetch([(item.url, item.tag) for item in wanted.values()], refresh=True)
        known = self._repository.tags([(item.url, item.tag) for item in wanted.values()])
        found = {key: known[item.url, item.tag] for key, item in wanted.items()}
        for entry in manifest.modulepath:
            source = self._sources[entry.source]
            if source.signers is not None:
                self._repository.verify_signature(source.url, split(entry), signers=source.signers)
        if not accept_moved:
            self._refuse_moved(directory, wanted, found)
        digests = write_trees(
            [[(item.url, found[key].tree, key) for key, item in wanted.items()]],
            repository=self._repository,
            store=self._store,
        )
        pins = {
            key: Pin(
                url=item.url,
                tag=item.tag,
                tag_object=found[key].id,
                commit=found[key].commit,
                tree_sha256=digests[key],
            )
            for key, item in wanted.items()
        }
        lock = Lock(
            modules={name: pins[f"modules.{name}"] for name in manifest.modules},
            sources={entry: pins[f"sources.{entry}"] for entry in manifest.modulepath},
        )
        write_durably(directory / LOCK, to_text(lock).encode(), mode=0o644)
        return lock

    def _wanted(self, manifest: Manifest) -> dict[str, Tagged]:
        wanted = {f"modules.{name}": module for name, module in manifest.modules.items()}
        for index, entry in enumerate(manifest.modulepath):
            source = self._sources.get(entry.source)
            if source is None:
                raise InvalidInputError(
                    f"{entry.source!r} is no source that localpuppet.yaml knows",
                    where=f"modulepath[{index}]",
                    hint="declare it: 'sources: {NAME: {git: URL}}'",
                )
            wanted[f"sources.{entry}"] = Tagged(url=source.url, tag=split(entry))
        return wanted

    def _refuse_moved(
        self, directory: Path, wanted: Mapping[str, Tagged], found: Mapping[str, TagObject]
    ) -> None:
        file = directory / LOCK
        if not file.exists():
            return
        pins = parse_lock(
            read_user_file(file),
            documents=self._documents,
            where=str(file),
            allow_file=self._allow_file,
        ).pins
        for key, tag in found.items():
            if key in pins and pins[key].tag == wanted[key].tag:
                refuse_moved(pins[key], tag, where=f"{file}: {key}")


def refuse_moved(pin: Pin, found: TagObject, *, where: str) -> None:
    """Raise the alarm when a tag is not what it was when it was pinned.

    Raises:
        IntegrityError: It moved; the message has both commits.
    """
    if (found.id, found.commit) != (pin.tag_object, pin.commit):
        raise IntegrityError(
            f"the tag {pin.tag} has moved: it was {pin.commit[:12]}"
            f" (tag object {pin.tag_object[:12]}), the repository now says {found.commit[:12]}"
            f" ({found.id[:12]})",
            where=where,
            hint="find out who moved it and why; --accept-moved takes it as it is now",
        )


def write_trees(
    batches: Iterable[Sequence[tuple[str, str, str]]], *, repository: "Repository", store: Store
) -> dict[str, str]:
    """Bring trees from git into the store, all of them or none.

    Args:
        batches: URL, tree id and a name for messages, of tags that were fetched; some at a time,
            so that others may still be on their way.
        repository: Git.
        store: The store.

    Returns:
        Name → digest.

    Raises:
        IntegrityError: A tree holds what must not be in one.
        StateError: The disk refused; the store has nothing new then.
    """
    staging = store.staging()
    try:
        with closing(_written(batches, repository=repository, staging=staging)) as trees:
            return store.add(trees)
    finally:
        remove_tree(staging)


def _written(
    batches: Iterable[Sequence[tuple[str, str, str]]], *, repository: "Repository", staging: Path
) -> Generator[tuple[str, Path], None, None]:
    names: list[str] = []
    for batch in batches:
        first = len(names)
        names += [name for _, _, name in batch]
        numbered = [(url, tree, str(i)) for i, (url, tree, _) in enumerate(batch, first)]
        with closing(repository.write(numbered, staging)) as written:
            for number in written:
                yield names[int(number)], staging / number


def to_text(lock: Lock) -> str:
    """Return the lock as it is committed: YAML, one field a line, in a fixed order."""
    lines = [
        "# Written by 'localpuppet release lock'; commit it beside manifest.yaml.",
        "version: 1",
    ]
    for kind, pins in lock.to_dict().items():
        if not isinstance(pins, dict) or not pins:
            continue
        lines.append(f"{kind}:")
        for name, pin in pins.items():
            lines.append(f"  {name}:")
            lines += [f"    {field}: {json.dumps(value)}" for field, value in pin.items()]
    return "\n".join(lines) + "\n"
