"""lock: from a manifest to `manifest.lock`.

Owns: resolving every tag of a manifest, and the form of the lock file. Invariants: a lock names
everything that the manifest names, and nothing else; a tag that moved since the last lock is an
alarm.
"""

import json
from collections.abc import Callable
from contextlib import suppress

from localpuppet.errors import InvalidInputError, LocalpuppetError
from localpuppet.formats.documents import Documents
from localpuppet.formats.names import ReleasePath
from localpuppet.releases.lock import Lock
from localpuppet.releases.manifest import Manifest, check_modulepath
from localpuppet.releases.source import split

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
        from localpuppet.formats import (
            canonical_yaml,  # its patterns cost 5 ms, where nothing is new
        )

        with suppress(LocalpuppetError, KeyError, TypeError, ValueError, AttributeError):
            text = data.decode("ascii")
            read = canonical_yaml.read(text) or {}
            manifest = Manifest.from_dict(read, allow_file=allow_file)
            if manifest.to_text({}) == canonical_yaml.without_comments(text):
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
    from localpuppet.formats import canonical_yaml

    with suppress(LocalpuppetError, KeyError, TypeError, ValueError, AttributeError):
        text = data.decode("ascii")
        lock = Lock.from_dict(canonical_yaml.read(text) or {}, allow_file=allow_file)
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
