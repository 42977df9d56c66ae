"""Compiles the nodes for which no stored result holds, and stores each result as it arrives."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.preview.cache import CompileOutcome, EntryInput, PreviewCache, StoredResult
from localpuppet.node.preview.finding import CapturedNode, PreviewSide, request_of
from localpuppet.node.preview.ports import (
    CompileEngine,
    CompileFailure,
    CompileRequest,
    CompileResult,
)
from localpuppet.node.preview.read_set import ReadSet

# Results that are stored in one transaction. A killed preview loses at most these.
BATCH = 32

# The custom types that a compile loaded, and why it is impure.
NodeReadings = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCompile:
    """The compile of one node with one release.

    Attributes:
        node: The node.
        outcome: Its result.
        types: The custom types and providers that it loaded.
        impure: Why it is always repeated; empty for most.
        result: What was stored, with the catalog itself.
    """

    node: str
    outcome: CompileOutcome
    types: tuple[str, ...]
    impure: tuple[str, ...]
    result: StoredResult


@dataclass(slots=True, eq=False, kw_only=True)
class CacheFiller:
    """Compiles nodes.

    Attributes:
        cache: Takes the results.
        engine: Compiles.
        advance: Called after each result.
    """

    cache: PreviewCache
    engine: CompileEngine
    advance: Callable[[], None] = lambda: None
    _requests: dict[str, CompileRequest] = field(default_factory=dict, init=False)

    def compile(self, side: PreviewSide, nodes: Sequence[CapturedNode]) -> Iterator[NodeCompile]:
        """Yield the compile of each node, in any order.

        Raises:
            StateError: The disk is full, or the engine cannot work.
            PuppetMissingError: Puppet is not installed.
        """
        invalid: list[StoredResult] = []
        captures = {node.name: node.capture for node in nodes}
        batch: list[tuple[StoredResult, NodeReadings]] = []
        for compiled in self.engine.compile(side.release, self._ask(side, nodes, invalid)):
            request = self._requests.pop(compiled.node)
            batch.append(_stored(side, captures[compiled.node], request, compiled))
            self.advance()
            if len(batch) >= BATCH:
                yield from self._store(batch)
                batch.clear()
        yield from self._store(batch)
        for result in invalid:
            outcome = CompileOutcome(catalog=None, failure=result.failure)
            self.advance()
            yield NodeCompile(node=result.node, outcome=outcome, types=(), impure=(), result=result)

    def _ask(
        self, side: PreviewSide, nodes: Sequence[CapturedNode], invalid: list[StoredResult]
    ) -> Iterator[CompileRequest]:
        """Yield the requests; a node without a valid document fails without a compile."""
        for node in nodes:
            try:
                request = request_of(node.load(), side.enc)
            except InvalidInputError as error:
                failure = CompileFailure(message=str(error))
                own = EntryInput(capture=node.capture, enc=b"", values=b"")
                invalid.append(
                    StoredResult(
                        node=node.name, input=own, reads=None, catalog=None, failure=failure
                    )
                )
                continue
            self._requests[node.name] = request
            yield request

    def _store(self, batch: Sequence[tuple[StoredResult, NodeReadings]]) -> Iterator[NodeCompile]:
        outcomes = self.cache.store([result for result, _ in batch])
        for (result, (types, impure)), outcome in zip(batch, outcomes, strict=True):
            yield NodeCompile(
                node=result.node, outcome=outcome, types=types, impure=impure, result=result
            )


def _stored(
    side: PreviewSide, capture: bytes, request: CompileRequest, compiled: CompileResult
) -> tuple[StoredResult, NodeReadings]:
    """Return what to store of a compile, its types, and why it is impure."""
    impure = compiled.reads.impure
    reads: ReadSet | None = None
    if side.is_stable and not impure:
        made = ReadSet.of(compiled.reads, request, side.index)
        if isinstance(made, str):
            impure = (made,)
        else:
            reads = made
    result = StoredResult(
        node=compiled.node,
        input=EntryInput(
            capture=capture,
            enc=side.enc_digest,
            values=b"" if reads is None else bytes.fromhex(reads.values),
        ),
        reads=reads,
        catalog=compiled.catalog,
        failure=compiled.failure,
    )
    return result, (compiled.reads.types, impure)
