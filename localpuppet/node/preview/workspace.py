"""A preview on this machine: revisions as releases, the cache, the captures, and the comparison."""

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from localpuppet import __version__
from localpuppet.base.errors import InvalidInputError, LocalpuppetError, StateError
from localpuppet.base.formats.names import NodeName, ReleasePath
from localpuppet.base.formats.text import shown_names
from localpuppet.base.machine.files import add_durably, disk_errors, make_private
from localpuppet.base.machine.flock import Flock
from localpuppet.base.machine.own_program import shared_file
from localpuppet.base.machine.ports import Clock, Progress
from localpuppet.base.machine.processes import own_umask, unwound_by_signals
from localpuppet.base.value import Value
from localpuppet.node.preview.cache import PreviewCache
from localpuppet.node.preview.cache_file import refuse_foreign_cache
from localpuppet.node.preview.compile_request import LAYOUT, CompileEngine, layout_digest
from localpuppet.node.preview.node_capture import CapturedNode
from localpuppet.node.preview.nodes_directory import NodesDirectory
from localpuppet.node.preview.previewing import Preview, PreviewOptions, choose_shard
from localpuppet.node.preview.release_index import ReleaseIndex, index_roots, tree_states
from localpuppet.node.preview.result import PreviewResult, PreviewRevision
from localpuppet.node.preview.revisions import Checkouts, RevisionRange, RevisionTree
from localpuppet.node.preview.stored_results import PreviewSide
from localpuppet.node.puppet.installation import Installation, ruby_state
from localpuppet.node.releases.git.program import GitProgram
from localpuppet.node.releases.limits import Budget
from localpuppet.node.releases.manifest import Lock
from localpuppet.node.releases.release import Release
from localpuppet.node.releases.release_files import EMPTY, MANIFEST, ReleaseFiles
from localpuppet.node.releases.staged_records import StagedRelease

# Seconds to wait for another preview that fetches modules.
_PATIENCE = 300.0


