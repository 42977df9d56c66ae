"""Hostile code in a release has no access, and does not affect other compiles."""

import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import StateError
from localpuppet.base.share.files import shared_file
from localpuppet.node.preview.engine import LIMITS
from localpuppet.node.preview.isolation import CompilerIsolation
from localpuppet.node.preview.ports import CompileResult
from tests.node.preview.engine_rig import PATH, compile_all, make_engine, request, write
from tests.rigs.waiting import wait_until

pytestmark = pytest.mark.puppet


def _function(body: str) -> str:
    return f"Puppet::Functions.create_function(:'m::run') do\n  def run; {body}; end\nend\n"


# Attack → Ruby code. `nil.to_s` compiles.
ATTACKS = {
    "reads a secret": "File.read('/etc/shadow')",
    "reads the job's secret": "File.read(SECRET)",
    "reads the environment": "ENV.fetch('JOB_SECRET')",
    "reads the parent's environment": "File.read('/proc/1/environ')[/JOB_SECRET=\\w+/].to_str",
    "opens a socket": "TCPSocket.new('127.0.0.1', PORT).to_s",
    "writes into the release": "File.write(File.join(__dir__, 'x'), 'x').to_s",
    "never ends": "loop { }",
    "takes memory": "('x' * (10 * 1024**3)).size.to_s",
    "forks": "loop { fork { sleep } }",
    "leaves the process": "exit!(0)",
    "is killed": "Process.kill(:KILL, Process.pid)",
    "crashes": "Process.kill(:SEGV, Process.pid); sleep",
    "changes the system": "File.write('/usr/bin/x', 'x').to_s",
    "prints a long result": "('x' * (100 * 1024**2))",
}
# Attacks on the process that all compiles share.
PARENT = {
    "kills its parent": "Process.kill(:KILL, Process.ppid); Process.kill(:TERM, Process.ppid); 'x'",
    "prints": ("2000.times { $stdout.puts('{\"id\": 1, \"bytes\": 1}'); $stderr.puts('x') }; 'x'"),
    "writes to all descriptors": (
        "(3..64).each { |n| IO.for_fd(n, autoclose: false).syswrite(\"{}\\n\") rescue nil }; 'x'"
    ),
    "leaves a program": "fork { Process.setsid; sleep }; 'x'",
}


def hostile(
    tmp_path: Path,
    attacks: dict[str, str],
    constants: str = "",
    limits: Mapping[str, int] = LIMITS,
) -> dict[str, CompileResult]:
    """Return the result of each attack; assert that a node before and one after them compile."""
    files, nodes = {}, ["node 'first', 'last' { notify { 'fine': } }"]
    for number, body in enumerate(attacks.values()):
        code = f"{constants}\n{_function(body)}".replace("m::run", f"m::run{number}")
        files[f"modules/m/lib/puppet/functions/m/run{number}.rb"] = code.replace(
            "def run;", f"def run{number};"
        )
        nodes.append(f"node 'n{number}' {{ notify {{ \"${{m::run{number}()}}\": }} }}")
    release = write(tmp_path / "r", {"site.pp": "\n".join(nodes), **files})
    engine = make_engine(tmp_path / "e", trusted=False, processes=2, limits=limits)
    names = ["first", *(f"n{number}" for number in range(len(attacks))), "last"]
    results = compile_all(engine, release, [request(name) for name in names])
    assert results["first"].failure is None
    assert results["last"].failure is None
    assert not (release.directory / "modules/m/lib/puppet/functions/m/x").exists()
    return {name: results[f"n{number}"] for number, name in enumerate(attacks)}


def test_hostile_code_has_no_access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests compile as the same user: they need the rest of the programs.
    limits = {**LIMITS, "programs": LIMITS["programs"] // 2, "seconds": 20}
    limits |= {"memory": 512 * 1024**2, "result": 32 * 1024**2}
    monkeypatch.setenv("JOB_SECRET", "canary")
    secret = tmp_path / "secret"
    secret.write_text("canary")
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepted: list[object] = []
        thread = threading.Thread(target=_accept, args=(server, accepted))
        thread.start()
        constants = f"SECRET = '{secret}'\nPORT = {server.getsockname()[1]}"
        results = hostile(tmp_path, ATTACKS, constants, limits)
        socket.create_connection(server.getsockname()).close()
        thread.join()
    assert len(accepted) == 1  # the connection of the test
    for attack, result in results.items():
        assert result.catalog is None, attack
        assert result.failure is not None, attack
        assert "canary" not in result.failure.message, attack


def _accept(server: socket.socket, accepted: list[object]) -> None:
    connection, _ = server.accept()
    accepted.append(connection.getpeername())
    connection.close()


def test_a_compile_does_not_end_or_change_other_compiles(tmp_path: Path) -> None:
    results = hostile(tmp_path, PARENT)
    failed = {attack for attack, result in results.items() if result.failure}
    assert failed <= {"kills its parent", "writes to all descriptors"}
    # A killed process ends a moment later; a process that outlives the engine does not end.
    wait_until(
        lambda: not _processes_that_see(tmp_path), lambda: str(_processes_that_see(tmp_path))
    )


def _processes_that_see(directory: Path) -> set[str]:
    """Return the ids of processes that have a directory mounted."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"{directory}/" in (entry / "mountinfo").read_text():
                    found.add(entry.name)
            except OSError:
                continue
    return found


def test_without_isolation_localpuppet_refuses_to_compile(tmp_path: Path) -> None:
    release = write(tmp_path / "r", {"site.pp": ""})
    engine = make_engine(tmp_path / "e", trusted=False)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("prlimit", "setpriv", "mount", "umount", "findmnt", "true"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    (programs / "unshare").write_text("#!/bin/sh\necho 'unshare: not permitted' >&2\nexit 1\n")
    (programs / "unshare").chmod(0o755)
    refused = replace(engine, isolation=CompilerIsolation(path=str(programs)))
    with pytest.raises(StateError, match=r"not permitted.*--trusted"):
        list(refused.compile(release, [request()]))


def test_a_path_without_the_programs_of_root_is_enough(tmp_path: Path) -> None:
    """An unprivileged user's PATH has no /usr/sbin, where pivot_root is."""
    CompilerIsolation(path="/usr/bin:/bin").check(tmp_path)


def test_the_shared_process_reads_only_files_of_the_release(tmp_path: Path) -> None:
    """A compile may name any file to the process that all compiles share."""
    release = tmp_path / "r"
    release.mkdir()
    (tmp_path / "outside").write_text("1")
    (release / "inside").write_text("1")
    (release / "device").symlink_to("/dev/null")
    names = [f"{release}/{name}" for name in ("inside", "device", "../outside")]
    code = (
        "require 'puppet'; require 'json'; require ARGV[0]; include LocalpuppetPreview\n"
        "Reads.configure({ ARGV[1] => '' }, [], [])\n"
        "ARGV.drop(2).each { |path| Memo.learn('text', path) }\n"
        "puts JSON.generate(Memo.instance_variable_get(:@known).keys)"
    )
    ruby = shutil.which("ruby", path=PATH) or "ruby"
    argv = [ruby, "-e", code, str(shared_file("preview/memo.rb")), str(release), *names]
    done = subprocess.run(argv, check=True, capture_output=True, timeout=120)
    assert json.loads(done.stdout) == [["text", names[0]]]
