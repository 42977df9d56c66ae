"""The read-set of a catalog: what its compile read, with the digests of it.

A stored catalog is used for another release or capture only if everything in its read-set has the
same digest there. *This is the whole rule*: see docs/adr/0060-read-sets.md.

- A read-set consists of parts, which many nodes share (`ReadPart`): the reads of one directory,
  the keys of one data file. `NodeReads` is what the node itself gave.
- A part tells whether it holds for a release (`problem`): the first name that differs, or empty.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field

from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value
from localpuppet.node.preview.compile_request import (
    ALL,
    OWN_PREFIX,
    CapturedQuery,
    CompileRequest,
    FactPath,
    RawReads,
)
from localpuppet.node.preview.release_index import (
    BROKEN,
    DIRECTORY,
    MODULE,
    ReleaseIndex,
    missing_digests,
)

# The state of a file of which only the kind counts.
_SOME_FILE = "file"
# What Puppet replaces by `_` in names of variables for templates.
_NO_WORD = re.compile(r"\W", re.ASCII)


class ReadPart(Value):
    """What was read of one directory, or looked up in one data file.

    Attributes:
        states: Name → state (see `release_index`), `"file"` for any file, `None` for a missing
            name.
        listings: Directory → digest of its names.
        keys: The root keys that were looked up in a data file; `None` if whole files count.
    """

    states: Mapping[str, str | None]
    listings: Mapping[str, str | None] = field(default_factory=dict)
    keys: tuple[str, ...] | None = None
    values: str = ""

    @classmethod
    def of_data(cls, file: str, keys: Iterable[str], index: ReleaseIndex) -> "ReadPart | None":
        """Return what was looked up in a file of a release; `None` if it has no such file.

        Only of a module's metadata, a missing file has values.
        """
        state, looked_up = index.state(file), tuple(sorted(keys))
        if (values := _values(file, looked_up, index)) is None:
            return None if state in (None, DIRECTORY, BROKEN) else cls(states={file: state})
        return cls(states={file: state}, keys=looked_up, values=_values_digest(values, looked_up))

    def problem(self, index: ReleaseIndex) -> str:
        """Return the first name that differs in a release, or empty."""
        for name, state in self.states.items():
            if _kind(index.state(name), state) != state and not self._has_values(name, index):
                return name
        for directory, listing in self.listings.items():
            if index.listing(directory) != listing:
                return directory
        return ""

    def _has_values(self, file: str, index: ReleaseIndex) -> bool:
        values = None if self.keys is None else _values(file, self.keys, index)
        return values is not None and _values_digest(values, self.keys or ()) == self.values


class NodeReads(Value):
    """What the compile read of the node itself; its classes and environment always count.

    An empty path of facts means all.
    """

    facts: tuple[FactPath, ...]
    trusted: tuple[FactPath, ...]
    parameters: tuple[str, ...]
    queries: tuple[str, ...]

    def values(self, request: CompileRequest) -> str:
        """Return the digest of what a node gives at these paths."""
        answers = _Values({_call(query): query.answer for query in request.queries})
        facts, parameters = _Values(request.facts), _Values(request.parameters)
        trusted = _Values(request.trusted)
        return _digest(
            [
                {name: {**body} for name, body in request.classes.items()},
                request.environment,
                [facts.at(path) for path in self.facts],
                [trusted.at(path) for path in self.trusted],
                [[facts.at((name,)), parameters.at((name,))] for name in self.parameters],
                _alike({**request.facts, **request.parameters}, self.parameters),
                [facts.at(()), parameters.at(())] if ALL in self.parameters else [],
                [answers.at((query,)) for query in self.queries],
            ]
        )


class ReadSet(Value):
    parts: tuple[ReadPart, ...]
    node: NodeReads
    values: str

    @classmethod
    def of(cls, reads: RawReads, request: CompileRequest, index: ReleaseIndex) -> "ReadSet | str":
        """Return the read-set of a compile, or a reason why its result must not be kept."""
        states: dict[str, str | None] = {}
        expected = ((reads.absent, False), (reads.present, True), (reads.files, True))
        for names, exists in expected:
            for name in names:
                state = index.state(name)
                if (state not in (None, BROKEN)) != exists and not name.startswith(OWN_PREFIX):
                    return f"{name} changed while it was read, or is not a file of the release"
                states[name] = _kind(state, _SOME_FILE) if names is reads.present else state
        listings = {name: index.listing(name) for name in reads.listed}
        data = []
        for file, keys in sorted(reads.keys.items()):
            if (part := ReadPart.of_data(file, keys, index)) is None:
                return f"{file} changed while it was read, or is not a file of the release"
            data.append(part)
        node = NodeReads(
            facts=tuple(sorted(reads.facts)),
            trusted=tuple(sorted(reads.trusted)),
            parameters=tuple(sorted(reads.parameters)),
            queries=tuple(sorted({_call(query) for query in reads.queries})),
        )
        return cls(
            parts=(*_by_directory(states, listings), *data), node=node, values=node.values(request)
        )


def _by_directory(
    states: Mapping[str, str | None], listings: Mapping[str, str | None]
) -> Iterator[ReadPart]:
    grouped: dict[str, tuple[dict[str, str | None], dict[str, str | None]]] = {}
    for name in sorted(states):
        grouped.setdefault(name.rpartition("/")[0], ({}, {}))[0][name] = states[name]
    for name in sorted(listings):
        grouped.setdefault(name, ({}, {}))[1][name] = listings[name]
    for directory, (inner, listed) in grouped.items():
        if not directory.startswith(OWN_PREFIX):
            yield ReadPart(states=inner, listings=listed)


def _kind(state: str | None, expected: str | None) -> str | None:
    """Return a state, reduced to `file` if only that is expected of a file."""
    is_file = state not in (None, DIRECTORY, BROKEN)
    return _SOME_FILE if expected == _SOME_FILE and is_file else state


def _values(file: str, keys: tuple[str, ...], index: ReleaseIndex) -> Mapping[str, str] | None:
    """Return root key → digest of a file; `None` if it counts as a whole, or by its absence."""
    if keys == (MODULE,) and index.state(file) is None:
        return missing_digests(file)
    return index.keys(file)


def _values_digest(have: Mapping[str, str], keys: Iterable[str]) -> str:
    return _digest([have.get(key) for key in keys])


def _call(query: CapturedQuery) -> str:
    return json.dumps([query.function, [*query.arguments]], sort_keys=True)


class _Values:
    """Digests of values in a mapping, each made once however many paths lead to it."""

    def __init__(self, values: Mapping[str, Json]) -> None:
        self._whole: Json = {**values}
        self._digests: dict[int, str] = {}

    def at(self, path: FactPath) -> list[Json]:
        """Return the digest at a path in a list, or how deep it is where a mapping lacks a key.

        `$facts['a']['b']` fails without `a`, and has no value if only `b` is missing.

        What is no mapping on the way counts as a whole: Puppet reads elements of lists and texts,
        too.
        """
        value = self._whole
        for depth, key in enumerate(path):
            if not isinstance(value, dict):
                break
            if key not in value:
                return [[], depth]
            value = value[key]
        if id(value) not in self._digests:
            self._digests[id(value)] = _digest(value)
        return [self._digests[id(value)]]


def _alike(values: Mapping[str, Json], names: Iterable[str]) -> list[list[Json]]:
    """Return the members that a template reads as `@my_fact`, though they are called `my-fact`."""
    odd = [name for name in values if not (name.isascii() and name.isidentifier())]
    wanted = {*names} if odd else set()
    return [[name, values[name]] for name in odd if _NO_WORD.sub("_", name) in wanted]


def _digest(value: object) -> str:
    # The order of keys counts: Puppet iterates in it.
    data = json.dumps(value, separators=(",", ":")).encode()
    return hashlib.sha256(data).hexdigest()
