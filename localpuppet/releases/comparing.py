"""diff: what a node would get from another release.

Owns: reading files and pins of releases that are on this machine. Refuses to
know: how differences are shown.
"""

from collections.abc import Mapping
from dataclasses import replace

from localpuppet.enc.document import NodeDocument
from localpuppet.formats.values import Json
from localpuppet.releases.difference import Difference, compare
from localpuppet.releases.interface import Interface
from localpuppet.releases.lockfile import EMPTY
from localpuppet.releases.release import Release
from localpuppet.releases.release_files import ReleaseFiles
from localpuppet.releases.store import entries


def differences(before: Release, after: Release, *, reader: ReleaseFiles) -> dict[str, Difference]:
    """Return how two releases differ: `dependencies` by their locks, and `files`.

    Args:
        before: The first release.
        after: The second.
        reader: Reads locks.

    Raises:
        InvalidInputError: A lock is refused.
        IntegrityError: A tree holds what must not be in one.
    """
    both = before, after
    return {
        "dependencies": compare(*(pins(release, files=reader) for release in both)),
        "files": compare(*(files(release) for release in both)),
    }


def files(release: Release) -> dict[str, str]:
    """Return every file on a release's modulepath: `MODULE/PATH` → kind and digest.

    What Puppet would not see, because an earlier directory has a module of that name, is left out.

    Raises:
        IntegrityError: A tree holds what must not be in one.
    """
    found: dict[str, str] = {}
    seen: set[str] = set()
    for directory in release.modulepath:
        for module in sorted(path for path in directory.iterdir() if path.is_dir()):
            if module.name in seen:
                continue
            seen.add(module.name)
            for entry in entries(module.resolve(), where=str(module)):
                path = entry.path.decode("utf-8", "backslashreplace")
                found[f"{module.name}/{path}"] = f"{entry.kind} {entry.sha256[:12]}"
    return found


def only_in_other(
    document: NodeDocument, own: Interface, other: Interface
) -> tuple[NodeDocument, list[str]]:
    """Return a document that one of two releases can be compiled with, and what was left out.

    Left out is what only the other release has: its classes, and parameters of classes that both
    have. What neither has stays, and is refused when the catalog is compiled.

    Args:
        document: The node document, written for the other release.
        own: The interface of the release.
        other: The interface of the other.
    """
    classes: dict[str, Mapping[str, Json]] = {}
    left = []
    for name, body in document.classes.items():
        mine, theirs = own.classes.get(name), other.classes.get(name)
        if mine is None and theirs is not None:
            left.append(f"class {name}")
            continue
        new = set(theirs.parameters) - set(mine.parameters) if mine and theirs else set()
        classes[name] = {key: value for key, value in body.items() if key not in new}
        left += [f"parameter {name}::{key}" for key in body if key in new]
    return replace(document, classes=classes), left


def pins(release: Release, *, files: ReleaseFiles) -> dict[str, str]:
    """Return what a release's lock pins: name → tag and commit; empty without a lock.

    Raises:
        InvalidInputError: The lock is refused.
    """
    lock = files.lock(release.directory) or EMPTY
    found = {f"module {name}": f"{pin.name} ({pin.short})" for name, pin in lock.modules.items()}
    for name, pin in lock.sources.items():
        found[f"source {name.source}"] = f"{pin.tag} ({pin.commit[:12]})"
    return found
