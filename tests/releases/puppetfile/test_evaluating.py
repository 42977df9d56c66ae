"""A Puppetfile that Ruby runs cannot reach others of the user that it runs as."""

import os
import subprocess
from collections.abc import Iterator

import pytest

from localpuppet.releases.puppetfile.evaluating import USER, evaluate

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
    assert said(f"{ruby}\n{kill}\n") == ["1", "Errno::ESRCH"]
    assert other.poll() is None
