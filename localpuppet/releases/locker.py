"""Writes locks: every tag of a manifest, resolved to commits and digests.

Owns: what is fetched, checked and stored before a lock is written. Refuses to know: how a lock is
spelled (`releases.lock`, `releases.lockfile`), and git (`releases.git.repository`).
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.errors import InvalidInputError, LocalpuppetError
from localpuppet.formats.documents import Documents
from localpuppet.machine.files import read_user_file, write_durably
from localpuppet.releases.fetch import Fetcher, Wanted
from localpuppet.releases.lock import Lock
from localpuppet.releases.lockfile import (
    ITSELF,
    LOCK,
    MANIFEST,
    parse_lock,
    parse_manifest,
    to_text,
)
from localpuppet.releases.manifest import Manifest, check_modulepath
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
        if not accept_moved:
            wanted = self._as_pinned(wanted, directory / LOCK)
        held = self._store.exclusively()
        try:
            self._store.sweep(self._repository.rubbish())
            fetcher = Fetcher(repository=self._repository, store=self._store)
            pins = fetcher.bring(wanted)
        finally:
            held.release()
        lock = Lock(
            modules={name: pins[f"modules.{name}"] for name in manifest.modules},
            sources={entry: pins[f"sources.{entry}"] for entry in manifest.modulepath},
        )
        write_durably(directory / LOCK, to_text(lock).encode(), mode=0o644)
        return lock

    def _wanted(self, manifest: Manifest) -> dict[str, Wanted]:
        wanted = {
            f"modules.{name}": Wanted(url=module.url, tag=module.tag, where=f"modules.{name}")
            for name, module in manifest.modules.items()
        }
        for index, entry in enumerate(manifest.modulepath):
            source = self._sources.get(entry.source)
            if source is None:
                raise InvalidInputError(
                    f"localpuppet.yaml does not declare a source {entry.source!r}",
                    where=f"modulepath[{index}]",
                    hint="declare it: 'sources: {NAME: {git: URL}}'",
                )
            key = f"sources.{entry}"
            wanted[key] = Wanted(url=source.url, tag=split(entry), where=key, source=source)
        return wanted

    def _as_pinned(self, wanted: Mapping[str, Wanted], file: Path) -> dict[str, Wanted]:
        """Return what is wanted, held to what the lock that is there pins; its bytes do not count.

        A tag that is locked for the first time, or whose name is another now, is held to nothing.
        """
        if not file.exists():
            return dict(wanted)
        pins = parse_lock(
            read_user_file(file),
            documents=self._documents,
            where=str(file),
            allow_file=self._allow_file,
        ).pins
        return {
            key: replace(item, pinned=pins[key], where=f"{file}: {key}")
            if key in pins and pins[key].tag == item.tag
            else item
            for key, item in wanted.items()
        }
