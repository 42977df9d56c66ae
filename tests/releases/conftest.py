"""Real git repositories, made by the tests, and a node that knows them as sources."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Done, Node, make_node

IDENTITY = {
    "GIT_AUTHOR_NAME": "Release",
    "GIT_AUTHOR_EMAIL": "release@example.net",
    "GIT_COMMITTER_NAME": "Release",
    "GIT_COMMITTER_EMAIL": "release@example.net",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_DATE": "2026-11-20T12:00:00Z",
    "GIT_COMMITTER_DATE": "2026-11-20T12:00:00Z",
}


@dataclass
class Repo:
    """A repository with a work tree."""

    path: Path

    @property
    def url(self) -> str:
        return f"file://{self.path}"

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.path,
            env={**os.environ, **IDENTITY, "HOME": str(self.path.parent)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def commit(self, files: Mapping[str, str], tag: str | None = None) -> str:
        """Commit files, tag the commit if asked to; return the commit."""
        self.write(files)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", tag or "work")
        if tag:
            self.git("tag", "-a", "-m", tag, tag)
        return self.git("rev-parse", "HEAD")


@dataclass
class Forge:
    """Where the repositories are."""

    path: Path

    def repo(self, name: str) -> Repo:
        """Return the repository `name`, made if need be."""
        path = self.path / name
        if not path.exists():
            path.mkdir(parents=True)
            repo = Repo(path)
            repo.git("init", "-q", "-b", "main")
            return repo
        return Repo(path)


@pytest.fixture
def forge(tmp_path: Path) -> Forge:
    return Forge(tmp_path / "forge")


def klass(name: str, text: str) -> str:
    return f"class {name} {{ notify {{ '{text}': }} }}\n"


@pytest.fixture
def site(node: Node, forge: Forge) -> Node:
    """A node whose source `web` has release r1: a module, a single module, a collection."""
    forge.repo("dist").commit({"platform/manifests/init.pp": klass("platform", "dist r7")}, "r7")
    forge.repo("ntp").commit({"manifests/init.pp": klass("ntp", "ntp v1")}, "v1")
    node.settings(
        allow_file_urls=True,
        sources={
            "web": {"git": forge.repo("web").url},
            "dist": {"git": forge.repo("dist").url},
        },
    )
    release(node, forge, "r1")
    node.write("input.yaml", "app: web/tags/r1\nclasses: [web, ntp, platform]\n")
    return node


def manifest(forge: Forge, ntp: str = "v1", dist: str = "r7") -> str:
    return (
        f"modulepath: [dist/tags/{dist}]\n"
        f"modules:\n  ntp: {{git: '{forge.repo('ntp').url}', tag: {ntp}}}\n"
    )


def make(node: Node, *arguments: str) -> Done:
    """Run `release …` on the machine of those who make releases: another state directory."""
    maker = node.root / "maker"
    maker.mkdir(exist_ok=True)
    shutil.copy(node.root / "localpuppet.yaml", maker)
    return node.run("--root", str(maker), "release", *arguments)


def release(node: Node, forge: Forge, tag: str, **manifest_of: str) -> str:
    """Write, lock and tag a release of `web`; return its commit."""
    web = forge.repo("web")
    web.write(
        {
            "manifest.yaml": manifest(forge, **manifest_of),
            "web/manifests/init.pp": klass("web", f"web {tag}"),
        }
    )
    locked = make(node, "lock", str(web.path))
    assert locked.code == 0, locked.err
    return web.commit({}, tag)


def run(*command: str | Path, cwd: Path | None = None, **env: str) -> str:
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, "LC_ALL": "C", **env},
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def build(node: Node, form: str, into: Path, *more: str) -> Path:
    into.mkdir(exist_ok=True)
    done = node.run("release", "package", "--format", form, "-o", str(into), "--json", *more)
    assert done.code == 0, done.err
    return Path(done.json["package"])


@dataclass
class Scratch:
    """A machine's root, without a machine."""

    path: Path

    @property
    def packages(self) -> Path:
        return self.path / "usr/share/localpuppet/packages"

    def dpkg(self, *arguments: str | Path) -> str:
        return run("dpkg", f"--root={self.path}", "--force-not-root", *arguments)

    def rpm(self, *arguments: str | Path) -> str:
        return run("rpm", f"--root={self.path}", "--dbpath=/rpmdb", "--nosignature", *arguments)

    def install(self, package: Path) -> None:
        if package.suffix == ".deb":
            self.dpkg("--install", package)
        else:
            self.rpm("--upgrade", "--replacepkgs", package)

    def remove(self, name: str, form: str) -> None:
        if form == "deb":
            self.dpkg("--purge", name)
        else:
            self.rpm("--erase", name)

    def files(self) -> dict[str, os.stat_result]:
        top = self.path / "usr"
        return {
            str(path.relative_to(self.path)): path.lstat()
            for path in sorted(top.rglob("*"))
            if not path.is_dir() or path.is_symlink()
        }


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    path = tmp_path / "machine"
    admin = path / "var/lib/dpkg"
    for name in ("updates", "info", "triggers"):
        (admin / name).mkdir(parents=True)
    (admin / "status").touch()
    return Scratch(path)


@pytest.fixture
def bare(tmp_path: Path, puppet_probe: str, scratch: Scratch) -> Iterator[Node]:
    """A node that knows no source, and on which git does not work."""
    root = tmp_path / "bare"
    root.mkdir()
    made = make_node(root, puppet_probe)
    made.settings(allow_file_urls=True, packages=[str(scratch.packages)])
    made.write("input.yaml", "app: web/tags/r1\nclasses: [web, ntp, platform]\n")
    made.write("bin/git", f"#!/bin/sh\necho git >>{root}/git-was-called\nexit 97\n", 0o755)
    yield made
    assert not (root / "git-was-called").exists()


def without_git(node: Node) -> str:
    return f"{node.root / 'bin'}:{os.environ['PATH']}"


def licensed(site: Node, forge: Forge) -> None:
    """Make r1 a release with everything that is hard to pack."""
    web = forge.repo("web")
    web.write(
        {
            "LICENSE": "be nice\n",
            "web/files/with space & 100%{x}": "a\n",
            "web/files/run.sh": "#!/usr/bin/env ruby\n",
            "web/files/back\\slash": "b\n",
            f"web/files/{'long' * 40}/{'name' * 40}": "c\n",
            "web/NOTICE.txt": "noted\n",
        }
    )
    (web.path / "web/files/run.sh").chmod(0o755)
    (web.path / "web/files/link").symlink_to("./run.sh")
    (web.path / os.fsdecode(b"web/files/latin-\xe9")).write_text("d\n")
    web.commit({})
    web.git("tag", "-f", "-a", "-m", "r1", "r1")