class PreviewOrder(Value):
    """What a preview compares.

    Attributes:
        trusted: Whether the user trusts the code of the second revision, too.
        staged: Whether the revisions are releases that are staged on this machine; then there is no
            work tree.
        names: The nodes to compare; none for all with a capture.
    """

    work_tree: Path
    revisions: RevisionRange
    nodes: Path
    cache: Path | None = None
    shard: tuple[int, int] | None = None
    trusted: bool = False
    staged: bool = False
    names: tuple[NodeName, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PreviewWorkspace:
    """Where previews of one root work.

    Attributes:
        work_tree: Returns the code of a work tree: see `MutableCode.work_tree`.
        engine: Returns the engine that compiles, for the key with which it marks secrets.
        staged: Returns a release that is staged on this machine, and its record.
    """

    state: Path
    site_manifest: Path
    own_modules: Path
    files: ReleaseFiles
    git: GitProgram
    work_tree: Callable[..., Release]
    engine: Callable[[str], CompileEngine]
    staged: Callable[[ReleasePath], tuple[Release, StagedRelease]]
    lock_store: Callable[[], Flock]
    puppet: Callable[[], Installation]
    path: str
    clock: Clock
    observe: Callable[[str], Progress]

    def preview(self, order: PreviewOrder, options: PreviewOptions) -> PreviewResult:
        """Compare the catalogs of nodes; see `previewing.Preview`."""
        if order.shard is not None:
            options = replace(options, shard=f"{order.shard[0]}/{order.shard[1]}")
        self._refuse_mixture(order)
        progress = self.observe("preview")
        locked = self.lock_store() if order.staged else nullcontext()
        with unwound_by_signals(), own_umask(), locked, self.cache(order.cache) as cache:
            inside = None if order.staged else order.work_tree
            nodes = self.nodes(order.nodes, cache, order.shard, inside=inside, names=order.names)
            sides = self.staged_sides(order, cache) if order.staged else self.sides(order, cache)
            progress.begin()
            try:
                comparison = Preview(
                    sides,
                    nodes,
                    cache=cache,
                    engine=self.engine_for(order.cache),
                    clock=self.clock,
                    progress=progress,
                    options=options,
                )
                return comparison.result()
            finally:
                progress.close()

    def _refuse_mixture(self, order: PreviewOrder) -> None:
        """Reject a cache among the captures, whose files would be taken for nodes."""
        cache, nodes = self.cache_directory(order.cache).resolve(), order.nodes.resolve()
        if cache.is_relative_to(nodes):
            raise InvalidInputError(
                f"is in the directory of the captures, {order.nodes}",
                where=f"--cache: {self.cache_directory(order.cache)}",
                hint="pass another directory with '--cache'",
            )

    def engine_for(self, directory: Path | None) -> CompileEngine:
        """Return the engine for a cache."""
        return self.engine(self._mark_key(directory))

    def cache_directory(self, directory: Path | None) -> Path:
        """Return the directory of the cache."""
        return directory or self.state / "preview"

    @contextmanager
    def cache(self, directory: Path | None) -> Iterator[PreviewCache]:
        """Yield the cache."""
        key = hashlib.sha256(self._mark_key(directory).encode()).hexdigest()
        platform = f"{self._platform} {key}"
        cache = PreviewCache(self.cache_directory(directory), platform=platform)
        try:
            yield cache
        finally:
            cache.close()

    def _mark_key(self, directory: Path | None) -> str:
        """Return the key with which catalogs of a cache mark secrets, hexadecimal."""
        cache = self.cache_directory(directory)
        make_private(cache)
        if not os.access(cache, os.W_OK | os.X_OK):
            raise StateError(
                "the cache is not writable",
                where=str(cache),
                hint="change its mode, copy it, or pass another directory with '--cache'",
            )
        file = cache / "mark.key"
        refuse_foreign_cache(file)
        with disk_errors(file):
            add_durably(file, secrets.token_hex(32).encode())
            return file.read_text("ascii", "replace")

    @cached_property
    def _platform(self) -> str:
        """The versions of the programs that a catalog depends on."""
        installation = self.puppet()
        own = hashlib.sha256()
        for directory in (self.own_modules, shared_file("preview").parent):
            own.update(repr(sorted(tree_states(directory).items())).encode())
        ruby = installation.interpreter(self.path)
        with disk_errors(Path(installation.command)):
            own.update((ruby_state(ruby) if ruby else "").encode())
        words = (__version__, installation.version, installation.command, own.hexdigest())
        return " ".join(words)

    def sides(self, order: PreviewOrder, cache: PreviewCache) -> tuple[PreviewSide, PreviewSide]:
        """Return the releases of both revisions, with their modules on this machine."""
        checkouts = Checkouts(
            work_tree=order.work_tree,
            directory=self.cache_directory(order.cache),
            git=self.git,
            states=cache,
            budget=Budget,
            own=(self.cache_directory(order.cache), self.state),
        )
        base, head = checkouts.trees(order.revisions)
        trusted = order.trusted or head.key == base.key
        scope = "" if trusted else head.key
        # A commit is read as a release; only the files as they are may be those of this machine.
        own = order.trusted and head.revision.commit is None
        first = self.side(base, cache)  # with what its lock names on this machine
        lock = None if trusted else self.files.lock(base.directory) or EMPTY
        return first, self.side(head, cache, scope=scope, work_trees=own, base=lock)

    def _turn(self) -> Flock:
        """Return the lock with which previews of one root fetch modules one after the other."""
        return Flock.need(
            self.state / "preview.lock",
            "another preview fetches modules",
            hint="try again when it has ended, or pass another '--root'",
            seconds=_PATIENCE,
        )

    def side(
        self,
        tree: RevisionTree,
        cache: PreviewCache,
        *,
        scope: str = "",
        work_trees: bool = False,
        base: Lock | None = None,
    ) -> PreviewSide:
        """Return the release of a revision, with its modules on this machine.

        With `work_trees` its lock may name work trees of modules on this machine. An untrusted
        revision has the lock of its `base`.
        """
        name = tree.revision.name
        if not (tree.directory / MANIFEST).exists():
            raise InvalidInputError(
                f"this revision has no {MANIFEST}",
                where=name,
                hint="make it from the Puppetfile: 'localpuppet release import'; then commit it",
            )
        with _errors_in(tree):
            with self._turn():
                warnings: list[str] = []
                release = self.work_tree(
                    tree.directory, name, work_trees=work_trees, warn=warnings.append, base=base
                )
            side = self._side(tree.revision, release, tree.key, cache, scope)
            return replace(side, warnings=tuple(warnings))

    def staged_sides(
        self, order: PreviewOrder, cache: PreviewCache
    ) -> tuple[PreviewSide, PreviewSide]:
        """Return two staged releases; nothing is fetched."""
        names = order.revisions.base, order.revisions.head
        first, second = (self.staged(ReleasePath.parse(name, where="release")) for name in names)
        scopes = "", "" if order.trusted or first[1] == second[1] else second[1].composition
        before, after = (
            self._side(
                PreviewRevision(name=name, commit=record.pin.commit),
                release,
                record.pin.tree_sha256,
                cache,
                scope,
            )
            for name, scope, (release, record) in zip(names, scopes, (first, second), strict=True)
        )
        return before, after

    def _side(
        self, revision: PreviewRevision, release: Release, own: str, cache: PreviewCache, scope: str
    ) -> PreviewSide:
        """Return a release with its index; see `index_roots` for `own`."""
        roots = index_roots(release, self.site_manifest, own=own)
        index = ReleaseIndex.of(roots, cache)
        index.states[LAYOUT] = layout_digest(
            release, own_modules=self.own_modules, site_manifest=self.site_manifest
        )
        return PreviewSide(
            revision=revision,
            release=release,
            index=index,
            is_stable=all(root.digest for root in roots if root.prefix in release.trees),
            scope=scope,
        )

    def nodes(
        self,
        directory: Path,
        cache: PreviewCache,
        shard: tuple[int, int] | None = None,
        *,
        inside: Path | None = None,
        names: Sequence[NodeName] = (),
    ) -> list[CapturedNode]:
        """Return the nodes in a directory, or a part of them."""
        nodes = NodesDirectory(directory, inside=inside).nodes(cache)
        if missing := {*names} - {node.name for node in nodes}:
            raise InvalidInputError(
                f"has no capture of {shown_names(sorted(missing))}",
                where=str(directory),
                hint=f"run 'localpuppet capture --node {min(missing)} {directory}'",
            )
        nodes = [node for node in nodes if node.name in names] if names else nodes
        if shard is None:
            return nodes
        chosen = choose_shard((node.name for node in nodes), *shard)
        return [node for node in nodes if node.name in chosen]


@contextmanager
def _errors_in(tree: "RevisionTree") -> Iterator[None]:
    """Raise errors of the block with names of the revision's files, not with those of the copy."""
    try:
        yield
    except LocalpuppetError as error:
        copy = str(tree.directory)
        what, where, hint = (
            text.replace(f"{copy}/", "").replace(copy, ".")
            for text in (error.what, error.where, error.hint)
        )
        where = "" if where == "." else where
        raise type(error)(what, where=where, hint=hint).at(tree.revision.name) from error
