"""Our own Debian package under a real systemd: installed, upgraded and removed with a run on."""

import re
import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from localpuppet.main import SECTIONS
from tests.rigs.long import with_sample
from tests.rigs.node import REPOSITORY
from tests.rigs.systemd import (
    COMMAND,
    FORMS,
    GATE,
    ME,
    RUNS_PUPPET,
    Machine,
    at_the_gate,
    base,
    open_gate,
)

BUILD = REPOSITORY / "tests" / "rigs" / "build.sh"
FIRST, NEWER = "/root/first.deb", "/root/newer.deb"
DPKG = {"upgraded": ("dpkg", "-i", NEWER), "removed": ("dpkg", "-r", "localpuppet")}
OURS = "/usr/lib/localpuppet"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return two packages of this clone, by the path that they get in a machine."""
    directory = tmp_path_factory.mktemp("packages")
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            BUILD,
            base(),
            REPOSITORY,
            directory,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (first,) = directory.glob("localpuppet_*.deb")
    return {FIRST: first, NEWER: directory / "newer.deb"}


@pytest.fixture
def installed(machine: Machine, packages: dict[str, Path]) -> Iterator[Machine]:
    """A machine whose localpuppet is the package's; the clone is not used there any more."""
    for path, deb in packages.items():
        machine.copy(deb, path)
    machine.run("rm", COMMAND)
    machine.run("dpkg", "-i", FIRST)
    machine.run("ln", "-s", "/usr/bin/localpuppet", COMMAND)
    yield machine


def start(machine: Machine, form: str) -> None:
    machine.run("systemctl", "enable", "--now", *FORMS[form])
    machine.until(lambda: set(machine.active(*FORMS[form])) == {"active"})


def seen_through(machine: Machine, form: str, how: str) -> None:
    """See that the run that was on has ended well, and that an agent runs on, or nothing."""
    machine.until(lambda: machine.records()[-1]["state"] == "finished")
    wanted = "active" if how == "upgraded" else "inactive"
    machine.until(lambda: set(machine.active(*FORMS[form])) == {wanted})
    machine.settled()
    assert [record["outcome"] for record in machine.records()] == ["changed"]
    assert machine.run("systemctl", "--failed", "--no-legend").out == ""
    if how == "upgraded":
        assert machine.run("dpkg-query", "-W", "localpuppet").out.endswith(".1\n")
        done = machine.peer("trigger", ME, "--wait", "--wait-timeout", "60s")
        assert "changed" in done.out
    else:
        machine.until(lambda: machine.show(RUNS_PUPPET[form], "LoadState") == "not-found")
        assert not machine.exists(OURS)
        assert machine.exists("/etc/puppet/localpuppet.yaml")


def test_it_brings_what_a_node_needs_and_nothing_else_changes(installed: Machine) -> None:
    machine = installed
    machine.app("file { '/run/passed': content => 'yes' }")
    done = machine.node("apply", "-v")
    assert f"--external_nodes {OURS}/lib/" in done.out
    assert machine.read("/run/passed") == "yes"
    machine.run("mkdir", "/run/foreign")
    machine.write("/run/foreign/json.py", "raise SystemExit('code of another user')\n")
    machine.run("env", "PYTHONPATH=/run/foreign", "localpuppet", "--version")
    machine.run("getent", "passwd", "localpuppet")
    for units in FORMS.values():
        assert "localpuppet" not in machine.run("systemd-analyze", "verify", "--man=no", *units).err
    for verb in {name for names in SECTIONS.values() for name in names} - {"call"}:
        page = machine.run("zcat", f"/usr/share/man/man8/localpuppet-{verb}.8.gz").out
        assert re.search(rf"^\.B localpuppet {verb}$", page.replace("\\-", "-"), re.MULTILINE)
    machine.run("bash", "-n", "/usr/share/bash-completion/completions/localpuppet")
    # What was used is as it was packed, and nothing came to it.
    assert machine.run("dpkg", "-V", "localpuppet").out == ""
    machine.run("mkdir", "/var/lib/localpuppet-web", "/var/lib/localpuppet-puppetdb")
    machine.run("mkfifo", "/var/lib/localpuppet-web/lock")
    machine.run("timeout", "60", "dpkg", "-P", "localpuppet")
    for path in (OURS, "/usr/bin/localpuppet", "/var/lib/localpuppet", "/var/lib/localpuppet-web"):
        assert not machine.exists(path)


@pytest.mark.parametrize(
    ("form", "how"),
    with_sample(product(FORMS, DPKG), ("split", "upgraded")),
)
def test_a_run_of_the_agent_ends_well(installed: Machine, form: str, how: str) -> None:
    machine = installed
    machine.app(GATE)
    start(machine, form)
    at_the_gate(machine)
    machine.run(*DPKG[how])
    machine.run("systemctl", "daemon-reload")
    assert machine.active(RUNS_PUPPET[form]) == ["deactivating"]
    assert machine.show(RUNS_PUPPET[form], "TimeoutStopUSec") == "15min"
    open_gate(machine)
    seen_through(machine, form, how)


@pytest.mark.parametrize("how", with_sample(DPKG, "upgraded"))
def test_a_run_of_the_agent_can_do_it_itself(installed: Machine, how: str) -> None:
    machine = installed
    machine.app(
        f"exec {{ '{' '.join(DPKG[how])}': path => ['/usr/sbin', '/usr/bin', '/sbin', '/bin'] }}"
    )
    start(machine, "single")
    machine.peer("trigger", ME)
    machine.until(machine.records)
    seen_through(machine, "single", how)


@pytest.mark.parametrize("how", with_sample(DPKG, "removed"))
def test_a_run_by_hand_ends_well(installed: Machine, how: str) -> None:
    machine = installed
    machine.app(GATE)
    machine.run("mkfifo", "/run/gate")
    machine.run("systemd-run", "--collect", COMMAND, "apply")
    machine.until(lambda: machine.exists("/run/there"))
    machine.run(*DPKG[how])
    open_gate(machine)
    machine.until(lambda: machine.records()[-1]["state"] == "finished")
    assert machine.records()[-1]["outcome"] == "changed"
