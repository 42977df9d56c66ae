"""Former vulnerabilities of the supervisor stay fixed."""

import json
import os
import pty
import subprocess
import sys

import pytest

from localpuppet.base.formats.names import RunId
from tests.node import make
from tests.node.runs.test_faults import heals
from tests.rigs.node import COMMAND, PATIENCE, REPOSITORY, Node, processes_with, shell


def test_a_closed_output_does_not_unlock_a_detached_run(node: Node) -> None:
    node.app(node.gate_code())
    environment = f"LOCALPUPPET_ROOT={node.root} PYTHONPATH={REPOSITORY}"
    command = f"{environment} {sys.executable} -m localpuppet apply --detach"
    for reader in (">/dev/full", "| true"):
        (node.root / "go").unlink(missing_ok=True)
        shell(f"{command} {reader}")
        run = node.wait_running()["id"]
        busy = node.run("apply", "--detach", code=75)
        assert run in busy.err
        waiting = node.start("status", "--wait", run)
        node.open_gate()
        node.finish(waiting, code=0)
    assert len(node.runs()) == 2


def test_a_terminal_that_is_closed_does_not_end_the_run(node: Node) -> None:
    node.app("exec { '/bin/sleep 3': } -> notify { 'late': }")
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "apply"],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=node.environment(PYTHONPATH=str(REPOSITORY), TERM="xterm"),
        cwd="/",
        start_new_session=True,
    )
    os.close(follower)
    seen = b""
    while b"applying app/trunk" not in seen:
        seen += os.read(leader, 4096)
    node.wait_running()
    os.close(leader)
    assert process.wait(PATIENCE) == 0
    assert node.status()["outcome"] == "changed"
    assert "Notice: late" in node.run("logs").out


def test_damaged_old_records_do_not_affect_a_run(node: Node) -> None:
    node.app("notify { 'hello': }")
    runs = node.state / "runs"
    changes: list[dict[str, object]] = [
        {"supervisor": {"pid": 1, "boot_id": "x", "started": "7"}},
        {"started_at": 5},
        {"finished_at": "x"},
        {"release": ["x"]},
    ]
    for number, change in enumerate(changes):
        run = runs / f"20200101T000000.000000Z-abc{number}"
        run.mkdir(parents=True)
        (run / ".reserve").write_text("")
        valid = make.status(id=RunId(run.name)).to_dict()
        (run / "status.json").write_text(json.dumps({**valid, **change}))
    for name in ("20201399T000000.000000Z-abcd", "99991231T235959.999999Z-ffff"):
        (runs / name).mkdir()
    node.run("apply", code=0)
    for verb in ("status", "history", "why", "logs"):
        node.run(verb, code=0)


def test_a_flood_of_output_does_not_defeat_the_timeout(node: Node) -> None:
    node.write(
        "modules/app/trunk/app/lib/puppet/functions/app/flood.rb",
        "Puppet::Functions.create_function(:'app::flood') do\n  def flood\n"
        "    line = 'x' * 80 + 10.chr\n    loop { STDOUT.syswrite(line * 800) }\n  end\nend\n",
    )
    node.app("app::flood()")
    done = node.run("apply", "--timeout", "6", "--json", code=1)
    assert done.json["outcome"] == "timed_out"
    log = node.state / "runs" / done.json["id"] / "log"
    assert log.stat().st_size < 70 * 1024 * 1024
    heals(node)


def test_a_link_in_puppets_directory_is_not_followed(node: Node) -> None:
    victim = node.write("victim", "precious", 0o600)
    statedir = node.root / "puppet/var/state"
    for number in range(os.getpid(), os.getpid() + 300):
        (statedir / f".agent_disabled.lock.{number}").symlink_to(victim)
    (statedir / "agent_catalog_run.lock").symlink_to(victim)
    node.app("notify { 'hello': }")
    node.run("disable", "-m", "x", code=0)
    node.run("enable", code=0)
    node.run("apply", code=0)
    assert victim.read_text() == "precious"
    assert victim.stat().st_mode & 0o777 == 0o600


