"""The program git: its output and memory are limited, whatever a server sends."""

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from localpuppet.base.errors import IntegrityError, StateError, UnavailableError
from localpuppet.base.machine.processes import SystemProcesses
from localpuppet.node.releases.git.mirrors import Git
from localpuppet.node.releases.git.program import GitProgram
from localpuppet.node.releases.limits import GIT_LIMITS, GitLimits
from tests.node import make
from tests.rigs.forge import Forge, Repo
from tests.rigs.signing import payload, put_tag
from tests.rigs.waiting import wait_until

URL = "ssh://host/repository"
MEGABYTE = 1024 * 1024
# A git server as ssh starts it: it offers a tag, and then sends endlessly.
SERVER = """\
#!{python}
import os, sys
if "-G" in sys.argv: sys.exit()
def packet(data): os.write(1, b"%04x" % (len(data) + 4) + data)
def heard():
    size = int(sys.stdin.buffer.read(4) or b"0", 16)
    return size and sys.stdin.buffer.read(size - 4)
commit = b"1" * 40
packet(commit + b" refs/tags/r1\\0side-band-64k shallow\\n")
while {refs}: packet(commit + b" refs/tags/x%060d\\n" % 1)
os.write(1, b"0000")
while heard(): pass
packet(b"shallow " + commit + b"\\n")
os.write(1, b"0000")
while heard() != b"done\\n": pass
packet(b"NAK\\n")
for _ in range({lines}): packet(b"\\2" + b"remote words " * 4000 + b"\\n")
"""


def git(
    tmp_path: Path, *, refs: bool = False, lines: int = 0, limits: GitLimits = GIT_LIMITS
) -> Git:
    """Return a git with the test's server in place of ssh."""
    server = tmp_path / "server"
    server.write_text(SERVER.format(python=sys.executable, refs=refs, lines=lines))
    server.chmod(0o755)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_SSH_COMMAND": str(server)}
    return make.git(tmp_path / "mirrors", env=env, limits=limits)


def test_messages_of_a_server_are_not_kept_in_memory(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(UnavailableError, match="cannot fetch r1") as caught:
            git(tmp_path, lines=600).fetch([(URL, "r1")], refresh=True)
        assert tracemalloc.get_traced_memory()[1] < 4 * MEGABYTE
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("verb", ["fetch", "ls-remote"])
def test_an_endless_list_of_refs_ends_git(verb: str, tmp_path: Path) -> None:
    asking = git(tmp_path, refs=True, limits=GitLimits(memory=64 * MEGABYTE))
    with pytest.raises(UnavailableError):
        if verb == "fetch":
            asking.fetch([(URL, "r1")], refresh=True)
        else:
            asking.refs([URL])


def test_a_tag_object_above_the_limit_is_refused(tmp_path: Path, forge: Forge) -> None:
    up = forge.repo("up")
    up.commit({"init.pp": "class up {}\n"})
    put_tag(up, "r1", payload(up, "r1", "words " * MEGABYTE))
    git(tmp_path).fetch([(up.url, "r1")], refresh=True)
    with pytest.raises(IntegrityError, match=f"printed more than {MEGABYTE} bytes"):
        git(tmp_path, limits=GitLimits(output=MEGABYTE)).tag(up.url, "r1")


def test_git_reads_all_its_input_and_returns_all_its_output(tmp_path: Path, forge: Forge) -> None:
    up = forge.repo("up")
    data = os.urandom(MEGABYTE)
    program = GitProgram(env={"PATH": os.environ["PATH"]}, allow_file=False, timeout=60)
    place = up.path / ".git"
    name = program.run(place, "hash-object", "-w", "--stdin", stdin=data).decode().strip()
    assert program.run(place, "cat-file", "blob", name) == data


def test_the_transport_of_a_stalled_fetch_ends_with_git(tmp_path: Path) -> None:
    transport = tmp_path / "transport"
    transport.write_text(
        '#!/bin/sh\necho $$ >"$0.pid.new"\nmv "$0.pid.new" "$0.pid"\nexec sleep 600\n'
    )
    transport.chmod(0o755)
    number = tmp_path / "transport.pid"
    env = {"PATH": os.environ["PATH"], "GIT_SSH_COMMAND": str(transport)}
    for seconds in (1, 4, 16, 64):  # until git was fast enough to start its transport
        asking = make.git(tmp_path / "mirrors", env=env, timeout=seconds)
        with pytest.raises(UnavailableError, match=f"did not end within {seconds} s"):
            asking.fetch([(URL, "r1")], refresh=True)
        if number.exists():
            break
    pid, processes = int(number.read_text()), SystemProcesses()
    wait_until(lambda: not processes.identify(pid).started, lambda: f"{pid} is still running")


def test_a_repository_of_another_user_has_a_cure_that_works(tmp_path: Path, forge: Forge) -> None:
    up = forge.repo("up")
    up.commit({"init.pp": "class up {}\n"}, "r1")
    subprocess.run(["chown", "-R", "daemon", up.path], check=True)
    asked = subprocess.run(["git", "ls-remote", up.url], capture_output=True, check=False)
    if asked.returncode == 0:  # git 2.55 serves another user's repository
        git(tmp_path).fetch([(up.url, "r1")], refresh=True)
        return
    with pytest.raises(UnavailableError, match="belongs to another user") as caught:
        git(tmp_path).fetch([(up.url, "r1")], refresh=True)
    assert caught.value.where == str(up.path / ".git")
    assert "chown -R" in caught.value.hint
    assert "safe.directory" not in str(caught.value)
    subprocess.run(["chown", "-R", "root", up.path], check=True)
    git(tmp_path).fetch([(up.url, "r1")], refresh=True)


LIMIT = 100_000


@pytest.fixture
def web(tmp_path: Path) -> Repo:
    """A repository with a small release and a large one that cannot be compressed."""
    repo = Forge(tmp_path / "forge").repo("web")
    repo.commit({"manifest.yaml": "modulepath: []\n"}, "small")
    (repo.path / "noise").write_bytes(os.urandom(3 * LIMIT))
    repo.commit({}, "large")
    return repo


def packs(tmp_path: Path) -> list[str]:
    return sorted(path.name[:4] for path in (tmp_path / "mirrors").glob("*/objects/pack/*"))


def test_a_fetch_above_the_limit_is_refused(web: Repo, tmp_path: Path) -> None:
    mirrors = make.git(tmp_path / "mirrors", limits=GitLimits(fetched=LIMIT))
    mirrors.fetch([(web.url, "small")], refresh=False)
    before = packs(tmp_path)
    with pytest.raises(IntegrityError, match=f"sent more than {LIMIT} bytes"):
        mirrors.fetch([(web.url, "large")], refresh=False)
    assert packs(tmp_path) == before, "the partial pack is removed"
    commit = web.git("rev-parse", "large^{commit}")
    with pytest.raises(IntegrityError, match="sent more than"):
        mirrors.fetch_commits([(web.url, commit)])
    assert mirrors.tag(web.url, "small").annotated


def test_a_fetch_keeps_the_configured_free_space(web: Repo, tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    free = disk.f_bavail * disk.f_frsize
    for limits, tag, error, problem in (
        (GitLimits(min_free=2 * free), "small", StateError, "MiB are free"),
        (GitLimits(parallel=free // LIMIT), "large", IntegrityError, "what the disk has to spare"),
    ):
        with pytest.raises(error, match=problem):
            make.git(tmp_path / "mirrors", limits=limits).fetch([(web.url, tag)], refresh=False)
