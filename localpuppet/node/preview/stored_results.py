"""Looks for the stored result of a node that holds for a release and a capture.

*The incremental rule*: a node is compiled again only if no stored result holds. A result holds if
everything in its read-set has the same digest. There is no other mechanism.

- A part of read-sets that nodes share is compared once for each release.
- A capture is parsed only if its bytes are new for a result that holds otherwise.
- Untrusted code can lie about what it read: its results hold for its own revision at most.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, errors_at
from localpuppet.base.value import Value
from localpuppet.node.enc.document import ReleaseEnc, classify
from localpuppet.node.preview.cache import CacheEntry, CompileOutcome, NodeCompile, PreviewCache
from localpuppet.node.preview.cache_file import DamagedEntryError, digest
from localpuppet.node.preview.compile_request import (
    CompileEngine,
    CompileFailure,
    CompileRequest,
    CompileResult,
)
from localpuppet.node.preview.node_capture import CapturedNode, NodeCapture
from localpuppet.node.preview.read_set import NodeReads, ReadSet
from localpuppet.node.preview.release_index import ReleaseIndex
from localpuppet.node.preview.result import PreviewRevision
from localpuppet.node.releases.release import ENC, Release

# Why no stored result holds, if none is stored.
NEVER = "was not compiled before"
DAMAGED = "the cache is damaged"
_NODE = "facts, parameters or classes of the node"
# Results that are stored in one transaction. A killed preview loses at most these.
BATCH = 32
# Bytes of results after which a transaction ends earlier: they are in memory until then.
BATCH_BYTES = 64 * 1024**2


class PreviewSide(Value):
    """A release that a preview compiles.

    Attributes:
        is_stable: Whether its files stay the same; results of another are not stored.
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
    """Return the request to compile a node with a release."""
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
    """Looks for results of nodes that hold for releases."""

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


@dataclass(slots=True, eq=False, kw_only=True)
class CacheFiller:
    """Compiles nodes; `advance` is called after each result."""

    cache: PreviewCache
    engine: CompileEngine
    advance: Callable[[], None] = lambda: None
    _requests: dict[str, CompileRequest] = field(default_factory=dict, init=False)

    def compile(
        self, side: PreviewSide, nodes: Sequence[CapturedNode]
    ) -> Iterator[tuple[NodeCompile, CompileOutcome]]:
        """Yield the compile of each node with what was stored of it, in any order."""
        sources = {node.name: side.source(node) for node in nodes}
        invalid: list[tuple[NodeCompile, CompileOutcome]] = []
        batch: list[NodeCompile] = []
        size = 0
        for result in self.engine.compile(side.release, self._ask(side, nodes, invalid)):
            request = self._requests.pop(result.node)
            batch.append(_compiled(side, sources[result.node], request, result))
            size += result.size
            self.advance()
            if len(batch) >= BATCH or size >= BATCH_BYTES:
                yield from zip(batch, self.cache.store(batch), strict=True)
                batch.clear()
                size = 0
        yield from zip(batch, self.cache.store(batch), strict=True)
        for compiled in invalid:
            self.advance()
            yield compiled

    def _ask(
        self,
        side: PreviewSide,
        nodes: Sequence[CapturedNode],
        invalid: list[tuple[NodeCompile, CompileOutcome]],
    ) -> Iterator[CompileRequest]:
        """Yield the requests; a node without a valid capture or document is not compiled."""
        for node in nodes:
            capture = None
            try:
                capture = node.load()
                request = request_of(capture, side.release.enc)
            except InvalidInputError as error:
                failure = CompileFailure(message=str(error))
                compiled = NodeCompile(
                    node=node.name, source=b"", reads=None, catalog=None, failure=failure
                )
                outcome = CompileOutcome(catalog=None, failure=failure, is_unread=capture is None)
                invalid.append((compiled, outcome))
                continue
            self._requests[node.name] = request
            yield request


def _compiled(
    side: PreviewSide, source: bytes, request: CompileRequest, result: CompileResult
) -> NodeCompile:
    """Return what to store of a result."""
    impure = result.reads.impure
    reads = None
    if side.is_stable and not impure:
        made = ReadSet.of(result.reads, request, side.index)
        reads, impure = (None, (made,)) if isinstance(made, str) else (made, ())
    return NodeCompile(
        node=result.node,
        source=source,
        reads=reads,
        catalog=result.catalog,
        failure=result.failure,
        impure=impure,
        scope=side.scope,
    )
