"""localpuppet's Debian package under a real systemd: installed, and changed during a run."""

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from localpuppet.main import SECTIONS
from tests.platforms.conftest import DEBIANS, SYSTEM
from tests.rigs.long import with_sample
from tests.rigs.node import completed
from tests.rigs.systemd import (
    COMMAND,
    FORMS,
    GATE,
    ME,
    RUNS_PUPPET,
    Machine,
    at_the_gate,
    open_gate,
)

FIRST, NEWER = "/root/first.deb", "/root/newer.deb"
DPKG = {"upgraded": ("dpkg", "-i", NEWER), "removed": ("dpkg", "-r", "localpuppet")}
LIBRARY = "/usr/lib/localpuppet"


@pytest.fixture(scope="module")
def packages(made: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return two packages of this clone, by their path in a machine."""
    directory = tmp_path_factory.mktemp("packages")
    suite = DEBIANS[SYSTEM]
    (first,) = made.glob(f"localpuppet_*+{suite}_*.deb")
    completed("dpkg-deb", "-R", first, directory / "newer")
    control = directory / "newer/DEBIAN/control"
    control.write_text(re.sub(r"(?m)^(Version: .*)$", r"\1.1", control.read_text()))
    completed(
        "dpkg-deb",
        "--root-owner-group",
        "-Znone",
        "-b",
        directory / "newer",
        directory / "newer.deb",
    )
    return {FIRST: first, NEWER: directory / "newer.deb"}


@pytest.fixture
def installed(machine: Machine, packages: dict[str, Path]) -> Iterator[Machine]:
    """A machine whose localpuppet is from the package, not from the clone."""
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
    """Assert that the active run succeeded, and that afterwards an agent runs, or none."""
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
        assert not machine.exists(LIBRARY)
        assert machine.exists("/etc/puppet/localpuppet.yaml")


def test_the_package_installs_all_that_a_node_needs_and_its_files_stay_unchanged(
    installed: Machine,
) -> None:
    machine = installed
    machine.app("file { '/run/passed': content => 'yes' }")
    done = machine.node("apply", "-v")
    assert f"--external_nodes {LIBRARY}/lib/" in done.out
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
    for file in ("localpuppet.yaml", "localpuppet-input", "localpuppet-policy"):
        assert ".SH DESCRIPTION" in machine.run("zcat", f"/usr/share/man/man5/{file}.5.gz").out
    machine.run("bash", "-n", "/usr/share/bash-completion/completions/localpuppet")
    # The files are as they were packed, and the directory has no others but compiled ones.
    assert machine.run("dpkg", "-V", "localpuppet").out == ""
    packed = set(machine.run("dpkg", "-L", "localpuppet").out.splitlines())
    there = machine.run("find", LIBRARY, "-name", "__pycache__", "-prune", "-o", "-print")
    assert set(there.out.splitlines()) <= packed
    machine.run("mkdir", "/var/lib/localpuppet-web", "/var/lib/localpuppet-puppetdb")
    machine.run("mkfifo", "/var/lib/localpuppet-web/lock")
    machine.run("timeout", "60", "dpkg", "-P", "localpuppet")
    for path in (
        LIBRARY,
        "/usr/bin/localpuppet",
        "/var/lib/localpuppet",
        "/var/lib/localpuppet-web",
    ):
        assert not machine.exists(path)


@pytest.mark.parametrize(
    ("form", "how"),
    with_sample(product(FORMS, DPKG), ("split", "upgraded")),
)
def test_a_run_of_the_agent_succeeds_while_the_package_changes(
    installed: Machine, form: str, how: str
) -> None:
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
def test_a_run_of_the_agent_can_upgrade_or_remove_the_package(installed: Machine, how: str) -> None:
    machine = installed
    machine.app(
        f"exec {{ '{' '.join(DPKG[how])}': path => ['/usr/sbin', '/usr/bin', '/sbin', '/bin'] }}"
    )
    start(machine, "single")
    machine.peer("trigger", ME)
    machine.until(machine.records)
    seen_through(machine, "single", how)


@pytest.mark.parametrize("how", with_sample(DPKG, "removed"))
def test_a_run_by_hand_succeeds_while_the_package_changes(installed: Machine, how: str) -> None:
    machine = installed
    machine.app(GATE)
    machine.run("mkfifo", "/run/gate")
    machine.run("systemd-run", "--collect", COMMAND, "apply")
    machine.until(lambda: machine.exists("/run/there"))
    machine.run(*DPKG[how])
    open_gate(machine)
    machine.until(lambda: machine.records()[-1]["state"] == "finished")
    assert machine.records()[-1]["outcome"] == "changed"
