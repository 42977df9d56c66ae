"""Builds a preview: its revisions as releases, the cache, the nodes."""

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, StateError
from localpuppet.base.machine.files import add_durably, disk_errors, make_private
from localpuppet.base.machine.flock import Flock
from localpuppet.base.machine.processes import own_umask, unwound_by_signals
from localpuppet.base.share.files import shared_file
from localpuppet.base.value import Value
from localpuppet.node.preview.cache_file import refuse_foreign_cache
from localpuppet.node.preview.capture import CapturedNode
from localpuppet.node.preview.finding import PreviewSide
from localpuppet.node.preview.previewing import PreviewOptions, PreviewPorts, choose_shard, preview
from localpuppet.node.preview.revisions import Checkouts, RevisionRange
from localpuppet.node.releases.release_files import EMPTY, MANIFEST
from localpuppet.node.wiring.compiling import compilation, puppet_caller
from localpuppet.node.wiring.node import NodeInputs, NodeWiring, program_environment
from localpuppet.node.wiring.releases import OWN_MODULES, ReleaseWiring
from localpuppet.node.wiring.state import puppet_environment, require_puppet

if TYPE_CHECKING:
    from localpuppet.node.candidates.candidate import NodeCatalogs
    from localpuppet.node.preview.cache import PreviewCache
    from localpuppet.node.preview.engine import PuppetCompileEngine
    from localpuppet.node.preview.ports import CompileEngine
    from localpuppet.node.preview.result import PreviewResult
    from localpuppet.node.preview.revisions import RevisionTree
    from localpuppet.node.releases.manifest import Lock


# Variables of the job that the compiler gets: no others, because a job's have secrets.
KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ")
# Seconds to wait for another preview that fetches modules.
_PATIENCE = 300.0


def compile_engine(
    node: NodeWiring,
    *,
    trusted: bool = False,
    processes: int | None = None,
    mark_key: str = "",
    asks: bool = False,
    hidden: Sequence[Path] = (),
) -> "PuppetCompileEngine":
    """Return the engine.

    Args:
        node: The parts of the node.
        trusted: Whether the code is trusted: then it is not isolated.
        processes: Catalogs that are compiled at a time; `None` for one a processor.
        mark_key: The key of the marks of secrets, hexadecimal; empty for no marks.
        asks: Whether query functions ask the agent of this node, which requires trusted code.
        hidden: Directories that isolated code does not see: the work tree, the cache.
    """
    from localpuppet.base.machine.isolation import CodeIsolation
    from localpuppet.node.preview.engine import LIMITS, PuppetCompileEngine

    path = program_environment()["PATH"]
    processes = processes or len(os.sched_getaffinity(0))
    return PuppetCompileEngine(
        scratch=node.settings.state / "compiles",
        store=tuple(node.settings.state / name for name in ("objects", "links")),
        compilation=partial(compilation, node),
        command=partial(_command, node),
        version=lambda: require_puppet(node).version,
        ruby=lambda: map(Path, require_puppet(node).places),
        env=partial(_environment, node, asks=asks),
        own_modules=OWN_MODULES,
        site_manifest=node.settings.site_manifest,
        isolation=CodeIsolation(
            path=path,
            memory=LIMITS["memory"] * (processes + 1),  # the process from which they are forked
            programs=LIMITS["programs"] * (processes + 1),
            otherwise="pass '--trusted' for code that you trust",
            hidden=(node.settings.root, node.settings.state, *hidden),
            trusted=trusted,
        ),
        processes=processes,
        mark_key=mark_key,
        asks=asks,
    )


def _command(node: NodeWiring) -> list[str]:
    """Return a command that loads the file in RUBYOPT with Puppet's library."""
    installation = require_puppet(node)
    ruby = None if installation.ruby else installation.interpreter(program_environment()["PATH"])
    return [str(ruby), "-e", ""] if ruby else [installation.command, "--version"]


def _environment(node: NodeWiring, *, asks: bool) -> dict[str, str]:
    base = {name: value for name, value in program_environment().items() if asks or name in KEPT}
    env = puppet_environment(node, require_puppet(node), {**base, "HOME": "/nonexistent"})
    main = shared_file("preview/main.rb")
    return {**env, "RUBYOPT": f"{env.get('RUBYOPT', '')} -r{main}".lstrip()}


class PreviewOrder(Value):
    """What a preview compares.

    Attributes:
        work_tree: The top of the git work tree.
        revisions: The revisions.
        nodes: The directory of captures.
        cache: The directory of the cache; `None` for the one in the state directory.
        shard: Number and count of a part of the nodes; `None` for all.
        trusted: Whether the user trusts the code of the second revision, too.
    """

    work_tree: Path
    revisions: RevisionRange
    nodes: Path
    cache: Path | None = None
    shard: tuple[int, int] | None = None
    trusted: bool = False


