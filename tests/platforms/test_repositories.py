"""The apt and yum repositories: served over loopback, and installed from as install.md says."""

import os
import platform
import re
import subprocess
import threading
import tomllib
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.platforms.conftest import DEBIANS, SYSTEM, build
from tests.rigs.long import LONG, with_sample
from tests.rigs.node import REPOSITORY, completed

# What an rpm of SLES 15 needs and Debian 12 has under other names: Python 3.11 is the same.
STAND_IN = """\
Name: stand-in
Version: 1
Release: 1
Summary: What Debian 12 has and its rpm does not know
License: Apache-2.0
BuildArch: noarch
Provides: python311, python(abi) = 3.11, git-core, libseccomp2, libstdc++6
Provides: openvox-agent, systemd, /bin/sh
%description
See the summary.
%files
"""
FIRST_RUN = """
set -e
mkdir -p /root/site/modules/app/trunk/app/manifests
cd /root/site
echo 'modulepath: []' >modules/app/trunk/manifest.yaml
echo "class app { notify { 'hello': } }" >modules/app/trunk/app/manifests/init.pp
echo '{"app": "app/trunk", "classes": ["app"]}' >input.yaml
touch /root/before
PATH=/usr/sbin:/usr/bin:/sbin:/bin localpuppet --root /root/site apply
localpuppet --root /root/site status --json
find /usr/lib/localpuppet -newer /root/before
"""


