"""Compiles the nodes for which no stored result holds, and stores each result as it arrives."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.preview.cache import CompileOutcome, NodeCompile, PreviewCache
from localpuppet.node.preview.capture import CapturedNode
from localpuppet.node.preview.finding import PreviewSide, request_of
from localpuppet.node.preview.ports import (
    CompileEngine,
    CompileFailure,
    CompileRequest,
    CompileResult,
)
from localpuppet.node.preview.read_set import ReadSet

# Results that are stored in one transaction. A killed preview loses at most these.
BATCH = 32
# Bytes of results after which a transaction ends earlier: they are in memory until then.
BATCH_BYTES = 64 * 1024**2


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

    def compile(
        self, side: PreviewSide, nodes: Sequence[CapturedNode]
    ) -> Iterator[tuple[NodeCompile, CompileOutcome]]:
        """Yield the compile of each node with what was stored of it, in any order.

        Raises:
            StateError: The disk is full, or the engine cannot work.
            PuppetMissingError: Puppet is not installed.
        """
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