class PreviewWiring:
    """The parts of a preview.

    Args:
        node: The parts of the node; its settings apply, too.
        engine: Returns the engine that compiles, for the key with which it marks secrets.
    """

    def __init__(
        self, node: NodeWiring, engine: "Callable[[NodeWiring, str], CompileEngine]"
    ) -> None:
        self._node = node.for_makers()
        self._engine = engine
        self._releases = ReleaseWiring(self._node)

    def preview(self, order: PreviewOrder, options: PreviewOptions) -> "PreviewResult":
        """Compare the catalogs of nodes; see `previewing.preview`.

        Raises:
            LocalpuppetError: A revision, a node's file or the cache cannot be used.
        """
        if order.shard is not None:
            options = replace(options, shard=f"{order.shard[0]}/{order.shard[1]}")
        self._refuse_mixture(order)
        progress = self._node.observe("preview")
        with unwound_by_signals(), own_umask(), self.cache(order.cache) as cache:
            nodes = self.nodes(order.nodes, cache, order.shard, inside=order.work_tree)
            sides = self.sides(order, cache)
            progress.begin()
            try:
                ports = PreviewPorts(
                    cache=cache,
                    engine=self.engine(order.cache),
                    clock=self._node.clock,
                    progress=progress,
                )
                return preview(sides, nodes, ports, options)
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

    def engine(self, directory: Path | None) -> "CompileEngine":
        """Return the engine for a cache."""
        return self._engine(self._node, self._mark_key(directory))

    def cache_directory(self, directory: Path | None) -> Path:
        """Return the directory of the cache."""
        return directory or self._node.settings.state / "preview"

    @contextmanager
    def cache(self, directory: Path | None) -> "Iterator[PreviewCache]":
        """Yield the cache.

        Raises:
            InvalidInputError: Another user can write to it.
            PuppetMissingError: Puppet is not installed.
        """
        from localpuppet.node.preview.cache import PreviewCache

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
        from localpuppet import __version__
        from localpuppet.base.share.files import shared_file
        from localpuppet.node.preview.release_index import tree_states
        from localpuppet.node.puppet.installation import ruby_state

        installation = require_puppet(self._node)
        own = hashlib.sha256()
        for directory in (OWN_MODULES, shared_file("preview").parent):
            own.update(repr(sorted(tree_states(directory).items())).encode())
        ruby = installation.interpreter(program_environment()["PATH"])
        with disk_errors(Path(installation.command)):
            own.update((ruby_state(ruby) if ruby else "").encode())
        words = (__version__, installation.version, installation.command, own.hexdigest())
        return " ".join(words)

    def sides(self, order: PreviewOrder, cache: "PreviewCache") -> tuple[PreviewSide, PreviewSide]:
        """Return the releases of both revisions, with their modules on this machine.

        Raises:
            LocalpuppetError: A revision is no release, or a module cannot be fetched.
        """
        from localpuppet.node.releases.limits import Budget

        checkouts = Checkouts(
            work_tree=order.work_tree,
            directory=self.cache_directory(order.cache),
            git=self._releases.sources.local_git(),
            states=cache,
            budget=Budget,
            own=(self.cache_directory(order.cache), self._node.settings.state),
        )
        base, head = checkouts.trees(order.revisions)
        trusted = order.trusted or head.key == base.key
        scope = "" if trusted else head.key
        # A commit is read as a release; only the files as they are may be those of this machine.
        own = order.trusted and head.revision.commit is None
        first = self.side(base, cache)  # with what its lock names on this machine
        lock = None if trusted else self._releases.sources.files.lock(base.directory) or EMPTY
        return first, self.side(head, cache, scope=scope, work_trees=own, base=lock)

    def _turn(self) -> Flock:
        """Return the lock with which previews of one root fetch modules one after the other."""
        return Flock.need(
            self._node.settings.state / "preview.lock",
            "another preview fetches modules",
            hint="try again when it has ended, or pass another '--root'",
            seconds=_PATIENCE,
        )

    def side(
        self,
        tree: "RevisionTree",
        cache: "PreviewCache",
        *,
        scope: str = "",
        work_trees: bool = False,
        base: "Lock | None" = None,
    ) -> PreviewSide:
        """Return the release of a revision, with its modules on this machine.

        Args:
            tree: The files of the revision.
            cache: The cache.
            scope: See `PreviewSide`.
            work_trees: Whether its lock may name work trees of modules on this machine.
            base: The lock of the base, if the revision is not trusted.

        Raises:
            LocalpuppetError: The revision is no release, or a module cannot be fetched.
        """
        from localpuppet.node.preview.ports import LAYOUT, layout_digest
        from localpuppet.node.preview.release_index import ReleaseIndex, index_roots

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
                release = self._releases.mutable.work_tree(
                    tree.directory,
                    name,
                    work_trees=work_trees,
                    warn=warnings.append,
                    base=base,
                )
            roots = index_roots(release, self._node.settings.site_manifest, own=tree.key)
            index = ReleaseIndex.of(roots, cache)
            site = self._node.settings.site_manifest
            digest = layout_digest(release, own_modules=OWN_MODULES, site_manifest=site)
            index.states[LAYOUT] = digest
            return PreviewSide(
                revision=tree.revision,
                release=release,
                index=index,
                warnings=tuple(warnings),
                is_stable=all(root.digest for root in roots if root.prefix in release.trees),
                scope=scope,
            )

    def nodes(
        self,
        directory: Path,
        cache: "PreviewCache",
        shard: tuple[int, int] | None = None,
        *,
        inside: Path | None = None,
    ) -> list[CapturedNode]:
        """Return the nodes in a directory, or a part of them.

        Raises:
            InvalidInputError: The directory is missing, empty, or a link out of `inside`.
        """
        from localpuppet.node.preview.nodes_directory import NodesDirectory

        nodes = NodesDirectory(directory, inside=inside).nodes(cache)
        if shard is None:
            return nodes
        chosen = choose_shard((node.name for node in nodes), *shard)
        return [node for node in nodes if node.name in chosen]


def node_catalogs(node: NodeWiring, inputs: NodeInputs, *, asks: bool = False) -> "NodeCatalogs":
    """Return what compiles catalogs with this node's facts, and applies nothing.

    Args:
        node: The parts of the node.
        inputs: Has the instance data, whose service is asked once for all catalogs.
        asks: Whether query functions ask the agent, as in a run.
    """
    from localpuppet.node.candidates.candidate import NodeCatalogs

    engine = compile_engine(node, trusted=True, asks=asks, mark_key=secrets.token_hex(32))
    return NodeCatalogs(puppet=puppet_caller(node, inputs), engine=engine)


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
