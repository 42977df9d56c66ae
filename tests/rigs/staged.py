"""A site whose releases come from a repository in memory, and are staged into real files."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.enc.input import read_enc
from localpuppet.node.releases.fetch import Supply
from localpuppet.node.releases.git.git_modules import Pin
from localpuppet.node.releases.git.git_names import GitUrl, Tag, TagObject
from localpuppet.node.releases.manifest import Lock, ReleaseFiles, to_text
from localpuppet.node.releases.modules import ModuleAccess
from localpuppet.node.releases.release import Release, resolve
from localpuppet.node.releases.source import ReleaseSource
from localpuppet.node.releases.staging import Approve, ReleaseStaging
from localpuppet.node.releases.store import Store, TreeEntry, digest
from tests.doubles.ports import FakeClock
from tests.doubles.repository import FakeRepository, FakeServers

R1, R2 = ReleasePath("web/tags/r1"), ReleasePath("web/tags/r2")
DIST = ReleasePath("dist/tags/r7")


def url(name: str) -> GitUrl:
    return GitUrl.parse(f"https://git.example.net/{name}.git", where=name)


def tree_of(files: Mapping[str, bytes]) -> str:
    """Return the digest of a tree of ordinary files."""
    return digest(
        TreeEntry(path=name.encode(), kind="F", sha256=hashlib.sha256(data).hexdigest())
        for name, data in files.items()
    )


def pin(name: str, tag: str, tag_object: TagObject, files: Mapping[str, bytes]) -> Pin:
    return Pin(
        url=url(name),
        tag=Tag(tag),
        tag_object=tag_object.id,
        commit=tag_object.commit,
        tree_sha256=tree_of(files),
    )


class ReleaseSite:
    """Servers with releases, and one node.

    `web` has what `release` makes of it; its releases need the module `ntp` and the collection
    `dist/tags/r7`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "var"
        self.modules = root / "modules"
        self.servers = FakeServers()
        self.repository = FakeRepository(self.servers)
        self.store = Store(self.state)
        self.clock = FakeClock()
        self.release_files = ReleaseFiles(
            documents=Documents(None), allow_file=False, read_enc=read_enc
        )
        self.sources = {name: self.source(name) for name in ("web", "dist")}
        self.ntp = {"manifests/init.pp": b"class ntp {}\n"}
        self.dist = {"platform/manifests/init.pp": b"class platform {}\n"}
        self.servers.publish(url("ntp"), "v1", self.ntp)
        self.servers.publish(url("dist"), "r7", self.dist)

    def source(self, name: str, signers: Path | None = None) -> ReleaseSource:
        return ReleaseSource(name=name, url=url(name), signers=signers)

    def lock(self) -> Lock:
        """Return the lock of a release that needs what is published now."""
        published = self.servers.published
        return Lock(
            modules={"ntp": pin("ntp", "v1", published[url("ntp"), "v1"].found, self.ntp)},
            sources={DIST: pin("dist", "r7", published[url("dist"), "r7"].found, self.dist)},
        )

    def files(self, text: str, *, lock: Lock | None = None) -> dict[str, bytes]:
        """Return the files of a release whose own class contains `text`."""
        manifest = (
            f'modulepath:\n  - "{DIST}"\nmodules:\n  ntp:\n    git: "{url("ntp")}"\n    tag: "v1"\n'
        )
        return {
            "manifest.yaml": manifest.encode(),
            "manifest.lock": to_text(lock or self.lock()).encode(),
            "web/manifests/init.pp": f"class web {{ notify {{ '{text}': }} }}\n".encode(),
        }

    def release(self, app: ReleasePath, text: str = "", *, lock: Lock | None = None) -> TagObject:
        """Publish a release of `web`; move its tag if it exists."""
        tag = app.rpartition("/")[2]
        return self.servers.publish(url("web"), tag, self.files(text or tag, lock=lock))

    def resolve(self, app: ReleasePath) -> Release:
        """Return a release that is staged on the node."""
        return resolve(
            app,
            modules=self.modules,
            store=self.state,
            files=self.release_files,
            sources=self.sources,
            immutable_only=False,
        )

    def supply(self) -> Supply:
        access = ModuleAccess(state=self.state, settings={}, patience=1, timeout=1)
        return Supply(
            store=self.store, sources=self.sources, files=self.release_files, access=access
        )

    def staging(self, approve: Approve | None = None) -> ReleaseStaging:
        return ReleaseStaging(
            modules=self.modules,
            supply=self.supply(),
            repository=self.repository,
            approve=approve,
            clock=self.clock,
        )

    def says(self, app: ReleasePath) -> str:
        """Return the text of a release's class; empty if the node does not have the release."""
        file = self.modules / app / "web/manifests/init.pp"
        return file.read_text().split("'")[1] if file.exists() else ""

    def names(self) -> list[str]:
        """Return every name below modules/ that is a link."""
        links = (path for path in self.modules.rglob("*") if path.is_symlink())
        return sorted(str(path.relative_to(self.modules)) for path in links)

    def on_disk(self) -> dict[str, str]:
        """Return every file and link of the node, with its bytes or its target."""
        return {
            str(path.relative_to(self.root)): str(path.readlink())
            if path.is_symlink()
            else path.read_bytes().hex()
            for path in sorted(self.root.rglob("*"))
            if path.is_symlink() or path.is_file()
        }
