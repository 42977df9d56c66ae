"""The provider stages, parses and resolves a release once, and only if necessary."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError, PuppetMissingError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.puppet.installation import Installation
from localpuppet.node.releases.packages.package_staging import PackageStaging
from localpuppet.node.releases.release import Release
from localpuppet.node.releases.staging import Approve
from localpuppet.node.runs.interface_reader import InterfaceReader, Parser
from localpuppet.node.runs.observer import NoteObserver
from localpuppet.node.runs.preparing import ReleaseProvider
from tests.doubles.ports import FakeChild, FakeProcesses, Started
from tests.rigs.staged import R1, ReleaseSite, url

VERSION = "7.23.0"


def answer(*, broken: bool = False) -> bytes:
    """Return the answer of Puppet's parser about a release."""
    place = {"directory": 0, "file": "web/manifests/init.pp", "line": 1}
    problems = [{"place": place, "message": "Syntax error"}] if broken else []
    parsed = {"schema": 4, "puppet": VERSION, "implementation": "puppet", "modules": {}}
    return json.dumps({**parsed, "classes": {}, "needs": [], "problems": problems}).encode() + b"\n"


class Provided:
    """A provider with real staging and with a program of the test as Puppet's parser.

    Attributes:
        resolved: Every release that was resolved.
        lent: The purpose of each use of the repository, and "released" after it.
        parsed: The calls of the parser.
    """

    def __init__(self, root: Path) -> None:
        self.site = ReleaseSite(root)
        self.site.release(R1)
        self.processes = FakeProcesses()
        self.processes.programs["/usr/bin/ruby"] = self._parser
        self.resolved: list[ReleasePath] = []
        self.lent: list[str] = []
        self.missing = False
        self.tools: Any = None

    @property
    def parsed(self) -> list[Started]:
        return self.processes.started

    def _parser(self, _started: Started) -> FakeChild:
        return FakeChild([answer()])

    def _installed(self) -> Installation:
        if self.missing:
            raise PuppetMissingError("Puppet is not installed")
        return Installation(command="/usr/bin/puppet", version=VERSION, settings={}, lean=())

    def reader(self) -> InterfaceReader:
        return InterfaceReader(
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
            observe=NoteObserver,
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
            self.lent.append("released")

    def _tools(self) -> Any:
        assert self.tools is not None, "no package is installed"
        return self.tools

    def provider(self) -> ReleaseProvider:
        return ReleaseProvider(
            offered=lambda path: path.source in self.site.sources,
            resolve=self._resolve,
            staging=self._staging,
            tools=self._tools,
            reader=self.reader,
            mutable=None,
        )


@pytest.fixture
def node(tmp_path: Path) -> Provided:
    return Provided(tmp_path)


def test_a_release_is_staged_parsed_and_resolved_once(node: Provided) -> None:
    release = node.provider().provide(R1)
    assert (release.name, release.names[0]) == (R1, node.site.modules / R1)
    assert node.lent == [f"staging {R1}", "released"]
    assert node.site.repository.asked.count((url("web"), "r1")) == 1
    assert (len(node.parsed), node.resolved) == (1, [R1])
    assert node.reader().kept(release) is not None

    node.site.repository.asked.clear()
    assert node.provider().provide(R1) == release
    assert (node.site.repository.asked, len(node.parsed)) == ([], 1)


@pytest.mark.parametrize(
    ("output", "error", "problem"),
    [
        (answer(broken=True), InvalidInputError, r"web/manifests/init.pp:1: Puppet cannot parse"),
        (b"rubbish\n", PuppetMissingError, "parser does not work"),
    ],
)
def test_a_release_that_is_not_parsed_gets_no_name(
    node: Provided, output: bytes, error: type[Exception], problem: str
) -> None:
    node.processes.programs["/usr/bin/ruby"] = lambda _started: FakeChild([output])
    with pytest.raises(error, match=problem):
        node.provider().provide(R1)
    assert not (node.site.modules / R1).is_symlink()
    assert (node.resolved, node.lent[-1]) == ([], "released")


def test_a_release_that_was_staged_without_puppet_is_parsed_later(node: Provided) -> None:
    node.missing = True
    release = node.provider().provide(R1)
    assert (node.parsed, node.reader().kept(release)) == ([], None)
    node.missing = False
    node.provider().provide(R1)
    node.provider().provide(R1)
    assert len(node.parsed) == 1
    assert node.reader().kept(release) is not None


@pytest.mark.parametrize("name", ["web/trunk", "local/tags/r1", "plain"])
def test_a_release_without_a_source_is_resolved_in_its_directory(node: Provided, name: str) -> None:
    path = ReleasePath(name)
    (node.site.modules / path).mkdir(parents=True)
    (node.site.modules / path / "manifest.yaml").write_text("modulepath: []\n")
    assert node.provider().provide(path).name == path
    assert (node.lent, node.parsed, node.resolved) == ([], [], [path])


def test_a_missing_release_without_a_source_is_refused(node: Provided) -> None:
    with pytest.raises(InvalidInputError, match="local/tags/r1: does not exist"):
        node.provider().provide(ReleasePath("local/tags/r1"))
    assert node.lent == []


def test_a_package_is_installed_before_its_release_is_staged_from_it(node: Provided) -> None:
    """Also if the source is configured: localpuppet does not ask git for a given package."""
    installed: list[Path] = []

    class Tools:
        def install(self, package: Path) -> None:
            installed.append(package)
            assert node.lent == [], "installed before staging"

    node.tools = Tools()
    with pytest.raises(InvalidInputError, match="no package or pack of it is in"):
        node.provider().provide(R1, package=Path("web.deb"))
    assert installed == [Path("web.deb")]
    assert (node.site.repository.asked, node.lent[-1]) == ([], "released")
