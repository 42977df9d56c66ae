"""Writes locks: every tag of a manifest, resolved to commits and digests.

Owns: what is fetched, checked and stored before a lock is written. Refuses to know: how a lock is
spelled (`releases.lock`, `releases.lockfile`), and git (`releases.git.repository`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.errors import InvalidInputError, LocalpuppetError
from localpuppet.formats.documents import Documents
from localpuppet.machine.files import read_user_file, write_durably
from localpuppet.releases.fetch import refuse_moved, write_trees
from localpuppet.releases.git.tag_object import TagObject
from localpuppet.releases.lock import Lock, Pin
from localpuppet.releases.lockfile import (
    ITSELF,
    LOCK,
    MANIFEST,
    parse_lock,
    parse_manifest,
    to_text,
)
from localpuppet.releases.manifest import Manifest, Tagged, check_modulepath
from localpuppet.releases.source import Source, split
from localpuppet.releases.store import Store

if TYPE_CHECKING:
    from localpuppet.releases.git.repository import Repository


class LockWriter:
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
            InvalidInputError: A repository has no such tag.
            UnavailableError: A repository cannot be had.
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
