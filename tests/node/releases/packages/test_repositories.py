"""A node whose package manager installs the package of a release: real apt with a repository."""

import hashlib
import shutil
from pathlib import Path

import pytest

from localpuppet.base.errors import StateError
from localpuppet.node.releases.packages.tools import APT_AGAIN, APT_TRIES, SystemPackageTools
from tests.rigs.forge import more_settings
from tests.rigs.node import Node
from tests.rigs.packages import Scratch, build, run, without_git


class Repository:
    """A flat repository of Debian packages, and an apt that uses only this repository."""

    def __init__(self, node: Node, scratch: Scratch) -> None:
        self.node = node
        self.directory = node.root / "repository"
        self.directory.mkdir()
        self.asked = node.root / "asked"
        here = node.root / "apt"
        for name in ("lists/partial", "cache/archives/partial"):
            (here / name).mkdir(parents=True)
        sources = here / "sources.list"
        sources.write_text(f"deb [trusted=yes] file:{self.directory} ./\n")
        options = [
            f"Dir::State::lists={here}/lists",
            f"Dir::State::status={scratch.path}/var/lib/dpkg/status",
            f"Dir::State::extended_states={here}/extended",
            f"Dir::Cache={here}/cache",
            f"Dir::Etc::SourceList={sources}",
            "Dir::Etc::SourceParts=/dev/null",
            "Debug::NoLocking=1",
            "APT::Sandbox::User=root",
            f"DPkg::Options::=--root={scratch.path}",
            "DPkg::Options::=--force-not-root",
        ]
        words = " ".join(f"-o {option}" for option in options)
        script = f'#!/bin/sh\necho "$@" >> {self.asked}\nexec /usr/bin/apt-get {words} "$@"\n'
        node.write("bin/apt-get", script, 0o755)
        self.offer()

    def offer(self, *packages: Path) -> None:
        index = ""
        for package in packages:
            data = Path(shutil.copy(package, self.directory)).read_bytes()
            index += run("dpkg-deb", "--field", package)
            index += f"Filename: ./{package.name}\nSize: {len(data)}\n"
            index += f"SHA256: {hashlib.sha256(data).hexdigest()}\n\n"
        (self.directory / "Packages").write_text(index)


@pytest.fixture
def repository(bare: Node, scratch: Scratch) -> Repository:
    more_settings(bare, install_packages="apt")
    return Repository(bare, scratch)


def test_apt_installs_the_package_of_the_release_once(
    site: Node, bare: Node, scratch: Scratch, repository: Repository
) -> None:
    path = without_git(bare)
    missing = bare.run("stage", "--no-parse", PATH=path)
    assert missing.code != 0
    assert "apt-get: failed:" in missing.err
    assert "localpuppet-release-web-r1" in missing.err
    assert not scratch.packages.exists()

    repository.offer(build(site, "deb", site.root / "out"))
    done = bare.run("apply", "--noop", PATH=path, code=0)
    assert "web r1" in done.out
    assert len([*scratch.packages.iterdir()]) == 1
    asked = repository.asked.read_text()
    bare.run("stage", "--no-parse", PATH=path, code=0)
    assert repository.asked.read_text() == asked, "an installed package is not requested again"


def test_a_command_gets_the_package_name_last(site: Node, bare: Node, scratch: Scratch) -> None:
    package = build(site, "deb", site.root / "out")
    install = f"dpkg --root={scratch.path} --force-not-root --install {package.parent}/$1_1_all.deb"
    script = bare.write("bin/get", f"#!/bin/sh\ntest $# = 1 && {install}\n", 0o755)
    more_settings(bare, install_packages=[str(script)])
    bare.run("stage", "--no-parse", PATH=without_git(bare), code=0)


@pytest.mark.parametrize("name", ["localpuppet-release-web-r.", "localpuppet-release-web-r1+"])
def test_apt_does_not_treat_an_unknown_name_as_a_pattern(
    name: str, site: Node, bare: Node, scratch: Scratch, repository: Repository
) -> None:
    """As a regular expression, `…-v1.2` also matches `…-v1.20` and `…-v1.2.1`."""
    repository.offer(build(site, "deb", site.root / "out"))
    tools = SystemPackageTools(env={"PATH": without_git(bare)}, timeout=60)
    with pytest.raises(StateError, match="Unable to locate package"):
        tools.install_by_name(name, "apt")
    assert not scratch.packages.exists()


def test_localpuppet_waits_while_apt_updates_its_lists(node: Node) -> None:
    busy = "echo 'E: Could not get lock /var/lib/apt/lists/lock.' >&2; exit 100"
    script = f'case "$*" in *update) test -e {node.root}/free || {{ {busy}; }};; esac'
    node.write("bin/apt-get", f"#!/bin/sh\n{script}\n", 0o755)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            (node.root / "free").touch()

    tools = SystemPackageTools(env={"PATH": str(node.root / "bin")}, timeout=60, sleep=sleep)
    tools.install_by_name("localpuppet-release-web-r1", "apt")
    assert slept == [APT_AGAIN] * 3

    (node.root / "free").unlink()
    with pytest.raises(StateError, match="Could not get lock"):
        tools.install_by_name("localpuppet-release-web-r1", "apt")
    assert len(slept) == 3 + APT_TRIES - 1
