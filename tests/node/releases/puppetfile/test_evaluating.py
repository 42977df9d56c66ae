"""A Puppetfile that Ruby runs cannot reach others of the user that it runs as."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.machine.processes import SystemProcesses
from localpuppet.node.releases.puppetfile.evaluating import USER, evaluate
from tests.rigs.waiting import wait_until

pytestmark = pytest.mark.puppet

WATCHING = """
import ctypes, sys
own = ctypes.create_string_buffer(b"mine")
print(ctypes.addressof(own), flush=True)
sys.stdin.read()
print(own.value.decode())
"""


@pytest.fixture
def other() -> "Iterator[subprocess.Popen[str]]":
    """A process of the same user that has nothing to do with us."""
    somebody = ["setpriv", f"--reuid={USER}", "--regid=nogroup", "--clear-groups"]
    with subprocess.Popen(
        [*somebody, "/usr/bin/python3", "-c", WATCHING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    ) as process:
        yield process
        process.kill()


def said(ruby: str) -> list[str]:
    found = evaluate(ruby.encode(), path=os.environ["PATH"])
    return [entry.name for entry in found.entries]


def test_the_memory_of_another_process_of_that_user_is_not_there(
    other: "subprocess.Popen[str]",
) -> None:
    assert other.stdout
    place = int(other.stdout.readline())
    found = said(
        f"begin\n  File.open('/proc/{other.pid}/mem', 'r+b') do |file|\n"
        f"    file.seek({place}); file.write('ours')\n  end\n"
        "rescue SystemCallError => e\n  mod e.class.to_s\nend\n"
    )
    assert found == ["Errno::ENOENT"]
    assert other.communicate("")[0] == "mine\n"


def test_it_sees_and_signals_its_own_processes_alone(other: "subprocess.Popen[str]") -> None:
    ruby = r"mod Dir.children('/proc').grep(/\A\d+\z/).join(' ')"
    kill = (
        f"begin; Process.kill(9, {other.pid}); rescue SystemCallError => e; mod e.class.to_s; end"
    )
    assert said(f"{ruby}\n{kill}\n") == ["1 2", "Errno::ESRCH"]
    assert other.poll() is None


# Ruby that wants to live on: another session, another name, and no signal when its parent ends.
LIVES_ON = """
Process.setsid
$0 = 'evaluated-{name}'
PR_SET_PDEATHSIG, PRCTL = 1, 157
syscall(PRCTL, PR_SET_PDEATHSIG, 0, 0, 0, 0)
"""
FLOODS = """
out = ObjectSpace.each_object(IO).find { |io| !io.closed? && io.fileno > 2 }
loop { out.syswrite('x' * 65536) rescue nil }
"""


def running(name: str) -> bool:
    processes = SystemProcesses()
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return any(f"evaluated-{name}" in " ".join(processes.command_line(pid)) for pid in pids)


def test_ruby_that_is_stopped_does_not_outlive_the_command() -> None:
    text = LIVES_ON.format(name="flood") + FLOODS
    with pytest.raises(InvalidInputError, match="printed more than"):
        evaluate(text.encode(), path=os.environ["PATH"])
    wait_until(lambda: not running("flood"), lambda: "Ruby is still running")


def test_ruby_does_not_outlive_a_command_that_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "Puppetfile"
    file.write_text(LIVES_ON.format(name="kill") + "sleep\n")
    command = [sys.executable, "-m", "localpuppet", "release", "import", "--dry-run", "--evaluate"]
    with subprocess.Popen([*command, file]) as process:
        wait_until(lambda: running("kill"), lambda: "Ruby was not started")
        process.kill()
    wait_until(lambda: not running("kill"), lambda: "Ruby is still running")


def test_ruby_cannot_end_the_first_process_of_its_namespace() -> None:
    kill = "begin; Process.kill(9, 1); rescue SystemCallError => e; mod e.class.to_s; end"
    assert said(kill) == ["Errno::EPERM"]


def test_a_user_other_than_root_gets_a_refusal_and_not_a_weaker_child() -> None:
    command = [sys.executable, "-m", "localpuppet", "release", "import", "--dry-run", "--evaluate"]
    with tempfile.TemporaryDirectory() as name:  # that others can read
        Path(name).chmod(0o755)
        file = Path(name) / "Puppetfile"
        file.write_text("mod 'a', git: 'https://git.example.net/a'\n")
        file.chmod(0o644)
        done = subprocess.run(
            [*command, file], user="daemon", group="daemon", extra_groups=[], capture_output=True
        )
    assert (done.returncode, b"which only root may do" in done.stderr) == (2, True), done.stderr
