"""Names and shapes of published facts, the same for Facter 4 and OpenFact: run on each Debian.

Facter 4.3 is in Debian 12, Facter 4.10 in Debian 13, OpenFact 6 in Debian 14.
"""

import json
from typing import Any

import pytest

from tests.rigs.node import Node, completed


def by_name(names: dict[type, str]) -> dict[str, type]:
    return {name: shape for shape, listed in names.items() for name in listed.split()}


# What each machine has, a container included: Facter finds `virtual` only if it may read the
# environment of process 1.
STRUCTURED = by_name(
    {
        str: """facterversion filesystems identity.group identity.user kernel kernelmajversion
            kernelrelease kernelversion memory.system.total networking.fqdn networking.hostname
            networking.interfaces.lo.ip networking.interfaces.lo.netmask
            networking.interfaces.lo.network os.architecture os.distro.codename
            os.distro.description os.distro.id os.distro.release.full os.distro.release.major
            os.family os.hardware os.name os.release.full os.release.major path processors.isa
            puppetversion ruby.platform ruby.sitedir ruby.version timezone""",
        bool: "fips_enabled identity.privileged os.selinux.enabled",
        int: """identity.gid identity.uid memory.system.total_bytes networking.interfaces.lo.mtu
            processors.count processors.physicalcount""",
        list: "networking.interfaces.lo.bindings processors.models",
    }
)
LEGACY = by_name(
    {
        str: """architecture fqdn gid hardwareisa hardwaremodel hostname id interfaces ipaddress_lo
            lsbdistcodename lsbdistdescription lsbdistid lsbdistrelease lsbmajdistrelease
            memorysize netmask_lo network_lo operatingsystem operatingsystemmajrelease
            operatingsystemrelease osfamily rubyplatform rubysitedir rubyversion""",
        int: "mtu_lo physicalprocessorcount processorcount",
        bool: "selinux",
    }
)
# A node's name decides these, not its Facter.
OF_THE_NAME = {"domain", "fqdn", "hostname"}


@pytest.fixture
def published(node: Node) -> dict[str, Any]:
    """The facts of a real run, as another node's query gets them."""
    node.settings(bus="sqlite", node="web01.example.com")
    node.app("")
    node.run("apply", code=0)
    node.run("inventory", "publish", code=0)
    asked = node.run("query", "", "--show", ",".join([*STRUCTURED, *LEGACY]), "--json", code=0)
    (found,) = asked.json["nodes"]
    facts: dict[str, Any] = found["facts"]
    return facts


def of_facter() -> dict[str, Any]:
    """Return the legacy facts of the installed Facter that a table names."""
    answer = completed("facter", "--show-legacy", "--json", *LEGACY).out
    return {name: value for name, value in json.loads(answer).items() if value is not None}


def test_a_node_publishes_the_same_shapes_with_any_facter(published: dict[str, Any]) -> None:
    wanted = {**STRUCTURED, **LEGACY}
    shapes = {name: type(published.get(name)) for name in wanted}
    assert shapes == wanted, f"with Facter {published['facterversion']}"


def test_legacy_facts_have_the_values_that_facter_gives_them(published: dict[str, Any]) -> None:
    own = {name: value for name, value in of_facter().items() if name not in OF_THE_NAME}
    assert {name: published.get(name) for name in own} == own
    assert {"operatingsystem", "osfamily", "processorcount", "ipaddress_lo"} <= own.keys()
