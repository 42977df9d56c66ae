"""Providing a release: staged once, read once, resolved once, and only when it has to be."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError, PuppetMissingError, UnavailableError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.puppet.installation import Installation
from localpuppet.node.releases.interfaces import Interfaces, Parser
from localpuppet.node.releases.packages.staging import PackageStaging
from localpuppet.node.releases.provider import ReleaseProvider
from localpuppet.node.releases.reading import InterfaceReader
from localpuppet.node.releases.release import Release
from localpuppet.node.releases.staging import Approve
from localpuppet.node.runs.observer import SilentObserver
from tests.doubles.ports import FakeChild, FakeProcesses, Started
from tests.rigs.staged import R1, R2, ReleaseSite, url

VERSION = "7.23.0"


def answer(*, broken: bool = False) -> bytes:
    """Return what Puppet's parser says of a release."""
    error = {"directory": 0, "file": "web/manifests/init.pp", "line": 1, "message": "Syntax error"}
    said = {
        "schema": 3,
        "puppet": VERSION,
        "modules": {},
        "errors": [error] if broken else [],
        "classes": {},
        "needs": [],
    }
    return json.dumps(said).encode() + b"\n"


class Provided:
    """A provider over real staging, with Puppet's parser played by a program of the test.

    Attributes:
        resolved: Every release that was resolved.
        lent: For what the repository was lent, and whether it was given back.
        parsed: How the parser was called.
    """

    def __init__(self, root: Path) -> None:
        self.site = ReleaseSite(root)
        self.site.release(R1)
        self.processes = FakeProcesses()
        self.processes.programs["/usr/bin/ruby"] = self._parser
        self.resolved: list[ReleasePath] = []
        self.lent: list[str] = []
        self.missing = False
        self.broken = False
        self.tools: Any = None
        self.interfaces = Interfaces(self.site.state)

    @property
    def parsed(self) -> list[Started]:
        return self.processes.started

    def _parser(self, _started: Started) -> FakeChild:
        return FakeChild([answer(broken=self.broken)])

    def _installed(self) -> Installation:
        if self.missing:
            raise PuppetMissingError("Puppet is not installed")
        return Installation(command="/usr/bin/puppet", version=VERSION, settings={}, lean=())

    def _reader(self) -> InterfaceReader:
        return InterfaceReader(
            self.interfaces,
            store=self.site.store,
            installed=self._installed,
            parser=lambda installation: Parser(
                ruby=Path("/usr/bin/ruby"),
                script=Path("interface.rb"),
                own_modules=Path("modules"),
                env={},
                version=installation.version,
                processes=self.processes,
            ),
            elsewhere=lambda: (self.site.root / "default.pp", []),
            observe=SilentObserver,
        )

    def _resolve(self, path: ReleasePath) -> Release:
        self.resolved.append(path)
        return self.site.resolve(path)

    @contextmanager
    def _staging(self, title: str, approve: Approve) -> Iterator[PackageStaging]:
        self.lent.append(title)
        try:
            yield PackageStaging(
                staging=self.site.staging(approve), supply=self.site.supply(), directories=[]
            )
        finally:
            self.lent.append("given back")

    def _tools(self) -> Any:
        assert self.tools is not None, "no package is installed"
        return self.tools

    def provider(self) -> ReleaseProvider:
        return ReleaseProvider(
            offered=lambda path: path.source in self.site.sources,
            resolve=self._resolve,
            staging=self._staging,
            tools=self._tools,
            reader=self._reader,
            mutable=None,
        )


@pytest.fixture
def node(tmp_path: Path) -> Provided:
    return Provided(tmp_path)


def test_a_release_is_staged_once_read_once_and_resolved_once(node: Provided) -> None:
    release = node.provider().provide(R1)
    assert (release.name, release.names[0]) == (R1, node.site.modules / R1)
    assert node.lent == [f"staging {R1}", "given back"]
    assert node.site.repository.asked.count((url("web"), "r1")) == 1
    assert (len(node.parsed), node.resolved) == (1, [R1])
    assert node.interfaces.kept(release) is not None


def test_a_release_that_is_here_is_neither_fetched_nor_read_again(node: Provided) -> None:
    first = node.provider().provide(R1)
    node.site.repository.asked.clear()
    assert node.provider().provide(R1) == first
    assert node.site.repository.asked == []
    assert (len(node.parsed), node.resolved) == (1, [R1, R1])


def test_a_release_is_read_before_it_has_its_name(node: Provided) -> None:
    named: list[bool] = []

    def parser(_started: Started) -> FakeChild:
        named.append((node.site.modules / R1).is_symlink())
        return FakeChild([answer()])

    node.processes.programs["/usr/bin/ruby"] = parser
    node.provider().provide(R1)
    assert named == [False]


def test_a_release_that_puppet_cannot_parse_gets_no_name(node: Provided) -> None:
    node.broken = True
    with pytest.raises(InvalidInputError, match=r"web/manifests/init.pp:1: Puppet cannot parse"):
        node.provider().provide(R1)
    assert not (node.site.modules / R1).is_symlink()
    assert (node.resolved, node.lent[-1]) == ([], "given back")


def test_a_release_that_came_before_puppet_did_is_read_when_puppet_is_here(
    node: Provided,
) -> None:
    node.missing = True
    release = node.provider().provide(R1)
    assert (node.parsed, node.interfaces.kept(release)) == ([], None)
    node.missing = False
    node.provider().provide(R1)
    node.provider().provide(R1)
    assert len(node.parsed) == 1
    assert node.interfaces.kept(release) is not None


def test_a_parser_that_does_not_work_gives_no_name(node: Provided) -> None:
    node.processes.programs["/usr/bin/ruby"] = lambda _started: FakeChild([b"rubbish\n"])
    with pytest.raises(PuppetMissingError, match="parser does not work"):
        node.provider().provide(R1)
    assert not (node.site.modules / R1).is_symlink()


@pytest.mark.parametrize("name", ["web/trunk", "local/tags/r1", "plain"])
def test_what_cannot_be_staged_is_resolved_where_it_lies(node: Provided, name: str) -> None:
    path = ReleasePath(name)
    (node.site.modules / path).mkdir(parents=True)
    (node.site.modules / path / "manifest.yaml").write_text("modulepath: []\n")
    assert node.provider().provide(path).name == path
    assert (node.lent, node.parsed, node.resolved) == ([], [], [path])


def test_a_release_that_is_nowhere_is_refused_where_it_would_lie(node: Provided) -> None:
    with pytest.raises(InvalidInputError, match="local/tags/r1 does not exist"):
        node.provider().provide(ReleasePath("local/tags/r1"))
    assert node.lent == []


def test_a_repository_is_given_back_when_staging_fails(node: Provided) -> None:
    node.site.servers.away.add(url("web"))
    with pytest.raises(UnavailableError):
        node.provider().provide(R2)
    assert (node.lent, node.resolved) == ([f"staging {R2}", "given back"], [])


def test_a_package_is_installed_first_and_the_release_comes_from_it(node: Provided) -> None:
    """Also where its source is declared: nobody asks git for what somebody brought by hand."""
    installed: list[Path] = []

    class Tools:
        def install(self, package: Path) -> None:
            installed.append(package)
            assert node.lent == [], "before staging looks for what it brings"

    node.tools = Tools()
    with pytest.raises(InvalidInputError, match=f"no package or pack of {R1} exists"):
        node.provider().provide(R1, package=Path("web.deb"))
    assert installed == [Path("web.deb")]
    assert (node.site.repository.asked, node.lent[-1]) == ([], "given back")
