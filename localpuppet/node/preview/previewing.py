"""Compares the catalogs and files of nodes before and after a change, and says what it cannot see.

    look for stored results -> compile what is missing -> compare -> PreviewResult

- Each result is stored as it arrives, so a preview that was stopped resumes there.
- Two equal catalogs, by their digest, are not read. Of two others, only what differs is.
- A node that compiles after the change only is compared with an empty catalog.
- A stored catalog that is damaged is compiled again.
- A file that modules serve is in a catalog by its address only: `ServedFiles` compares contents.
- A changed fact, type or provider is in no catalog. `blind_changes` finds the nodes concerned:

    modules/x/lib/puppet/provider/thing/ruby.rb -> the nodes whose catalogs have a Thing
    modules/x/lib/facter/role.rb                -> all nodes
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, islice
from zlib import crc32

from localpuppet.base.formats.text import shortened
from localpuppet.base.formats.values import field_values, mapping_of
from localpuppet.base.machine.ports import Clock, Progress
from localpuppet.base.value import Value
from localpuppet.node.preview.cache import (
    CacheFiller,
    CacheSearch,
    CompileOutcome,
    NodeCompile,
    PreviewCache,
    PreviewSide,
)
from localpuppet.node.preview.cache_file import CatalogHead, DamagedEntryError
from localpuppet.node.preview.compile_request import CompileEngine
from localpuppet.node.preview.difference import (
    CHANGED,
    CatalogDifference,
    ForbiddenChange,
    ParameterChange,
    ResourceChange,
    ResourcePattern,
    difference,
    restarts,
)
from localpuppet.node.preview.node_capture import CapturedNode, NodeCapture
from localpuppet.node.preview.preview_limits import MAX_SHOWN_FILE, MAX_SHOWN_TEXTS, MAX_USES
from localpuppet.node.preview.release_index import BROKEN, DIRECTORY, ReleaseIndex
from localpuppet.node.preview.result import (
    BOTH,
    FIXED,
    NEW,
    SAME,
    UNREADABLE,
    BlindSpot,
    DifferenceGrouping,
    FailureKind,
    ImpureNode,
    NodeFailure,
    NodePlaceholders,
    PreviewResult,
    PreviewStatistics,
    ResealedGroup,
    RevisionWarning,
)
from localpuppet.node.puppet.catalog import DEFERRED, CanonicalCatalog
from localpuppet.node.puppet.command_line import file_name

# A name may have any character. The first directory `lib` is that of the module.
_FACT = re.compile(r"(?:.*?/)?(?:lib/facter/.+\.rb|facts\.d/[^/]+)", re.DOTALL)
_TYPE = re.compile(r"(?:.*?/)?lib/puppet/type/([a-z]\w*)(?:\.rb|/.+)", re.DOTALL)
_PROVIDER = re.compile(r"(?:.*?/)?lib/puppet/provider/([a-z]\w*)(?:\.rb|/.+)", re.DOTALL)
_MODULE = re.compile(r"((?:.*?/)?)lib/", re.DOTALL)
# All other Ruby may be loaded on a node. Functions are not: the catalogs that call them read them.
_HELPER = re.compile(r"((?:.*?/)?)lib/(?!puppet/(?:parser/)?functions/).+", re.DOTALL)
_RUBY = re.compile(r"(?:.*?/)?lib/(?!puppet/(?:parser/)?functions/)(.+)\.rb", re.DOTALL)
# What Ruby code names of other code: `type(:thing)`, `'puppet_x/thing/client'`.
_MENTION = re.compile(rb"""\btype\((:['"]?\w+)|['"]([\w./-]{1,1024})['"]""", re.ASCII)
# What a Deferred call can name, of a release: a node reads it while it applies its catalog.
_CALLED = re.compile(r"(?:.*?/)?(?:lib|functions|templates|files)/.+", re.DOTALL)

# Nodes that are compiled with both releases in memory, because the cache lost them.
_AT_A_TIME = 32
_BEFORE, _AFTER = 0, 1
_NO_CATALOG = CanonicalCatalog(certname="", environment="", classes=(), resources=(), edges=())
_ROLE = "role::"
_SEALED = "sealed/values/"
# What a sealed value has in clear: `node/sealed/sealed_files.py`.
_SEALED_HEAD = re.compile(
    rb'schema: 1\ngroup: "(?P<group>[^"\n]+)"\nserial: \d+\nnumber: (?P<number>\d+)\n'
)
_MAX_NAME = 40  # characters of a revision in the progress


class PreviewOptions(Value):
    """What a user asked for.

    Attributes:
        tolerates: Whether nodes that fail as before do not fail the preview.
        shard: The part of the nodes that was chosen, for the result: `2/8`.
    """

    ignore: Sequence[ResourcePattern] = ()
    forbidden: Sequence[ForbiddenChange] = ()
    tolerates: bool = False
    shard: str | None = None


def choose_shard(names: Iterable[str], number: int, count: int) -> set[str]:
    """Return the nodes of one part of several, each of which always has the same nodes."""
    return {name for name in names if crc32(name.encode()) % count == number - 1}


class Preview:
    """One comparison of the catalogs of nodes, before and after a change."""

    def __init__(
        self,
        sides: tuple[PreviewSide, PreviewSide],
        nodes: Sequence[CapturedNode],
        *,
        cache: PreviewCache,
        engine: CompileEngine,
        clock: Clock,
        progress: Progress,
        options: PreviewOptions = PreviewOptions(),
    ) -> None:
        self._sides, self._nodes, self._options = sides, nodes, options
        self._cache, self._engine, self._clock, self._progress = cache, engine, clock, progress
        self._begun = clock.monotonic()
        self._outcomes: dict[str, list[CompileOutcome | None]] = {
            node.name: [None, None] for node in nodes
        }
        self._types: dict[str, frozenset[str]] = {}
        self._impure: dict[str, set[str]] = {}
        self._lost: list[CapturedNode] = []
        self._compiled = self._cached = 0
        self._grouping = DifferenceGrouping(forbidden=options.forbidden)
        self._failures: list[NodeFailure] = []
        self._served = ServedFiles(*sides)
        self._blind = blind_changes(sides[_BEFORE].index, sides[_AFTER].index)

    def result(self) -> PreviewResult:
        """Compare the catalogs, and return the result."""
        self._find(self._nodes, (_BEFORE, _AFTER))
        new = self._lacking(_BEFORE)
        self._store(new, _BEFORE)
        # What was compiled just now may hold for the other release.
        names = {node.name for node in new}
        self._find([node for node in self._lacking(_AFTER) if node.name in names], (_AFTER,))
        self._store(self._lacking(_AFTER), _AFTER)
        for number, node in enumerate(self._nodes):
            self._progress.count(number, len(self._nodes), "nodes compared")
            self._compare(node)
        waiting = iter(self._lost)
        while some := [*islice(waiting, _AT_A_TIME)]:
            self._compare_again(some)
        base, head = self._sides
        return PreviewResult(
            base=base.revision,
            head=head.revision,
            nodes=len(self._nodes),
            groups=self._grouping.groups(),
            failures=tuple(sorted(self._failures, key=lambda item: (item.kind != NEW, item.node))),
            violations=self._grouping.violations(),
            blind_spots=tuple(blind_spots(self._blind, self._types)),
            resealed=resealed(base.index, head.index),
            impure=tuple(
                ImpureNode(node=node, reasons=tuple(sorted(reasons)))
                for node, reasons in sorted(self._impure.items())
            ),
            statistics=PreviewStatistics(
                compiled=self._compiled,
                cached=self._cached,
                seconds=self._clock.monotonic() - self._begun,
            ),
            warnings=tuple(
                RevisionWarning(revision=side.revision.name, text=text)
                for side, others in ((head, ()), (base, head.warnings))
                for text in side.warnings
                if text not in others
            ),
            tolerates=self._options.tolerates,
            shard=self._options.shard,
        )

    def _lacking(self, side: int) -> list[CapturedNode]:
        return [node for node in self._nodes if self._outcomes[node.name][side] is None]

    def _find(self, nodes: Sequence[CapturedNode], numbers: Sequence[int]) -> None:
        search = CacheSearch(self._cache, [self._sides[number] for number in numbers])
        for done, (node, answers) in enumerate(zip(nodes, search.find(nodes), strict=True)):
            self._progress.count(done, len(nodes), "nodes looked up")
            for number, answer in zip(numbers, answers, strict=True):
                if isinstance(answer, CompileOutcome):
                    self._outcomes[node.name][number] = answer
                    self._cached += 1

    def _store(self, nodes: Sequence[CapturedNode], side: int) -> None:
        for compiled, outcome in self._compile(nodes, side):
            self._outcomes[compiled.node][side] = outcome

    def _compile(
        self, nodes: Sequence[CapturedNode], side: int
    ) -> Iterator[tuple[NodeCompile, CompileOutcome]]:
        name = shortened(self._sides[side].revision.name, _MAX_NAME)
        done = count()

        def advance() -> None:
            self._progress.count(next(done), len(nodes), f"catalogs of {name} compiled")

        if nodes:
            advance()  # Puppet takes some seconds to start
            filler = CacheFiller(cache=self._cache, engine=self._engine, advance=advance)
            for compiled, outcome in filler.compile(self._sides[side], nodes):
                self._compiled += not outcome.is_unread
                if compiled.impure:
                    self._impure.setdefault(compiled.node, set()).update(compiled.impure)
                yield compiled, outcome

    def _compare(self, node: CapturedNode) -> None:
        before, after = self._outcomes[node.name]
        if before is None or after is None:
            raise ValueError(f"{node.name} was not compiled")
        if after.catalog is None:
            self._fail(node.name, before, after)
            return
        catalogs = self._cache.catalogs
        try:
            differs = CatalogDifference()
            if before.catalog is None:
                whole = catalogs.whole(after.catalog)
                differs = difference(_NO_CATALOG, whole, ignore=self._options.ignore)
            elif before.catalog != after.catalog:
                pair = catalogs.differing(before.catalog, after.catalog)
                differs = difference(*pair, ignore=self._options.ignore)
            if differs or self._served or self._blind:
                old = None if before.catalog is None else catalogs.head(before.catalog)
                self._add(node, differs, old, catalogs.head(after.catalog), after.catalog)
        except DamagedEntryError:
            self._cache.discard(node.name)
            self._lost.append(node)
            return
        if before.catalog is None:
            self._fail(node.name, before, after)

    def _compare_again(self, nodes: Sequence[CapturedNode]) -> None:
        """Compile nodes with both releases and compare what is in memory."""
        before, after = (
            {compiled.node: (compiled, outcome) for compiled, outcome in self._compile(nodes, side)}
            for side in (_BEFORE, _AFTER)
        )
        for node in nodes:
            (first, old), (second, new) = before[node.name], after[node.name]
            if first.catalog is None or second.catalog is None:
                self._fail(node.name, old, new)
            if second.catalog is None:
                continue
            base = _NO_CATALOG if first.catalog is None else first.catalog
            differs = difference(base, second.catalog, ignore=self._options.ignore)
            head = CatalogHead.of(first.catalog) if first.catalog is not None else None
            self._add(node, differs, head, CatalogHead.of(second.catalog), second.catalog)

    def _add(
        self,
        node: CapturedNode,
        differs: CatalogDifference,
        old: CatalogHead | None,
        new: CatalogHead,
        after: CanonicalCatalog | bytes,
    ) -> None:
        """Add a node that compiles after the change; only then, if `old` is `None`."""
        heads = new if old is None else old, new
        if self._blind:
            self._types[node.name] = frozenset(kind for head in heads for kind in head.types)
        if self._served:
            differs = differs.with_resources(self._served.changes(*heads))
        if differs:
            capture = node.load()
            self._grouping.add(
                node.name,
                differs,
                NodePlaceholders.of(node.name, capture.facts),
                role=_role(capture, new),
                restarts=lambda: restarts(
                    differs,
                    self._cache.catalogs.whole(after) if isinstance(after, bytes) else after,
                ),
                fixed=old is None,
            )

    def _fail(self, node: str, before: CompileOutcome, after: CompileOutcome) -> None:
        failure = after.failure or before.failure
        if failure is None:
            raise ValueError(f"{node} has neither a catalog nor a failure")
        if after.is_unread:
            kind: FailureKind = UNREADABLE
        elif before.failure is None or after.failure is None:
            kind = NEW if before.failure is None else FIXED
        else:
            kind = SAME if after.failure.is_like(before.failure) else BOTH
        self._failures.append(NodeFailure(node=node, kind=kind, **field_values(failure)))


def resealed(before: ReleaseIndex, after: ReleaseIndex) -> tuple[ResealedGroup, ...]:
    """Return the groups whose values have other bytes and the same numbers, sorted."""
    counts = Counter[str]()
    for name in before.states.keys() & after.states.keys():
        if name.startswith(_SEALED) and before.state(name) != after.state(name):
            if DIRECTORY in (before.state(name), after.state(name)):
                continue
            old, new = (_SEALED_HEAD.match(index.read(name)) for index in (before, after))
            if old and new and old["number"] == new["number"]:
                counts[new["group"].decode("ascii", "replace")] += 1
    return tuple(ResealedGroup(group=group, values=counts[group]) for group in sorted(counts))


def _role(capture: NodeCapture, head: CatalogHead) -> str | None:
    """Return the role of a node: as its parameters, facts or certificate have it, or its class."""
    extensions = mapping_of(capture.trusted.get("extensions"))
    for value in (
        capture.data.parameters.get("role"),
        capture.facts.get("role"),
        extensions.get("pp_role"),
    ):
        if isinstance(value, str) and value:
            return value
    roles = [name.removeprefix(_ROLE) for name in head.classes if name.startswith(_ROLE)]
    return roles[0] if len(roles) == 1 else None


class BlindChange(Value):
    """A changed file whose effect no catalog shows, for types in lower case, or for all nodes.

    `deferred` is the type of a Deferred call.
    """

    file: str
    reason: str
    types: frozenset[str] | None

    def concerns(self, types: Iterable[str]) -> bool:
        """Return whether it concerns a node whose catalog has resources of these types."""
        return self.types is None or any(name.lower() in self.types for name in types)


def blind_changes(before: ReleaseIndex, after: ReleaseIndex) -> list[BlindChange]:
    """Return the changed files whose effect no catalog shows, sorted."""
    code = _NodeCode((before, after))
    changes: list[BlindChange] = []
    for name in sorted(before.states.keys() | after.states.keys()):
        states = before.states.get(name), after.states.get(name)
        if states[0] == states[1] or DIRECTORY in states:
            continue
        changes += _blind(name, code)
    return changes


def blind_spots(
    changes: Iterable[BlindChange], types: Mapping[str, frozenset[str]]
) -> Iterator[BlindSpot]:
    """Yield the blind spots, each with all its files; none for a file that concerns no node.

    `types` has the types of each node's resources before and after the change.
    """
    concerned: dict[frozenset[str] | None, tuple[str, ...]] = {}
    files: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for change in changes:
        if change.types not in concerned:
            names = sorted(node for node, kinds in types.items() if change.concerns(kinds))
            concerned[change.types] = tuple(names)
        if nodes := concerned[change.types]:
            files.setdefault((change.reason, nodes), []).append(change.file)
    for (reason, nodes), names in files.items():
        yield BlindSpot(files=tuple(names), reason=reason, nodes=nodes)


def _blind(name: str, code: "_NodeCode") -> Iterator[BlindChange]:
    if _FACT.fullmatch(name):
        yield BlindChange(file=name, reason="a custom fact changed", types=None)
        return
    for pattern, what in ((_TYPE, "type"), (_PROVIDER, "provider")):
        if pattern.fullmatch(name):
            reason = f"a custom {what} changed"
            yield BlindChange(file=name, reason=reason, types=code.concerned(name))
            return
    if _HELPER.fullmatch(name) is not None:
        reason = "code that custom types, providers or facts use changed"
        yield BlindChange(file=name, reason=reason, types=code.concerned(name))
    if _CALLED.fullmatch(name):
        reason = "a Deferred function may use it on the node"
        yield BlindChange(file=name, reason=reason, types=frozenset((DEFERRED.lower(),)))


class _NodeCode:
    """The Ruby code of two releases that nodes load, and which file uses which."""

    def __init__(self, indexes: tuple[ReleaseIndex, ReleaseIndex]) -> None:
        self._indexes = indexes
        self._left = MAX_USES
        self._types: dict[str, set[str]] = {}  # by module
        self._facts: set[str] = set()
        for name in {name for index in indexes for name in index.states}:
            if (module := _MODULE.match(name)) is None:
                continue
            if _FACT.fullmatch(name):
                self._facts.add(module[1])
            elif kind := _TYPE.fullmatch(name) or _PROVIDER.fullmatch(name):
                self._types.setdefault(module[1], set()).add(kind[1])

    def concerned(self, name: str) -> frozenset[str] | None:
        """Return the types whose code a changed file may alter; `None` if it may alter all.

        A fact may alter all, and so may what has too many users. A helper may alter all that its
        module has. Other modules name what they use.
        """
        types, waiting, known = set[str](), [name], {name}
        while waiting:
            one = waiting.pop()
            mention = ""
            if kind := _TYPE.fullmatch(one) or _PROVIDER.fullmatch(one):
                types.add(kind[1])
                mention = f":{kind[1]}"
            elif helper := _HELPER.fullmatch(one):
                if helper[1] in self._facts:
                    return None
                types |= self._types.get(helper[1], set())
                mention = match[1] if (match := _RUBY.fullmatch(one)) else ""
            users = self._users.get(mention, set())
            self._left -= 1 + len(users)
            if self._left < 0:
                return None
            fresh = users - known
            known |= fresh
            waiting += fresh
        return frozenset(types)

    @cached_property
    def _users(self) -> dict[str, set[str]]:
        """What Ruby code names of other code, `:type` or `path/without/rb` → the files that do."""
        ruby = {
            (name, state): (index, match[1])
            for index in self._indexes
            for name, state in index.states.items()
            if state not in (DIRECTORY, BROKEN) and (match := _RUBY.fullmatch(name))
        }
        wanted = {path for _, path in ruby.values()}
        wanted |= {f":{kind}" for kinds in self._types.values() for kind in kinds}
        users: dict[str, set[str]] = {}
        for (name, _), (index, _) in ruby.items():
            for texts in {*_MENTION.findall(index.read(name))}:
                text = b"".join(texts).decode("ascii").replace(":'", ":").replace(':"', ":")
                text = text.rpartition("lib/")[2].lstrip("./").removesuffix(".rb")
                if text in wanted:
                    users.setdefault(text, set()).add(name)
        return users


@dataclass(slots=True, eq=False)
class ServedFiles:
    """The files of modules that differ between two releases.

    `left` is the bytes of all texts that are shown; further files are shown by their digest.
    """

    before: PreviewSide
    after: PreviewSide
    left: int = MAX_SHOWN_TEXTS
    _changes: dict[str, ParameterChange] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        first, second = (_served(side) for side in (self.before, self.after))
        for path in sorted(first.keys() | second.keys()):
            names = first.get(path), second.get(path)
            states = (
                names[0] and self.before.index.state(names[0]),
                names[1] and self.after.index.state(names[1]),
            )
            if states[0] != states[1] and DIRECTORY not in states:
                self._changes[path] = ParameterChange(
                    name=f"content of puppet:///modules/{path}",
                    before=self._shown(self.before, names[0]),
                    after=self._shown(self.after, names[1]),
                )

    def __bool__(self) -> bool:
        """Return whether any file differs."""
        return bool(self._changes)

    def _shown(self, side: PreviewSide, name: str | None) -> str | None:
        """Return the text of a file, or its digest; of a broken link, what it is."""
        if name is None:
            return None
        if side.index.state(name) == BROKEN:
            return "a link that leads nowhere"
        data = side.index.read(name) if self.left > 0 else b""
        with suppress(UnicodeDecodeError):
            if self.left > 0 and len(data) <= MAX_SHOWN_FILE:
                self.left -= len(data)
                return data.decode("utf-8")
        return f"{{sha256}}{side.index.state(name)}"

    def changes(self, before: CatalogHead, after: CatalogHead) -> list[ResourceChange]:
        """Return the resources of a node whose files differ, though their sources are the same."""
        changes = []
        for name in sorted(before.sources.keys() & after.sources.keys()):
            both = {*before.sources[name]} & {*after.sources[name]}
            parameters = tuple(
                change
                for path, change in self._changes.items()
                if any(path == source or path.startswith(f"{source}/") for source in both)
            )
            if parameters:
                kind, _, title = name.removesuffix("]").partition("[")
                changes.append(
                    ResourceChange(action=CHANGED, type=kind, title=title, parameters=parameters)
                )
        return changes


def _served(side: PreviewSide) -> dict[str, str]:
    """Return path below `modules` → name in the release, of all files that modules serve."""
    served: dict[str, str] = {}
    for directory in _files_directories(side):
        start = f"{directory}/"
        module = directory.split("/")[-2]
        for name in side.index.below(directory):
            served.setdefault(f"{module}/{name.removeprefix(start)}", name)
    return served


def _files_directories(side: PreviewSide) -> Sequence[str]:
    """Return the names of the directories `files` of modules, the first of each module only."""
    modules: dict[str, str] = {}
    for directory in side.release.whole_modulepath:
        for module in sorted(directory.iterdir()) if directory.is_dir() else ():
            name = file_name(f"{module}/files", side.release.directories)
            if module.name not in modules:
                modules[module.name] = name
    return [name for name in modules.values() if side.index.state(name) == DIRECTORY]
