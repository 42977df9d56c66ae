"""Real git repositories that the tests make, and the releases in them."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.rigs.node import Done, Node, share_with

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


def klass(name: str, text: str) -> str:
    return f"class {name} {{ notify {{ '{text}': }} }}\n"


def manifest(forge: Forge, ntp: str = "v1", dist: str = "r7") -> str:
    return (
        f"modulepath: [dist/tags/{dist}]\n"
        f"modules:\n  ntp: {{git: '{forge.repo('ntp').url}', tag: {ntp}}}\n"
    )


def make(node: Node, *arguments: str, code: int | None = None, **env: str) -> Done:
    """Run `release …` on the machine that makes releases: another state directory."""
    maker = Node(node.root / "maker")
    maker.root.mkdir(exist_ok=True)
    shutil.copy(node.root / "localpuppet.yaml", maker.root)
    share_with(maker, node)
    return node.run("--root", str(maker.root), "release", *arguments, code=code, **env)


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


def more_settings(node: Node, **more: Any) -> None:
    """Set more in the node's settings."""
    settings = json.loads((node.root / "localpuppet.yaml").read_text())
    node.settings(**{**settings, **more})


def point_at(node: Node, tag: str) -> None:
    node.write("input.yaml", f"app: web/tags/{tag}\nclasses: [web, ntp, platform]\n")


def applied(node: Node, forge: Forge, *tags: str) -> None:
    """Apply releases one after the other; r1 exists already, the others are released first."""
    for tag in tags:
        if tag != "r1":
            release(node, forge, tag)
        point_at(node, tag)
        assert node.run("apply").code == 0


def licensed(site: Node, forge: Forge) -> None:
    """Make r1 a release with everything that is hard to pack."""
    web = forge.repo("web")
    web.write(
        {
            "LICENSE": "be nice\n",
            "web/files/with space & 100%{x}": "a\n",
            "web/files/%(exit 3)": "a macro\n",
            "web/files/%{lua:error('x')}": "a macro\n",
            "web/files/-rf": "an option\n",
            "web/LICENSE.$(exit 3)": "a licence\n",
            "DEBIAN/postinst": "#!/bin/sh\nexit 3\n",
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
