"""The address of CloudStack's service: from the newest lease, on the subnet of the node."""

import os
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.enc.instance.services import DhcpLease, newest_lease, parse_lease

DHCLIENT = """\
default-duid "\\000\\001\\000\\001";
lease {{
  interface "eth0";
  fixed-address 10.1.1.9;
  option subnet-mask 255.255.255.0;
  option dhcp-server-identifier 10.1.1.8;
  expire 4 2026/11/19 14:00:00;
}}
lease {{
  interface "eth0";
  fixed-address {address};
  option subnet-mask {mask};
  option domain-name "x; option dhcp-server-identifier 192.0.2.1;";
  option dhcp-server-identifier {server};
  expire 0 2026/11/22 14:00:00;
}}
"""
NETWORKD = """\
# This is private data. Do not parse.
ADDRESS={address}
NETMASK={mask}
ROUTER=10.1.1.254
SERVER_ADDRESS={server}
NEXT_SERVER=192.0.2.1
"""
FORMS = pytest.mark.parametrize("form", [DHCLIENT, NETWORKD], ids=["dhclient", "networkd"])


def leased(form: str, server: str = "10.1.1.1", *, mask: str = "255.255.255.0") -> str:
    return form.format(address="10.1.1.57", mask=mask, server=server)


@FORMS
def test_the_last_lease_names_its_dhcp_server(form: str) -> None:
    lease = parse_lease(leased(form))
    assert lease is not None
    assert (str(lease.address), str(lease.server)) == ("10.1.1.57", "10.1.1.1")


@FORMS
@pytest.mark.parametrize(
    "server",
    [
        "10.1.2.1",  # the next subnet
        "192.0.2.1",  # anywhere
        "127.0.0.1",
        "169.254.169.254",
        "10.1.1.57",  # this machine
        "10.1.1.0",
        "10.1.1.255",
        "224.0.0.1",
    ],
)
def test_a_server_outside_the_subnet_is_refused(form: str, server: str) -> None:
    with pytest.raises(InvalidInputError, match="own subnet"):
        parse_lease(leased(form, server))


@FORMS
@pytest.mark.parametrize("mask", ["128.0.0.0", "254.0.0.0", "0.0.0.255"])
def test_a_subnet_larger_than_a_class_a_network_is_refused(form: str, mask: str) -> None:
    with pytest.raises(InvalidInputError, match="own subnet"):
        parse_lease(leased(form, "11.1.1.1", mask=mask))


@FORMS
@pytest.mark.parametrize("server", ["10.1.1.999", "....1111", "10.1.1.1.1"])
def test_a_malformed_address_is_refused(form: str, server: str) -> None:
    with pytest.raises(InvalidInputError, match="malformed"):
        parse_lease(leased(form, server))


@pytest.mark.parametrize(
    "text", ["", "lease {\n}\n", "ADDRESS=10.1.1.57\n", "option dhcp-server-identifier 10.1.1.1;\n"]
)
def test_an_incomplete_lease_is_not_used(text: str) -> None:
    assert parse_lease(text) is None


def write(path: Path, text: str, *, age: int) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    os.utime(path, (1_800_000_000 - age, 1_800_000_000 - age))


def found(*directories: Path) -> DhcpLease | None:
    return newest_lease(directories, owners=[])


def test_the_newest_lease_file_is_used(tmp_path: Path) -> None:
    dhcp, netif = tmp_path / "dhcp", tmp_path / "netif"
    write(dhcp / "dhclient.eth0.leases", leased(DHCLIENT, "10.1.1.2"), age=50)
    write(netif / "2", leased(NETWORKD, "10.1.1.3"), age=40)
    write(netif / "3", "", age=10)  # an interface without a lease
    write(dhcp / "dhclient6.eth0.leases", leased(DHCLIENT, "10.1.1.4"), age=5)
    write(dhcp / "other.leases", leased(DHCLIENT, "10.1.1.5"), age=0)
    lease = found(tmp_path / "missing", dhcp, netif)
    assert lease is not None
    assert str(lease.server) == "10.1.1.3"
    assert found(tmp_path / "missing") is None


def test_a_lease_that_others_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "dhclient.leases"
    path.write_text(leased(DHCLIENT))
    path.chmod(0o666)
    with pytest.raises(InvalidInputError, match="writable by others"):
        found(tmp_path)


def test_a_refused_lease_names_its_file(tmp_path: Path) -> None:
    path = tmp_path / "dhclient.leases"
    path.write_text(leased(DHCLIENT, "192.0.2.1"))
    with pytest.raises(InvalidInputError) as refused:
        found(tmp_path)
    assert refused.value.where == str(path)
