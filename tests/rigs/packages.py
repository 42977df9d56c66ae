"""Packages of releases: how they are built, and a machine's root to install them into."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.rigs.node import Node


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


def without_git(node: Node) -> str:
    return f"{node.root / 'bin'}:{os.environ['PATH']}"