def test_puppet_conf_does_not_falsify_the_record(node: Node) -> None:
    node.app("notify { 'hello': }")
    node.write("puppet/conf/puppet.conf", f"[main]\nreport = false\nlogdest = {node.root}/x.log\n")
    done = node.run("apply", code=0)
    assert "Notice: hello" in done.out
    node.write("puppet/conf/puppet.conf", "[main]\nnoop = true\n")
    done = node.run("apply", "--json")
    assert (done.json["noop"], done.json["noop_pending"]) == (True, True)
    assert "warning: puppet.conf: noop is set: runs change nothing" in done.err


def test_a_missing_puppet_or_enc_is_a_failed_run_in_the_record(node: Node) -> None:
    node.app("notify { 'hello': }")
    node.settings(enc="/nonexistent/enc")
    node.run("apply", code=1)
    status = node.status()
    assert (status["outcome"], status["puppet_started"]) == ("failed", False)
    assert "/nonexistent/enc" in status["reason"]
    assert status["failure_cause"]["error"].startswith("ENC failed: ")
    assert "'localpuppet check'" in node.run("status").out
    broken = node.write("not-a-program", "rubbish", 0o755)
    for command, problem in (
        ("/nonexistent/puppet", "cannot find OpenVox or Puppet"),
        (str(broken), "cannot be executed"),
        (str(node.root), "cannot be executed"),
    ):
        node.settings(puppet={"command": command})
        node.run("apply", code=1)
        assert f"{command}: {problem}" in node.status()["reason"]
    node.settings()
    heals(node)


def test_a_signal_while_the_enc_runs_ends_the_run_before_puppet(node: Node) -> None:
    node.app("notify { 'hello': }")
    command = node.write("my-enc", f"#!/bin/sh\ntouch {node.root}/asked\nsleep 1063.0625\n", 0o755)
    node.settings(enc=str(command), timeouts={"enc": 60})
    process = node.start("apply")
    node.wait_until((node.root / "asked").exists)
    process.terminate()
    node.finish(process, code=1)
    status = node.status()
    assert (status["outcome"], status["puppet_started"]) == ("cancelled", False)
    node.wait_until(lambda: not processes_with("1063.0625"))  # killed, it ends a moment later


@pytest.mark.parametrize("stream", ["<&-", ">&-", ">/dev/full", "2>&-"])
def test_closed_streams_are_not_reported_as_a_bug(node: Node, stream: str) -> None:
    environment = f"LOCALPUPPET_ROOT={node.root} PYTHONPATH={REPOSITORY}"
    shown = shell(f"{environment} {sys.executable} -m localpuppet status {stream}; echo code $?")
    assert "bug" not in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    ("words", "stream"),
    [("--help", "stdout"), ("release", "stdout"), ("history", "stdout"), ("x", "stderr")],
)
def test_a_closed_pipe_has_an_exit_code_and_no_message(node: Node, words: str, stream: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, *words.split()],
        env=node.environment(),
        stdout=writer if stream == "stdout" else subprocess.PIPE,
        stderr=writer if stream == "stderr" else subprocess.PIPE,
        check=False,
        timeout=PATIENCE,
    )
    os.close(writer)
    assert done.returncode == 141
    assert not done.stdout
    assert not done.stderr


def test_a_tag_that_is_a_link_to_trunk_is_refused(node: Node) -> None:
    (node.root / "modules/foo/tags/r9").symlink_to("../trunk")
    node.write("input.yaml", "app: foo/tags/r9\n")
    node.settings(immutable_only=True)
    refused = node.run("check", code=2)
    assert "is a link to foo/trunk" in refused.err


def test_files_that_others_can_write_are_not_run_as_root(node: Node) -> None:
    node.app("notify { 'hello': }")
    for name in ("enc/enc.sh", "manifests/default.pp", "modules/app/trunk", "input.yaml"):
        path = node.root / name
        mode = path.stat().st_mode
        path.chmod(0o777)
        refused = node.run("apply", code=2)
        assert f"{name}: is writable by others" in refused.err
        path.chmod(mode)
    node.run("apply", code=0)
