"""Faults with the real Puppet, and their records.

After each fault the record must be true and a following run must work.
"""

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.rigs.node import PATIENCE, Node, processes_with

# Runs a command with the socket `log` in the directory $0 as the system log.
OTHER_DEVICES = """
for name in null zero full random urandom tty; do
  touch "$0/$name" && mount --bind "/dev/$name" "$0/$name"
done
mount --rbind "$0" /dev && exec "$@"
"""
SLEEP = "exec { '/bin/sleep 60': }"


def heals(node: Node) -> None:
    node.app("notify { 'healed': }")
    node.run("apply", code=0)
    assert node.status()["outcome"] == "changed"


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def kill_supervisor(node: Node) -> dict[str, Any]:
    process = node.start("apply")
    record = node.wait_running()
    process.kill()
    node.finish(process)
    return record


def test_a_killed_supervisor_leaves_the_node_locked_until_puppet_ends(node: Node) -> None:
    node.app(f"notify {{ 'a': }} -> {node.gate_code()} -> notify {{ 'b': }}")
    record = kill_supervisor(node)
    puppet = record["puppet"]["pid"]
    status = node.status()
    assert status["outcome"] == "interrupted"
    assert not gone(puppet)
    assert f"Puppet (pid {puppet}) still runs" in node.run("status").out
    busy = node.run("apply", code=75)
    assert record["id"] in busy.err
    node.open_gate()
    node.wait_until(lambda: gone(puppet))
    report = node.state / "runs" / record["id"] / "report.json"
    assert "defined 'message' as 'b'" in report.read_text(), "its run succeeded"
    assert node.status()["outcome"] == "interrupted", "no supervisor saw the end"
    heals(node)
    assert node.run("status", record["id"], "--json").json["run"]["outcome"] == "interrupted"


def test_a_killed_puppet_is_a_failed_run(node: Node) -> None:
    node.app(SLEEP)
    process = node.start("apply")
    record = node.wait_running()
    puppet = record["puppet"]["pid"]
    children = Path(f"/proc/{puppet}/task/{puppet}/children")
    sleeping = node.wait_until(lambda: children.read_text().split())
    os.kill(puppet, signal.SIGKILL)
    node.finish(process, code=1)
    status = node.status()
    assert (status["outcome"], status["signal"], status["exit_code"]) == ("failed", 9, None)
    assert "signal 9" in status["reason"]
    node.wait_until(lambda: all(gone(int(pid)) for pid in sleeping))
    heals(node)


def test_a_run_past_its_timeout_is_ended_with_all_its_children(node: Node) -> None:
    begun, both = node.root / "begun", ("1061.0625", "1062.0625")  # longer than a wait
    sleep = " & ".join(f"sleep {seconds}" for seconds in both)
    node.app(f"exec {{ '/bin/sh -c \"touch {begun}; {sleep}\"': }}")
    for limit in ("4", "30", "120"):  # long enough for the command to begin
        done = node.run("apply", "--timeout", limit)
        if begun.exists():
            break
    assert done.code == 1
    status = node.status()
    assert status["outcome"] == "timed_out"
    assert limit in status["reason"]
    node.wait_until(lambda: not processes_with(*both))  # killed, they end a moment later
    heals(node)


def test_one_of_twenty_applies_runs_and_the_others_name_it(node: Node) -> None:
    node.app(node.gate_code())
    processes = [node.start("apply") for _ in range(20)]
    node.wait_until(lambda: sum(process.poll() is not None for process in processes) == 19)
    node.open_gate()
    done = [node.finish(process) for process in processes]
    assert sorted(each.code for each in done) == [0] + [75] * 19
    runs = node.runs()
    assert len(runs) == 1
    assert all(runs[0] in each.err for each in done if each.code == 75)


@pytest.fixture
def small_disk(node: Node) -> Iterator[Path]:
    """A state directory on a separate tmpfs of 24 MiB."""
    mount = node.root / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "tmpfs", mount], check=True)
    node.settings(state="small", min_free_mib=8)
    yield mount
    subprocess.run(["umount", "-l", mount], check=True)


def test_on_a_full_disk_a_run_is_refused_before_puppet_starts(node: Node, small_disk: Path) -> None:
    node.app("notify { 'hello': }")
    (small_disk / "ballast").write_bytes(b"\0" * 18 * 1024 * 1024)
    done = node.run("apply", code=1)
    assert "MiB" in done.err
    assert "Puppet was not started" in done.err
    assert "Notice" not in done.out
    assert list(small_disk.glob("runs/*")) == []
    (small_disk / "ballast").unlink()
    heals(node)


def test_a_refusal_on_a_full_disk_is_in_the_system_log(node: Node, small_disk: Path) -> None:
    node.app("notify { 'hello': }")
    node.run("apply", "--noop", code=0)
    with suppress(OSError), (small_disk / "ballast").open("wb", buffering=0) as ballast:
        while True:
            ballast.write(b"\0" * 4096)
    node.write("input.yaml", "app: app/tags/r9\n")
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as devices,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log,
    ):
        log.bind(f"{devices}/log")
        node.inside = ["unshare", "--mount", "/bin/sh", "-c", OTHER_DEVICES, devices]
        refused = node.run("apply")
        log.settimeout(PATIENCE)
        line = log.recv(65536).decode()
    node.inside = []
    assert refused.code in (1, 2)
    assert "localpuppet[" in line
    assert "was refused: " in line
    assert "No space left on device" in line
    assert node.run("history", "--json").json["attempts"] == []


def test_a_run_that_fills_the_disk_is_recorded_as_failed(node: Node, small_disk: Path) -> None:
    fill = f"/bin/sh -c 'cat /dev/zero > {small_disk}/ballast; true'"
    node.app(
        f'exec {{ "{fill}": }}\n'
        "-> exec { '/usr/bin/seq 1 9000': logoutput => true }\n-> notify { 'z': }"
    )
    done = node.run("apply")
    assert "Notice: z" in done.out, "the run continues to its end with complete output"
    assert done.code == 1, "without Puppet's report a run is not a success"
    status = node.recorded_in(small_disk)
    assert (status["state"], status["outcome"]) == ("finished", "failed")
    assert "wrote no report" in status["reason"]
    assert "the log is truncated" in status["reason"]
    (small_disk / "ballast").unlink()
    heals(node)


def test_with_a_read_only_state_puppet_is_not_started(node: Node, small_disk: Path) -> None:
    node.app("notify { 'hello': }")
    node.run("apply", code=0)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    done = node.run("apply", code=1)
    assert "read-only" in done.err.lower()
    assert "Notice" not in done.out
    assert node.run("status").code == 0, "existing records are readable"
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    heals(node)