@pytest.fixture(scope="module")
def served(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The URL of signed repositories with these packages, and their public key."""
    site, home = tmp_path_factory.mktemp("site") / "new", tmp_path_factory.mktemp("gpg")
    home.chmod(0o700)
    env = {**os.environ, "GNUPGHOME": str(home)}
    words = ("--batch", "--passphrase", "", "--quick-generate-key", "packages@example.com")
    completed("gpg", *words, env=env)
    making = ("repositories", made, site, "packages@example.com")
    completed(REPOSITORY / "scripts/build", *making, env=env)
    completed("gpgconf", "--kill", "all", env=env)
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", site / "localpuppet.asc"
        server.shutdown()


@pytest.fixture
def system(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A Debian without localpuppet, whose changes are in memory."""
    base = completed(REPOSITORY / "scripts/chroot", request.param, timeout=3600).out.strip()
    top = tmp_path / "system"
    top.mkdir()
    completed("mount", "-t", "tmpfs", "-o", "mode=755", "system", top)
    for name in ("upper", "work", "root"):
        (top / name).mkdir()
    layers = f"lowerdir={base},upperdir={top}/upper,workdir={top}/work"
    completed("mount", "-t", "overlay", "system", "-o", layers, top / "root")
    completed("mount", "-t", "proc", "proc", top / "root/proc")
    yield top / "root"
    for mounted in ("root/proc", "root", "."):
        completed("umount", "-l", top / mounted)


def inside(system: Path, script: str) -> str:
    env = {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    return completed("chroot", system, "sh", "-euc", script, env=env, timeout=600).out


def applied(system: Path) -> None:
    """Assert that a first run is recorded, and that it wrote nothing below the library."""
    out = inside(system, FIRST_RUN)
    assert "Notice: hello" in out
    assert re.search(r'"outcome": "changed"', out)
    assert "/usr/lib/localpuppet" not in out.splitlines()[-1]


@pytest.mark.slow(seconds=90)
@pytest.mark.parametrize(
    ("system", "suite"),
    with_sample(DEBIANS.items(), (SYSTEM, DEBIANS[SYSTEM])),
    indirect=["system"],
)
def test_apt_installs_from_the_signed_repository(
    served: tuple[str, Path], system: Path, suite: str
) -> None:
    url, key = served
    (system / "etc/apt/keyrings/localpuppet.asc").write_bytes(key.read_bytes())
    sources = system / "etc/apt/sources.list.d/localpuppet.list"
    sources.write_text(
        f"deb [signed-by=/etc/apt/keyrings/localpuppet.asc] {url}/apt {suite} main\n"
    )
    only = f"-o Dir::Etc::SourceList=/{sources.relative_to(system)} -o Dir::Etc::SourceParts=-"
    inside(system, f"apt-get update -qq {only} && apt-get install -y -qq localpuppet")
    assert inside(system, "dpkg -V localpuppet") == ""
    python = "/usr/lib/localpuppet/bin/python -c"
    loaded = inside(system, f"{python} 'import sqlite3; print(sqlite3.sqlite_version)'").strip()
    targets = tomllib.loads((REPOSITORY / "scripts/packages/targets.toml").read_text())
    assert targets[suite.replace("deb", "debian")]["sqlite"] == loaded
    inside(system, f"{python} 'import localpuppet.node.cli.progress_line'")  # what rich is for
    sizes = inside(system, "find /usr/lib/localpuppet -type f -printf '%s\\n'")  # with bytecode
    assert sum(map(int, sizes.split())) < 70_000_000
    applied(system)
    inside(system, "apt-get remove -y -qq localpuppet; test ! -e /usr/lib/localpuppet")


@LONG
@pytest.mark.slow(seconds=60)
@pytest.mark.parametrize("system", ["debian12"], indirect=True)
def test_dnf_installs_a_package_that_runs(
    served: tuple[str, Path], system: Path, tmp_path: Path
) -> None:
    url, _ = served
    (tmp_path / "stand-in.spec").write_text(STAND_IN)
    top = ("--define", f"_topdir {tmp_path}/rpm")
    completed("rpmbuild", "-bb", "--quiet", *top, tmp_path / "stand-in.spec")
    (stand_in,) = (tmp_path / "rpm").rglob("*.rpm")
    # As install.md: the index is signed, and names the packages by digest.
    (system / "etc/yum.repos.d").mkdir(parents=True, exist_ok=True)
    key = f"{url}/localpuppet.asc"
    repository = f"{url}/yum/sles15/{platform.machine()}"
    (tmp_path / "localpuppet.repo").write_text(
        f"[localpuppet]\nname=localpuppet\nbaseurl={repository}\nrepo_gpgcheck=1\ngpgcheck=0\n"
        f"gpgkey={key}\n"
    )
    # A short path: the agent of gpg, which dnf starts and leaves, has a socket below it.
    with TemporaryDirectory(prefix="dnf-") as cache:
        options = (f"--installroot={system}", f"--setopt=reposdir={tmp_path}", "--releasever=15")
        words = ("dnf", "-y", "-q", *options, f"--setopt=cachedir={cache}", "install")
        done = completed(*words, "localpuppet", stand_in, timeout=600, check=False)
        for home in Path(cache).glob("*/pubring"):
            completed("gpgconf", "--homedir", home, "--kill", "all")
    assert done.code == 0, done.err
    applied(system)
    rpm = ["rpm", f"--root={system}"]
    assert "localpuppet" in completed(*rpm, "-qa").out
    completed(*rpm, "-e", "localpuppet")
    assert not (system / "usr/lib/localpuppet").exists()


@pytest.mark.slow(seconds=60)
@LONG
def test_a_second_build_gives_the_same_bytes(made: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    build(again, "debian12", "sles15")
    names = sorted(path.name for path in again.iterdir())
    assert len(names) == 6  # with what stands beside each package
    assert [
        name for name in names if (made / name).read_bytes() != (again / name).read_bytes()
    ] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("packages", "--target", "debian10"), "debian10 is no target"),
        (("packages", "--arch", "riscv64"), "riscv64 is no architecture"),
        (("packages", "--target", "el9", "--arch", "aarch64"), "el9 is not built for aarch64"),
        (("repositories", "EMPTY", "NEW"), "has no packages"),
        (("ship",), "scripts/build wheel"),
    ],
)
def test_what_cannot_be_built_is_refused_with_a_reason(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "EMPTY").mkdir()
    places = {"EMPTY": tmp_path / "EMPTY", "NEW": tmp_path / "NEW"}
    given = [places.get(word, word) for word in words]
    given += [tmp_path / "out"] if words[0] == "packages" else []
    done = subprocess.run(
        [REPOSITORY / "scripts/build", *given], capture_output=True, text=True, check=False
    )
    assert (done.returncode != 0, message in done.stderr) == (True, True), done.stderr
