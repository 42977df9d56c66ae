"""Starting Puppet for a run: warm if possible, otherwise cold, and never twice."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import StateError, UnavailableError
from localpuppet.base.machine.fork_server import ForkServerClient
from localpuppet.base.machine.ports import Child
from localpuppet.node.puppet.command_line import LeanStart
from localpuppet.node.puppet.installation import Installation, ruby_state
from localpuppet.node.puppet.launching import LIMITS, PuppetLaunch, launch, server_command
from tests.doubles.ports import FakeChild, FakeProcesses

PUPPET = "/usr/bin/puppet"
INSTALLATION = Installation(
    command=PUPPET, version="7.23.0", settings={"libdir": "/var/lib/puppet/lib"}, lean=("--x",)
)
LEAN = LeanStart(flags=("--x",), file=Path("/lean.rb"), compiled=Path("/ruby"))
RUN = PuppetLaunch(
    installation=INSTALLATION,
    argv=[PUPPET, "apply", "--noop"],
    base={"PATH": "/bin", "LC_ALL": "C"},
    more={"LOCALPUPPET_RUN": "1"},
    lock=0,
    group="localpuppet-1",
)


class FakeForkServer(ForkServerClient):
    """A client that gets a child of no server, or an error."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.problem = problem
        self.asked: list[tuple[Mapping[str, Any], Path, Sequence[int], str]] = []

    def start(
        self, request: Mapping[str, Any], *, cwd: Path, keep: Sequence[int], group: str
    ) -> Child:
        self.asked.append((request, cwd, keep, group))
        if self.problem is not None:
            raise self.problem
        return FakeChild()

    def memory(self) -> int | None:
        return 1


@pytest.fixture
def processes() -> FakeProcesses:
    made = FakeProcesses()
    made.programs[PUPPET] = lambda _started: FakeChild()
    return made


def test_a_warm_start_gets_the_arguments_and_environment_of_a_cold_one(
    processes: FakeProcesses,
) -> None:
    server = FakeForkServer()
    launched = launch(RUN, processes=processes, lean=LEAN, fork_server=server)
    assert (launched.warm, launched.cold_reason, processes.started) == (True, "", [])
    request = {
        "argv": [PUPPET, "apply", "--noop"],
        "env": {"PATH": "/bin", "LC_ALL": "C", "LOCALPUPPET_RUN": "1"},
        "version": "7.23.0",
        "environment": "",
        "libdir": "/var/lib/puppet/lib",
        "facter": None,
    }
    assert server.asked == [(request, Path("/"), [0], "localpuppet-1")]


def test_if_a_warm_start_is_impossible_puppet_starts_cold_with_a_reason(
    processes: FakeProcesses,
) -> None:
    server = FakeForkServer(UnavailableError("is not there", where="the fork server"))
    launched = launch(RUN, processes=processes, lean=LEAN, fork_server=server)
    assert (launched.warm, launched.cold_reason) == (False, "the fork server: is not there")
    assert [started.argv for started in processes.started] == [(PUPPET, "apply", "--noop")]
    assert processes.started[0].env["RUBYOPT"] == "--x -r/lean.rb"


def test_puppet_is_not_started_beside_a_warm_child(processes: FakeProcesses) -> None:
    server = FakeForkServer(StateError("does not end after SIGKILL"))
    with pytest.raises(StateError):
        launch(RUN, processes=processes, lean=LEAN, fork_server=server)
    assert processes.started == []


def test_without_a_fork_server_a_cold_start_has_no_reason(processes: FakeProcesses) -> None:
    launched = launch(RUN, processes=processes, lean=LEAN, fork_server=None)
    assert (launched.warm, launched.cold_reason) == (False, "")


def _command(lean: LeanStart, script: str) -> tuple[list[str], dict[str, str]]:
    return server_command(
        INSTALLATION,
        base={},
        lean=lean,
        script=Path(script),
        socket=Path("/s"),
        names=Path("/names"),
        limits=LIMITS,
    )


def test_the_server_is_the_puppet_command_with_the_fork_file_after_the_lean_start() -> None:
    command, env = _command(LEAN, "/fork.rb")
    assert command == [PUPPET, "--version"], "harmless if Ruby does not load the fork file"
    assert env["RUBYOPT"] == "--x -r/lean.rb -r/fork.rb"
    assert env["LOCALPUPPET_FORK_SERVER"] == (
        '["/s", "/usr/bin/puppet", "/ruby/pack",'
        ' {"runs": 100, "seconds": 43200, "memory": 167772160}, "/names"]'
    )


@pytest.mark.parametrize(
    ("lean", "script"),
    [
        (LeanStart(flags=(), file=Path("/lean.rb")), "/fork.rb"),
        (LEAN, "/with space/fork.rb"),
        (LeanStart(flags=("--x",), file=Path("/a b/lean.rb")), "/fork.rb"),
    ],
)
def test_no_server_is_started_if_ruby_would_not_load_it(lean: LeanStart, script: str) -> None:
    with pytest.raises(UnavailableError, match="RUBYOPT"):
        _command(lean, script)


def test_the_state_changes_with_the_ruby_and_with_the_version_of_a_gem(tmp_path: Path) -> None:
    # As Debian has it for gems with compiled parts: the architecture is in between.
    ruby, gems = tmp_path / "ruby3.1", tmp_path / "lib/x86_64-linux-gnu/rubygems-integration"
    ruby.write_text("3.1")
    specifications = gems / "3.1.0/specifications"
    specifications.mkdir(parents=True)
    (specifications / "hocon-1.3.gemspec").touch()
    places = [f"{tmp_path}/lib/*/rubygems-integration"]
    before = ruby_state(ruby, places)
    assert ruby_state(ruby, places) == before
    (specifications / "hocon-1.3.gemspec").rename(specifications / "hocon-1.4.gemspec")
    newer_gem = ruby_state(ruby, places)
    ruby.write_text("3.1.2")
    assert len({before, newer_gem, ruby_state(ruby, places)}) == 3


@pytest.mark.parametrize(("lean", "kept"), [(LEAN, [0, 9]), (replace(LEAN, flags=()), [0])])
def test_puppet_gets_the_socket_of_sealed_values_only_if_its_children_do_not(
    lean: LeanStart, kept: list[int], processes: FakeProcesses
) -> None:
    run = replace(RUN, sealed=9)
    launch(run, processes=processes, lean=lean, fork_server=None)
    word = processes.started[0].env["LOCALPUPPET_SEALED"]
    assert (processes.started[0].keep, word.isdigit()) == (kept, 9 in kept)
    assert (
        "LOCALPUPPET_SEALED" in processes.started[0].env.get("LOCALPUPPET_UNSET", "")
        or not word.isdigit()
    )
    server = FakeForkServer()
    launch(run, processes=processes, lean=lean, fork_server=server)
    assert server.asked[0][2] == [0, 9]
