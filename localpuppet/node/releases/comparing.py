"""Compares two releases on this machine: their files, pins and catalogs."""

from collections.abc import Iterable

from localpuppet.base.machine.files import disk_errors
from localpuppet.node.releases.difference import (
    MAX_TEXT,
    MAX_TEXTS,
    NameDifference,
    compare,
    unified,
)
from localpuppet.node.releases.release import Release
from localpuppet.node.releases.release_files import EMPTY, ReleaseFiles
from localpuppet.node.releases.store import entries

# The kinds of `tree.entries`, in words.
_KINDS = {"F": "file", "X": "executable", "L": "symlink"}


def differences(
    before: Release, after: Release, *, reader: ReleaseFiles
) -> dict[str, NameDifference]:
    """Return how two releases differ: `dependencies` by their locks, and `files`.

    Args:
        after: The second.

    Raises:
        InvalidInputError: A lock is invalid.
        IntegrityError: A tree has a forbidden member.
    """
    both = before, after
    return {
        "dependencies": compare(*(pins(release, files=reader) for release in both)),
        "files": compare(*(files(release) for release in both)),
    }


def files(release: Release) -> dict[str, str]:
    """Return every file of a release with its modules and collections: name → kind and digest.

    Names are paths in the release: `data/common.yaml`, `modules/ntp/manifests/init.pp`. Those of a
    collection begin with its source.
    """
    return {
        _joined(prefix, entry.path.decode("utf-8", "backslashreplace")): (
            f"{_KINDS[entry.kind]} {entry.sha256[:12]}"
        )
        for prefix, tree in release.trees.items()
        for entry in entries(tree.resolve(), where=str(tree), leave_out=b".git")
    }


def texts(
    before: Release, after: Release, names: Iterable[str], *, most: int = MAX_TEXTS
) -> dict[str, str]:
    """Return differing files as unified diffs, by name; see `unified` for omissions.

    Args:
        after: The second.
        names: The names of the files, as `files` returns them.
        most: After this number of characters, further diffs are omitted.
    """
    contents: dict[str, str] = {}
    room = most
    for name in names:
        if room <= 0:
            contents[name] = f"not shown: the diffs before it have {most} characters"
            continue
        labels = _joined(before.name, name), _joined(after.name, name)
        contents[name] = unified(_content(before, name), _content(after, name), labels=labels)
        room -= len(contents[name])
    return contents


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}/{name}" if prefix else name


def _content(release: Release, name: str) -> bytes:
    """Return the first bytes of a file, more than `MAX_TEXT` of a long file, or a link's target."""
    for prefix, tree in reversed(tuple(release.trees.items())):
        start = _joined(prefix, "")
        path = tree / name.removeprefix(start)
        with disk_errors(path):
            if name.startswith(start) and path.is_symlink():
                return bytes(path.readlink())
            if name.startswith(start) and path.is_file():
                with path.open("rb") as file:
                    return file.read(MAX_TEXT + 1)
    return b""


def pins(release: Release, *, files: ReleaseFiles) -> dict[str, str]:
    """Return what a release's lock pins: name → tag and commit; empty without a lock."""
    lock = files.lock(release.directory) or EMPTY
    pins_by_name = {
        f"module {name}": f"{pin.name} ({pin.short})" for name, pin in lock.modules.items()
    }
    for name, pin in lock.sources.items():
        pins_by_name[f"source {name.source}"] = f"{pin.tag} ({pin.commit[:12]})"
    return pins_by_name
