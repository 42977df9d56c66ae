"""Tests of what differs on Debian 13 (Puppet 8, systemd 257) and Debian 14 (OpenVox 9).

They are long, because each Debian is installed first. `scripts/test-on debian14` runs the whole
suite there.
"""

import os
import subprocess

import pytest

from tests.rigs.long import LONG
from tests.rigs.node import REPOSITORY

DIFFERS = (
    "tests/fleet/bus/test_etcd.py",
    "tests/fleet/bus/test_nats_link.py",
    "tests/fleet/bus/test_proxy.py",
    "tests/fleet/bus/test_client_sockets.py",
    "tests/node/enc/test_https.py",
    "tests/base/formats",
    "tests/base/machine",
    "tests/modules",
    "tests/node/puppet",
    "tests/node/releases/forge/test_forge.py",
    "tests/fleet/inventory/test_facter.py",
    "tests/fleet/trust",
    "tests/platforms/test_services.py::test_the_services_start_run_triggers_and_log_with_name_and_priority",
    "tests/platforms/test_package.py::test_the_package_installs_all_that_a_node_needs_and_its_files_stay_unchanged",
)
# One test file for each difference: Puppet and Ruby, Facter, TLS, sockets, systemd, the package.
SAMPLE = {
    "debian13": (
        "tests/fleet/bus/test_nats_link.py",
        "tests/fleet/bus/test_client_sockets.py",
        "tests/node/enc/test_https.py",
        "tests/base/machine",
        "tests/modules/test_trigger_module.py::test_puppet_sends_only_refreshed_triggers",
        "tests/node/puppet/test_lean_start.py",
        "tests/fleet/inventory/test_facter.py",
        "tests/platforms/test_package.py::test_the_package_installs_all_that_a_node_needs_and_its_files_stay_unchanged",
    ),
    # Python 3.14, Ruby's json 3, OpenFact 6 and what OpenVox 9 removed.
    "debian14": (
        "tests/base/machine",
        "tests/modules/test_trigger_module.py::test_puppet_sends_only_refreshed_triggers",
        "tests/node/puppet/test_lean_start.py",
        "tests/node/puppet/test_openvox9.py",
        "tests/fleet/inventory/test_facter.py",
    ),
}
# Seconds; an idle machine needs a tenth of it, or a third if it installs that Debian first.
PATIENCE = 1800
SHOWN = 8_000  # characters of pytest's output there


def failed(output: str) -> list[str]:
    """Return the lines of pytest that name failed tests, because a long report is cut."""
    return [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]


@LONG
@pytest.mark.slow(seconds=300)
@pytest.mark.parametrize("system", SAMPLE)
@pytest.mark.parametrize("how_many", ["sample", "all"])
def test_tests_of_what_differs_pass_on_another_debian(system: str, how_many: str) -> None:
    tests = SAMPLE[system] if how_many == "sample" else [*DIFFERS, "--long"]
    # pytest's variables describe this session, not the one on Debian 13.
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [REPOSITORY / "scripts" / "test-on", system, "-q", "--color=no", *tests],
        # No browser is needed, which has 100 megabytes: no test of the dashboard is among these.
        env={**outside, "JOBS": "2", "LOCALPUPPET_BROWSER": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, "\n".join([*failed(done.stdout), done.stdout[-SHOWN:]])
    assert how_many == "all" or "skipped" not in done.stdout.splitlines()[-1]
