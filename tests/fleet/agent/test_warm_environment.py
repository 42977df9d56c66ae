"""Runs of an immutable release, whose code an environment server has read in advance."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.machine.ports import NOBODY
from tests.rigs.node import make_node
from tests.rigs.warm.memory import remembers
from tests.rigs.warm.node import WarmNode

# Enough for each change that a run makes to the servers of the next.
RUNS = 8
# What no server may remember of a run: where the run has each from.
CANARIES = {
    "custom fact": "canary-" + "fact-qTz81",
    "external fact": "canary-" + "external-Lw02c",
    "parameter of the node": "canary-" + "parameter-Xp77v",
    "class parameter": "canary-" + "class-Rm4kd",
    "data": "canary-" + "data-Uo58n",
}
FACT = "Facter.add(:planted) { setcode { %w[canary- fact-qTz81].join } }\n"
EXTERNAL = '#!/bin/sh\necho outside=canary-""external-Lw02c\n'
# Ruby code that a module has, loaded once in a run: each load leaves a line.
LOADED = "File.write('@ROOT@/loaded', \"{}\\n\", mode: 'a')\n"
CODE = """
class app(String $word, Optional[App::Port] $port = 80) {
  $secret = lookup('secret')
  warning("${facts['planted']} ${facts['outside']} ${word} ${::site} ${secret} ${port}")
  warning(app::text($word))
  warning(epp('app/text.epp', { 'word' => $word }))
  warning(app::count($word))
  app_probe { 'here': }
  user { 'root': ensure => present }
}
"""
FILES = {
    "types/port.pp": "type App::Port = Integer[1, 65535]\n",
    "functions/text.pp": 'function app::text(String $word) { "text ${word}" }\n',
    "templates/text.epp": "<%- | String $word | -%>\nepp <%= $word %>",
    "lib/facter/planted.rb": FACT,
    "lib/puppet/functions/app/count.rb": (
        "Puppet::Functions.create_function(:'app::count') do\n"
        "  dispatch(:count) { param 'String', :word }\n"
        "  def count(word) = word.length\nend\n"
    ),
    "lib/puppet/type/app_probe.rb": (
        LOADED.format("type") + "Puppet::Type.newtype(:app_probe) do\n"
        "  ensurable\n  newparam(:name)\nend\n"
    ),
    "lib/puppet/provider/app_probe/file.rb": (
        LOADED.format("provider")
        + "Puppet::Type.type(:app_probe).provide(:file) do\n  def exists? = true\nend\n"
    ),
}


class ReleaseNode:
    def __init__(self, root: Path, probe: str, *, warm: bool) -> None:
        self.node = make_node(root, probe)
        self.names = self.node.state / "agent" / "fork_server.names"
        self.release = "modules/app/tags/r1"
        self.module(CODE, **FILES)
        self.node.write(f"{self.release}/manifest.yaml", "modulepath: []\n")
        self.node.write(f"{self.release}/data/common.yaml", f"secret: {CANARIES['data']}\n")
        self.node.write(
            f"{self.release}/hiera.yaml",
            "version: 5\nhierarchy: [{name: all, path: common.yaml}]\n"
            "defaults: {datadir: data, data_hash: yaml_data}\n",
        )
        self.node.write("puppet/var/facts.d/outside.sh", EXTERNAL, 0o755)
        self.apply("app/tags/r1")
        self.warm = WarmNode(self.node, warm=warm)

    def module(self, code: str, **files: str) -> None:
        """Write files of the module `app`; one that has its text is not changed."""
        for name, text in {"manifests/init.pp": code, **files}.items():
            text = text.replace("@ROOT@", str(self.node.root))
            path = self.node.root / self.release / "app" / name
            if not path.exists() or path.read_text() != text:
                self.node.write(f"{self.release}/app/{name}", text)

    def reset(self) -> None:
        """Undo what a test did to the node, whether it passed or not."""
        module = self.node.root / self.release / "app"
        known = {module / name for name in ("manifests/init.pp", *FILES)}
        for path in module.rglob("*"):
            if path.is_file() and path not in known:
                path.unlink()
        for name in ("go", "change", "puppet/conf/puppet.conf"):
            (self.node.root / name).unlink(missing_ok=True)
        self.module(CODE, **FILES)
        self.apply("app/tags/r1")

    def apply(self, release: str) -> None:
        document = {
            "app": release,
            "classes": {"app": {"word": CANARIES["class parameter"]}},
            "parameters": {"site": CANARIES["parameter of the node"]},
        }
        self.node.write("input.yaml", json.dumps(document))

    def children(self) -> list[int]:
        pid = self.warm.server.process().pid
        if not pid:
            return []
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def ready(self) -> int:
        """Wait until an environment server has read its code; return its process."""

        def reading() -> int:
            return next((pid for pid in self.children() if _has_read(pid)), 0)

        pid: int = self.node.wait_until(reading)
        return pid

    def run(self) -> tuple[dict[str, Any], str]:
        """Do a run; return its status, and what Puppet printed without the times."""
        status = self.warm.run()
        text = self.warm.text(status["id"]).replace(str(self.node.root), "@ROOT@")
        return status, "\n".join(line for line in text.splitlines() if "seconds" not in line)

    def begin(self) -> int:
        """Do runs until one leaves its environment server as it is; return that server.

        The first runs of other code leave more names, and Ruby to compile. Both replace the server
        after its run, when this test may still see the one before.
        """
        server = 0
        for _ in range(RUNS):
            before = self.made_of()
            status, text = self.run()
            assert status["outcome"] == "unchanged", text
            if not (status.get("warm") and self.names.exists()):
                server = 0
            elif server and before == self.made_of() and server == self.ready():
                return server
            else:
                server = self.ready()
        raise AssertionError(f"each of {RUNS} runs replaces the server: {status['cold_reason']}")

    def made_of(self) -> list[tuple[int, int] | None]:
        """Return what changes with the names and with the compiled Ruby."""
        paths = (self.names, self.node.compiled / "pack")
        stats = [path.stat() if path.exists() else None for path in paths]
        return [stat and (stat.st_ino, stat.st_mtime_ns) for stat in stats]


def _has_read(pid: int) -> bool:
    """Return whether a process is an environment server that serves; not one that was killed."""
    stat = Path(f"/proc/{pid}/stat")
    with suppress(FileNotFoundError, ProcessLookupError):
        name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        return name == "environment" and rest.split()[0] != "Z"
    return False


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, puppet_probe: str) -> Iterator[ReleaseNode]:
    release_node = ReleaseNode(tmp_path_factory.mktemp("warm") / "n", puppet_probe, warm=True)
    yield release_node
    release_node.warm.end()
    release_node.node.end()


@pytest.fixture
def release(place: ReleaseNode) -> ReleaseNode:
    place.reset()
    place.begin()
    return place


def used_environment(release: ReleaseNode, before: int) -> bool:
    return release.ready() == before


def test_a_run_from_a_loaded_environment_has_the_result_of_a_cold_run(
    release: ReleaseNode, tmp_path: Path, puppet_probe: str
) -> None:
    cold = ReleaseNode(tmp_path / "n", puppet_probe, warm=False)
    try:
        cold.run()  # the first run compiles Ruby
        for node in (release, cold):
            (node.node.root / "loaded").unlink(missing_ok=True)
        server = release.ready()
        (status, text), (other, cold_text) = release.run(), cold.run()
        warm = status.get("warm", False), other.get("warm", False)
        assert warm == (True, False), status.get("cold_reason")
        assert used_environment(release, server)
        assert text == cold_text
        assert [canary for canary in CANARIES.values() if canary not in text] == []
        keys = ("outcome", "exit_code", "resources")
        assert [status[key] for key in keys] == [other[key] for key in keys]
        loaded = [(node.node.root / "loaded").read_text() for node in (release, cold)]
        assert loaded == ["type\nprovider\n"] * 2, "the run loads a module's code, once"
    finally:
        cold.warm.end()
        cold.node.end()


def waiting(release: ReleaseNode) -> str:
    """Return the class with a resource that waits for the file `go`; it changes nothing, or so."""
    here = release.node.root
    shell = f"while [ ! -e {here}/go ]; do sleep 0.1; done; test -e {here}/change"
    command = f"exec {{ '/bin/true': onlyif => '/bin/sh -c \"{shell}\"' }} -> app_probe {{"
    return CODE.replace("app_probe {", command)


def test_no_server_remembers_anything_of_a_run(release: ReleaseNode) -> None:
    go = release.node.root / "go"
    go.write_text("")
    release.module(waiting(release))
    environment = release.begin()
    go.unlink()
    release.warm.begin()
    puppet = release.node.wait_running()["puppet"]["pid"]

    def compiled() -> bool:
        return all(remembers(puppet, canary) for canary in CANARIES.values())

    release.node.wait_until(compiled)
    parent = int(Path(f"/proc/{puppet}/stat").read_text().rpartition(")")[2].split()[1])
    assert parent == environment
    go.write_text("")
    assert release.warm.over()["outcome"] == "unchanged"
    for server in (environment, release.warm.server.process().pid):
        assert [what for what, canary in CANARIES.items() if remembers(server, canary)] == []
    names = release.names.read_text()
    assert not [what for what, canary in CANARIES.items() if canary in names]
    assert release.names.stat().st_mode & 0o077 == 0


def test_no_code_of_a_module_is_executed_in_advance(release: ReleaseNode) -> None:
    loaded = release.node.root / "loaded"
    release.node.wait_until(loaded.exists)
    before = loaded.read_text()
    kill(release.warm.server.process().pid)
    release.node.wait_until(lambda: release.warm.server.process() == NOBODY)
    release.run()  # a new server, and its environment server
    once = loaded.read_text().removeprefix(before)
    release.ready()
    time.sleep(0.5)
    assert loaded.read_text().removeprefix(before) == once == "type\nprovider\n"


def kill(pid: int) -> None:
    assert pid, "the process has ended"
    os.kill(pid, signal.SIGKILL)


def test_changed_and_new_files_count_at_once(release: ReleaseNode) -> None:
    release.module(CODE, **{"functions/text.pp": "function app::text($w) { 'other' }\n"})
    status, text = release.run()
    assert status["warm"]
    assert "other" in text
    release.ready()
    own = "Puppet::Functions.create_function(:'app::count') { def count(*) = 'new' }\n"
    release.module(
        CODE.replace("app::text", "app::more"),
        **{
            "functions/more.pp": "function app::more($w) { 'more' }\n",
            "lib/puppet/functions/app/count.rb": own,
        },
    )
    status, text = release.run()
    assert status["warm"]
    assert "more" in text
    assert "new" in text


def test_settings_that_decide_how_puppet_parses_are_the_runs(release: ReleaseNode) -> None:
    release.module(CODE.replace("app_probe {", "$twice = { 'a' => 1, 'a' => 2 }\n  app_probe {"))
    for value, expected in (("error", "failed"), ("off", "unchanged")):
        release.node.write("puppet/conf/puppet.conf", f"[main]\nstrict = {value}\n")
        for _ in range(2):
            status, text = release.run()
            assert status["outcome"] == expected, text


def test_another_release_and_a_branch_are_served_by_the_library(release: ReleaseNode) -> None:
    server = release.ready()
    names = release.names.read_bytes()
    release.node.app("warning('a branch')", name="branch")
    status, text = release.run()
    assert (status["warm"], "a branch" in text) == (True, True)
    assert release.names.read_bytes() == names
    assert used_environment(release, server)


def test_an_environment_server_that_still_reads_delays_no_run(release: ReleaseNode) -> None:
    reading = release.ready()
    os.kill(reading, signal.SIGSTOP)
    try:
        release.names.write_bytes(release.names.read_bytes())  # as a run that leaves others
        release.node.app("warning('a branch')", name="branch")
        for _ in range(2):  # the first makes the fork server replace it
            status, text = release.run()
            assert (status["warm"], status["cold_reason"]) == (True, ""), text
        assert release.ready() != reading
    finally:
        with suppress(ProcessLookupError):
            os.kill(reading, signal.SIGCONT)


def test_a_run_whose_environment_server_is_killed_has_its_full_result(release: ReleaseNode) -> None:
    go, change = release.node.root / "go", release.node.root / "change"
    go.write_text("")
    release.module(waiting(release))
    environment = release.begin()
    go.unlink()
    change.write_text("")
    release.warm.begin()
    release.node.wait_running()
    kill(environment)
    go.write_text("")
    status = release.warm.over()
    assert (status["outcome"], status["exit_code"]) == ("changed", 2)
    assert status["warm"]
