"""What differs on Debian 13, tested there: Puppet 8, Python 3.13's TLS and sockets, systemd 257.

The suite runs a sample of it, and `scripts/slow` all. The rest of the suite runs there with
`scripts/test-on debian13`.
"""

import os
import subprocess

import pytest

from tests.rigs.long import with_sample
from tests.rigs.node import REPOSITORY

DIFFERS = (
    "tests/fleet/bus/etcd/test_etcd.py",
    "tests/fleet/bus/nats/test_link.py",
    "tests/fleet/bus/proxy",
    "tests/fleet/bus/test_client_sockets.py",
    "tests/node/enc/test_https.py",
    "tests/base/formats",
    "tests/base/machine",
    "tests/modules",
    "tests/node/puppet",
    "tests/node/releases/forge/test_forge.py",
    "tests/fleet/trust",
    "tests/platforms/test_services.py::test_it_is_ready_and_hears_and_ends",
    "tests/platforms/test_package.py::test_it_brings_what_a_node_needs_and_nothing_else_changes",
)
# One test file for each difference: Puppet 8 and Ruby 3.3, TLS, sockets, systemd, the package.
SAMPLE = (
    "tests/fleet/bus/nats/test_link.py",
    "tests/fleet/bus/test_client_sockets.py",
    "tests/node/enc/test_https.py",
    "tests/base/machine",
    "tests/modules/test_trigger_module.py::test_puppet_sends_only_refreshed_triggers",
    "tests/node/puppet/test_lean_start.py",
    "tests/platforms/test_package.py::test_it_brings_what_a_node_needs_and_nothing_else_changes",
)
# Seconds; an idle machine takes a tenth of it, and a third when it has to make that Debian first.
PATIENCE = 1800
SHOWN = 8_000  # characters of what pytest says in there


def failed(said: str) -> list[str]:
    """Return the lines of pytest that name what failed: a report may be cut behind them."""
    return [line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))]


@pytest.mark.slow(seconds=300)
@pytest.mark.parametrize("how_many", with_sample(["sample", "all"], "sample"))
def test_what_differs_passes_there(how_many: str) -> None:
    tests = SAMPLE if how_many == "sample" else [*DIFFERS, "--long"]
    # pytest's own variables are about us, and not about the one that runs in there.
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [REPOSITORY / "scripts" / "test-on", "debian13", "-q", "--color=no", *tests],
        # The dashboard and PuppetDB's clients are not among them: a browser has 100 megabytes.
        env={**outside, "JOBS": "2", "LOCALPUPPET_BROWSER": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, "\n".join([*failed(done.stdout), done.stdout[-SHOWN:]])
    assert "skipped" not in done.stdout.splitlines()[-1]
