"""Looks for the stored result of a node that holds for a release and a capture.

*The incremental rule*: a node is compiled again only if no stored result holds. A result holds if
everything in its read-set has the same digest. There is no other mechanism.

- A part of read-sets that nodes share is compared once for each release.
- A capture is parsed only if its bytes are new for a result that holds otherwise.
- Untrusted code can lie about what it read: its results hold for its own revision at most.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from localpuppet.base.errors import LocalpuppetError, errors_at
from localpuppet.node.enc.document import ReleaseEnc, classify
from localpuppet.node.preview.cache import CacheEntry, CompileOutcome, PreviewCache
from localpuppet.node.preview.cache_file import DamagedEntryError
from localpuppet.node.preview.capture import CapturedNode, NodeCapture
from localpuppet.node.preview.catalog_items import digest
from localpuppet.node.preview.ports import CompileRequest
from localpuppet.node.preview.read_set import NodeReads
from localpuppet.node.preview.release_index import ReleaseIndex
from localpuppet.node.preview.result import PreviewRevision
from localpuppet.node.releases.release import ENC, Release

# Why no stored result holds, if none is stored.
NEVER = "was not compiled before"
DAMAGED = "the cache is damaged"
_NODE = "facts, parameters or classes of the node"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewSide:
    """A release that a preview compiles.

    Attributes:
        revision: Its revision.
        release: The release.
        index: The states of its names.
        is_stable: Whether its files stay the same; results of another are not stored.
        warnings: What in it no catalog depends on, and its author may think so.
        scope: The key of an untrusted revision, whose results serve it alone; empty for a trusted
            one, whose results serve every revision for which their read-sets hold.
    """

    revision: PreviewRevision
    release: Release
    index: ReleaseIndex
    is_stable: bool = True
    warnings: tuple[str, ...] = ()
    scope: str = ""

    def source(self, node: CapturedNode) -> bytes:
        """Return the digest of a node's capture and the release's `enc.yaml`."""
        return digest(node.capture + bytes.fromhex(self.index.state(ENC) or ""))


def request_of(capture: NodeCapture, enc: ReleaseEnc) -> CompileRequest:
    """Return the request to compile a node with a release.

    Raises:
        InvalidInputError: A layer or a `%{…}` is unknown.
    """
    values = capture.values_for_puppet()
    with errors_at(f"node document of {capture.node}", LocalpuppetError):
        document = classify([*enc.select(capture.layers), values.data])
    return CompileRequest(
        node=capture.node,
        facts=values.facts,
        trusted=values.trusted,
        parameters=document.parameters,
        classes=document.classes,
        environment=document.environment,
        queries=values.queries,
    )


@dataclass(slots=True, eq=False)
class CacheSearch:
    """Looks for results of nodes that hold for releases.

    Attributes:
        cache: The cache.
        sides: The releases.
    """

    cache: PreviewCache
    sides: Sequence[PreviewSide]
    _lists: dict[bytes, tuple[str, ...]] = field(default_factory=dict, init=False)
    _parts: dict[bytes, tuple[str, ...]] = field(default_factory=dict, init=False)
    _paths: dict[bytes, NodeReads] = field(default_factory=dict, init=False)
    _uses: list[tuple[str, CacheEntry, bytes]] = field(default_factory=list, init=False)

    def find(self, nodes: Sequence[CapturedNode]) -> Iterator[list[CompileOutcome | str]]:
        """Yield for each node what each release gets: a result that holds, or why none does.

        The reason is what differs in the newest result: a name in the release, or a text.
        """
        stored = self.cache.entries([node.name for node in nodes])
        for node, entries in zip(nodes, stored, strict=True):
            try:
                yield self._find(node, entries)
            except DamagedEntryError:
                self.cache.discard(node.name)
                yield [DAMAGED for _ in self.sides]
        self.cache.renew(self._uses)
        self._uses.clear()

    def _find(
        self, node: CapturedNode, entries: Iterable[CacheEntry]
    ) -> list[CompileOutcome | str]:
        answers: list[CompileOutcome | str] = [NEVER for _ in self.sides]
        values = _NodeValues(node)
        sources = [side.source(node) for side in self.sides]
        for entry in entries:
            problems = self._problems(entry)
            for number, side in enumerate(self.sides):
                if not isinstance(answers[number], str) or entry.scope not in ("", side.scope):
                    continue
                problem = problems[number]
                if not problem and sources[number] != entry.source:
                    problem = values.problem(entry, self._node_reads(entry.paths), side.release.enc)
                if not problem:
                    answers[number] = entry.outcome
                    self._uses.append((node.name, entry, sources[number]))
                elif answers[number] == NEVER:
                    answers[number] = problem
            if not any(isinstance(answer, str) for answer in answers):
                break
        return answers

    def _problems(self, entry: CacheEntry) -> tuple[str, ...]:
        """Return for each release the first name that differs, or empty."""
        if entry.parts not in self._lists:
            shared = [*map(self._shared_problems, self.cache.parts(entry.parts))]
            self._lists[entry.parts] = _first(shared, len(self.sides))
        own = [tuple(part.problem(side.index) for side in self.sides) for part in entry.own]
        return _first([self._lists[entry.parts], *own], len(self.sides))

    def _shared_problems(self, name: bytes) -> tuple[str, ...]:
        if name not in self._parts:
            part = self.cache.part(name)
            self._parts[name] = tuple(part.problem(side.index) for side in self.sides)
        return self._parts[name]

    def _node_reads(self, name: bytes) -> NodeReads:
        if name not in self._paths:
            self._paths[name] = self.cache.paths(name)
        return self._paths[name]


def _first(problems: Sequence[tuple[str, ...]], count: int) -> tuple[str, ...]:
    """Return the first problem for each release."""
    return tuple(
        next((of_part[number] for of_part in problems if of_part[number]), "")
        for number in range(count)
    )


class _NodeValues:
    """What a node gives; its capture is parsed at first use."""

    def __init__(self, node: CapturedNode) -> None:
        self._node = node
        self._requests: dict[int, CompileRequest | str] = {}

    def problem(self, entry: CacheEntry, reads: NodeReads, enc: ReleaseEnc) -> str:
        """Return why an entry does not hold for the node's capture, or empty."""
        if id(enc) not in self._requests:
            try:
                self._requests[id(enc)] = request_of(self._node.load(), enc)
            except LocalpuppetError as error:
                self._requests[id(enc)] = str(error)
        request = self._requests[id(enc)]
        if isinstance(request, str):
            return request
        return "" if reads.values(request) == entry.values else _NODE
