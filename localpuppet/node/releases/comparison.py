"""Compares releases as collections of named things: files, pins, or resources of catalogs."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from localpuppet.base.formats.converter import JsonRecord
from localpuppet.base.machine.files import disk_errors
from localpuppet.node.releases.manifest import EMPTY, ReleaseFiles
from localpuppet.node.releases.release import Release
from localpuppet.node.releases.store import entries

# What a unified diff is made of at most: bytes and lines of a file, and characters of all diffs.
MAX_TEXT = 256 * 1024
MAX_TEXT_LINES = 5_000
MAX_TEXTS = 1024 * 1024
# Steps for each line of a diff: one line that is compared with another one.
MAX_STEPS = 100


class NameDifference(JsonRecord):
    """Two collections of named things: what only one has, and a line for each that differs."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: Mapping[str, str]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all things that differ, sorted."""
        return tuple(sorted({*self.added, *self.removed, *self.changed}))


class CatalogChanges(JsonRecord):
    """The differences between two catalogs, without values: references and names of parameters."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    left_out: int = 0

    @property
    def count(self) -> int:
        """How many resources differ."""
        return self.listed + self.left_out

    @property
    def listed(self) -> int:
        """How many differing resources are named."""
        return len(self.added) + len(self.removed) + len(self.changed)

    def bounded(self, most: int) -> "CatalogChanges":
        """Return the changes cut to `most` bytes of JSON: removed, changed, then added."""
        room, kept = most, set[str]()
        for name in (*self.removed, *self.changed, *self.added):
            room -= len(json.dumps([name, *self.changed.get(name, ())])) + 2
            if room < 0:
                break
            kept.add(name)
        changes = CatalogChanges(
            added=tuple(name for name in self.added if name in kept),
            removed=tuple(name for name in self.removed if name in kept),
            changed={name: changes for name, changes in self.changed.items() if name in kept},
        )
        return replace(changes, left_out=self.count - changes.count)


def compare(before: Mapping[str, str], after: Mapping[str, str]) -> NameDifference:
    """Compare texts by name in two collections."""
    return NameDifference(
        added=tuple(sorted(after.keys() - before.keys())),
        removed=tuple(sorted(before.keys() - after.keys())),
        changed={
            name: f"{before[name]} → {after[name]}"
            for name in sorted(before.keys() & after.keys())
            if before[name] != after[name]
        },
    )


def unified(before: bytes, after: bytes, *, labels: tuple[str, str]) -> str:
    """Return the unified diff of a file, or a line with the reason for its absence."""
    if before == after:
        return "no difference in content"
    if max(len(before), len(after)) > MAX_TEXT:
        return f"not shown: more than {MAX_TEXT} bytes"
    try:
        first, second = (_lines(data) for data in (before, after))
    except ValueError:
        return "not shown: a binary file"
    if max(len(first), len(second)) > MAX_TEXT_LINES:
        return f"not shown: more than {MAX_TEXT_LINES} lines"
    return "\n".join(_unified_lines(first, second, labels))


def _unified_lines(
    first: Sequence[str], second: Sequence[str], labels: tuple[str, str]
) -> Iterator[str]:
    """Yield the lines of `difflib.unified_diff`, in steps that are limited."""
    from difflib import Match, SequenceMatcher  # agents load this module, and seldom compare

    occurrences = Counter(second)

    class Matcher(SequenceMatcher[str]):
        """Ends the search for equal lines after many steps: what is left counts as replaced."""

        left = MAX_STEPS * (len(first) + len(second))

        def find_longest_match(
            self, start: int = 0, end: int | None = None, new: int = 0, last: int | None = None
        ) -> Match:
            lines = first[start:end]
            self.left -= len(lines) + sum(occurrences[line] for line in lines)
            if self.left < 0:
                return Match(start, new, 0)
            return super().find_longest_match(start, end, new, last)

    yield f"--- {labels[0]}"
    yield f"+++ {labels[1]}"
    for group in Matcher(None, first, second).get_grouped_opcodes():
        (_, start, _, new, _), (_, _, end, _, last) = group[0], group[-1]
        yield f"@@ -{_range(start, end)} +{_range(new, last)} @@"
        for tag, start, end, new, last in group:
            if tag == "equal":
                yield from (f" {line}" for line in first[start:end])
                continue
            yield from (f"-{line}" for line in first[start:end])
            yield from (f"+{line}" for line in second[new:last])


def _range(start: int, end: int) -> str:
    """Return the lines of a hunk as `diff -u` names them: `3`, `3,2`, `2,0`."""
    if end - start == 1:
        return str(start + 1)
    return f"{start + (end > start)},{end - start}"


def _lines(data: bytes) -> list[str]:
    if b"\0" in data:
        raise ValueError("a NUL")
    *lines, last = data.decode("utf-8").split("\n")
    return [*lines, f"{last}\n\\ No newline at end of file"] if last else lines


# The kinds of `store.entries`, in words.
_KINDS = {"F": "file", "X": "executable", "L": "symlink"}


def differences(
    before: Release, after: Release, *, reader: ReleaseFiles
) -> dict[str, NameDifference]:
    """Return how two releases differ: `dependencies` by their locks, and `files`.

    Raises:
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
    """Return differing files as unified diffs of `most` characters; see `unified` for omissions."""
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


def manifest(release: Release, place: str) -> tuple[str, str]:
    """Return the name and the text of a module's manifest; both empty if the release has none.

    `place`, `profile/manifests/db.pp`, is from a node: it may be any text.
    """
    for directory in release.modulepath if place.endswith(".pp") else ():
        path = (directory / place).resolve()
        for prefix, tree in release.trees.items():
            if path.is_relative_to(tree.resolve()) and path.is_file():
                name = _joined(prefix, str(path.relative_to(tree.resolve())))
                return name, _content(release, name).decode("utf-8", "replace")
    return "", ""


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
