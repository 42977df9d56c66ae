"""Small releases and nodes for tests of previews."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from localpuppet.base.formats.documents import Documents
from localpuppet.node.enc.input import read_enc
from localpuppet.node.preview.cache import PreviewCache
from localpuppet.node.preview.node_capture import CapturedNode
from localpuppet.node.preview.nodes_directory import NodesDirectory
from localpuppet.node.preview.previewing import Preview, PreviewOptions
from localpuppet.node.preview.release_index import ReleaseIndex, TreeStates, index_roots
from localpuppet.node.preview.result import PreviewResult, PreviewRevision
from localpuppet.node.preview.stored_results import PreviewSide
from localpuppet.node.releases.release import Release
from localpuppet.node.runs.observer import NoteObserver
from tests.doubles.compile_engine import FakeCompileEngine, Program
from tests.doubles.ports import FakeClock


def write_release(directory: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def release_in(directory: Path) -> Release:
    return Release(
        name=directory.name,
        directory=directory,
        modulepath=tuple(path for path in [directory / "modules"] if path.is_dir()),
        names=(),
        enc=read_enc(directory / "enc.yaml", Documents(None)),
        hiera_config=None,
        mutable=(),
        trees={"": directory},
    )


def side(
    directory: Path, cache: PreviewCache, *, is_stable: bool = True, scope: str = ""
) -> PreviewSide:
    release = release_in(directory)
    roots = index_roots(release, directory / "no-site-manifest")
    return PreviewSide(
        revision=PreviewRevision(name=directory.name),
        release=release,
        index=ReleaseIndex.of(roots, cache),
        is_stable=is_stable,
        scope=scope,
    )


def captured(directory: Path) -> list[CapturedNode]:
    return NodesDirectory(directory).nodes(TreeStates())


@dataclass(eq=False)
class PreviewRig:
    """Previews with one cache and a program."""

    directory: Path
    program: Program
    engine: FakeCompileEngine = field(init=False)
    nodes: Path = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = self.directory / "nodes"
        self.engine = FakeCompileEngine(self.program)

    def cache(self, *, limit: int = 1 << 30) -> PreviewCache:
        return PreviewCache(self.directory / "cache", platform="test", limit=limit)

    def preview(
        self,
        base: Path,
        head: Path,
        *,
        options: PreviewOptions | None = None,
        cache: PreviewCache | None = None,
        scope: str = "",
    ) -> PreviewResult:
        own = cache or self.cache()
        self.engine.compiled.clear()
        try:
            return Preview(
                (side(base, own), side(head, own, scope=scope)),
                captured(self.nodes),
                cache=own,
                engine=self.engine,
                clock=FakeClock(),
                progress=NoteObserver(""),
                options=options or PreviewOptions(),
            ).result()
        finally:
            if cache is None:
                own.close()

    def shown(self) -> dict[str, object]:
        """Return what a preview of `base` and `head` shows, whatever the cache has."""
        result = self.preview(self.directory / "base", self.directory / "head").to_dict()
        result.pop("statistics")
        return result
