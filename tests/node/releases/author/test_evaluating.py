"""A Puppetfile that Ruby evaluates cannot reach other processes of the user that runs it."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.machine.isolation import USER
from localpuppet.base.machine.processes import SystemProcesses
from localpuppet.node.releases.author.puppetfile_import import evaluate
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
    """An unrelated process of the same user."""
    as_user = ["setpriv", f"--reuid={USER}", "--regid=nogroup", "--clear-groups"]
    with subprocess.Popen(
        [*as_user, "/usr/bin/python3", "-c", WATCHING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    ) as process:
        yield process
        process.kill()


def evaluated_names(ruby: str) -> list[str]:
    found = evaluate(ruby.encode(), path=os.environ["PATH"])
    return [entry.name for entry in found.entries]


def test_ruby_cannot_reach_the_memory_of_another_process(other: "subprocess.Popen[str]") -> None:
    assert other.stdout
    place = int(other.stdout.readline())
    found = evaluated_names(
        f"begin\n  File.open('/proc/{other.pid}/mem', 'r+b') do |file|\n"
        f"    file.seek({place}); file.write('evil')\n  end\n"
        "rescue SystemCallError => e\n  mod e.class.to_s\nend\n"
    )
    assert found == ["Errno::ENOENT"]
    assert other.communicate("")[0] == "mine\n"


def test_ruby_sees_and_signals_only_its_own_processes(other: "subprocess.Popen[str]") -> None:
    ruby = r"mod (Dir.children('/proc').grep(/\A\d+\z/) - ['1', Process.pid.to_s]).join(' ')"
    kill = (
        f"begin; Process.kill(9, {other.pid}); rescue SystemCallError => e; mod e.class.to_s; end"
    )
    assert evaluated_names(f"{ruby}\n{kill}\n") == ["", "Errno::ESRCH"]
    assert other.poll() is None


# Ruby that tries to outlive the command: another session, another name, no signal from its parent.
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
    found = [process.words for process in map(processes.look_up, pids) if process]
    return any(f"evaluated-{name}" in " ".join(words) for words in found)


def test_ruby_that_prints_too_much_is_ended() -> None:
    text = LIVES_ON.format(name="flood") + FLOODS
    with pytest.raises(InvalidInputError, match="printed more than"):
        evaluate(text.encode(), path=os.environ["PATH"])
    wait_until(lambda: not running("flood"), lambda: "Ruby is still running")


def test_ruby_ends_with_a_killed_command(tmp_path: Path) -> None:
    file = tmp_path / "Puppetfile"
    file.write_text(LIVES_ON.format(name="kill") + "sleep\n")
    command = [sys.executable, "-m", "localpuppet", "release", "import", "--dry-run", "--evaluate"]
    with subprocess.Popen([*command, file]) as process:
        wait_until(lambda: running("kill"), lambda: "Ruby was not started")
        process.kill()
    wait_until(lambda: not running("kill"), lambda: "Ruby is still running")


def test_ruby_cannot_end_the_first_process_of_its_namespace() -> None:
    kill = "begin; Process.kill(9, 1); rescue SystemCallError => e; mod e.class.to_s; end"
    assert evaluated_names(kill) == ["Errno::EPERM"]


ATTACKS = r"""
require 'rbconfig'
mod system('unshare -Ur true 2>&1').to_s
mod File.read('/proc/self/status')[/CapPrm:\s*(\h+)/, 1]
mod [Process.uid, File.read('/proc/self/uid_map').split[0].to_i].uniq.size.to_s
%w[/dev/shm/x /run/x /x /var/tmp/x].each do |place|
  File.write(place, 'x')
  mod place
rescue SystemCallError
  next
end
"""
MANY = """
started = 'i=0; while [ $i -lt 20 ]; do sleep 1 & i=$((i+1)); done; echo started'
mod `sh -c '#{started}' 2>&1`.include?('started').to_s
"""


@pytest.mark.parametrize("user", ["root", "daemon"])
def test_ruby_has_no_rights_whoever_runs_it(user: str) -> None:
    command = [sys.executable, "-m", "localpuppet", "release", "import", "--dry-run", "--evaluate"]
    with tempfile.TemporaryDirectory() as name:  # readable for other users
        Path(name).chmod(0o755)
        file = Path(name) / "Puppetfile"
        file.write_text(ATTACKS)
        file.chmod(0o644)
        done = subprocess.run(
            [*command, "--json", file],
            user=user,
            group=user,
            extra_groups=[],
            capture_output=True,
            check=False,
        )
    names = [entry["module"] for entry in json.loads(done.stdout)["entries"]]
    assert names == ["false", "0000000000000000", "1"], done.stderr


def test_programs_of_ruby_are_few() -> None:
    assert evaluated_names(MANY) == ["false"]
