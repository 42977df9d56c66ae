"""Looks for the stored result of a node that holds for a release and a capture.

*The incremental rule*: a node is compiled again only if no stored result holds. A result holds if
everything in its read-set has the same digest. There is no other mechanism.

- A part of read-sets that nodes share is compared once for each release.
- A capture is parsed only if its bytes are new for a result that holds otherwise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from localpuppet.base.errors import LocalpuppetError
from localpuppet.node.enc.document import ReleaseEnc
from localpuppet.node.preview.cache import CacheEntry, CompileOutcome, EntryInput, PreviewCache
from localpuppet.node.preview.cache_file import DamagedEntryError
from localpuppet.node.preview.capture import NodeCapture
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
    """

    revision: PreviewRevision
    release: Release
    index: ReleaseIndex
    is_stable: bool = True

    @property
    def enc(self) -> ReleaseEnc:
        """Return its `enc.yaml`."""
        return self.release.enc

    @property
    def enc_digest(self) -> bytes:
        """Return the digest of its `enc.yaml`; empty without one."""
        return bytes.fromhex(self.index.state(ENC) or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedNode:
    """A node of a preview.

    Attributes:
        name: Its name.
        capture: The digest of its capture's bytes.
        load: Parses the capture.
    """

    name: str
    capture: bytes
    load: Callable[[], NodeCapture]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheHit:
    """A stored result that holds.

    Attributes:
        outcome: The result.
        types: The custom types and providers that the compile loaded.
    """

    outcome: CompileOutcome
    types: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMiss:
    """No stored result holds.

    Attributes:
        reason: What differs in the newest result: a name in the release, or a text.
    """

    reason: str


def request_of(capture: NodeCapture, enc: ReleaseEnc) -> CompileRequest:
    """Return the request to compile a node with a release.

    Raises:
        InvalidInputError: A layer or a `%{…}` is unknown.
    """
    document = capture.document(enc)
    values = capture.values_for_puppet()
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
    _problems: dict[bytes, tuple[str, ...]] = field(default_factory=dict, init=False)
    _lists: dict[bytes, tuple[str, ...]] = field(default_factory=dict, init=False)
    _paths: dict[bytes, tuple[NodeReads, tuple[str, ...]]] = field(default_factory=dict, init=False)

    def find(self, node: CapturedNode) -> list[CacheHit | CacheMiss]:
        """Return for each release a result that holds, or the reason why none does."""
        requests = _Requests(node, self.sides)
        answers: list[CacheHit | CacheMiss] = [CacheMiss(reason=NEVER) for _ in self.sides]
        open_ = [*range(len(self.sides))]
        for entry in self.cache.entries(node.name):
            try:
                problems = self._entry_problems(entry)
                reads, types = self._node_reads(entry.paths)
            except DamagedEntryError:
                self.cache.discard(node.name)
                return [CacheMiss(reason=DAMAGED) for _ in self.sides]
            for number in [*open_]:
                problem, own = problems[number], entry.input
                if not problem:
                    problem, own = requests.problem(number, entry, reads)
                if not problem:
                    answers[number] = CacheHit(outcome=entry.outcome, types=types)
                    open_.remove(number)
                elif answers[number] == CacheMiss(reason=NEVER):
                    answers[number] = CacheMiss(reason=problem)
                if not problem and own != entry.input:
                    self.cache.adopt(node.name, entry, own)
            if not open_:
                break
        return answers

    def _entry_problems(self, entry: CacheEntry) -> tuple[str, ...]:
        """Return for each release the first name that differs, or empty."""
        if entry.parts not in self._lists:
            self._lists[entry.parts] = self._first(
                [self._shared_problems(name) for name in self.cache.parts(entry.parts)]
            )
        own = [self._part_problems(name) for name in entry.own]
        return self._first([self._lists[entry.parts], *own])

    def _shared_problems(self, name: bytes) -> tuple[str, ...]:
        if name not in self._problems:
            self._problems[name] = self._part_problems(name)
        return self._problems[name]

    def _part_problems(self, name: bytes) -> tuple[str, ...]:
        part = self.cache.part(name)
        return tuple(part.problem(side.index) for side in self.sides)

    def _first(self, problems: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        """Return the first problem for each release."""
        return tuple(
            next((of_part[number] for of_part in problems if of_part[number]), "")
            for number in range(len(self.sides))
        )

    def _node_reads(self, name: bytes) -> tuple[NodeReads, tuple[str, ...]]:
        if name not in self._paths:
            self._paths[name] = self.cache.paths(name)
        return self._paths[name]


class _Requests:
    """The requests of one node, each made at first use."""

    def __init__(self, node: CapturedNode, sides: Sequence[PreviewSide]) -> None:
        self._node = node
        self._sides = sides
        self._capture: NodeCapture | None = None
        self._requests: dict[int, CompileRequest | str] = {}

    def problem(self, number: int, entry: CacheEntry, reads: NodeReads) -> tuple[str, EntryInput]:
        """Return why an entry does not hold for the node's capture, or empty, and its input."""
        enc = self._sides[number].enc_digest
        own = EntryInput(capture=self._node.capture, enc=enc, values=entry.input.values)
        if own == entry.input:
            return "", own
        request = self._request(number)
        if isinstance(request, str):
            return request, own
        values = bytes.fromhex(reads.values(request))
        return ("" if values == entry.input.values else _NODE), own

    def _request(self, number: int) -> CompileRequest | str:
        if number not in self._requests:
            try:
                if self._capture is None:
                    self._capture = self._node.load()
                self._requests[number] = request_of(self._capture, self._sides[number].enc)
            except LocalpuppetError as error:
                self._requests[number] = str(error)
        return self._requests[number]
