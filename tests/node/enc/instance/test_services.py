"""Metadata services over real HTTP: the requests of a node, and misbehaving services."""

import os
import socket
from collections.abc import Callable
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.node.enc.instance_data import InstanceData, Service
from localpuppet.node.enc.metadata_services import (
    MetadataClient,
    MetadataServer,
    ask_service,
    newest_lease,
    parse_lease,
    server_of,
)
from tests.node.enc.instance import metadata
from tests.node.enc.instance.metadata import Manners, MetadataService, metadata_service
from tests.rigs.waiting import PATIENCE

HERE = MetadataServer(address=IPv4Address("127.0.0.1"), source=None)
USER_DATA = b"role=web\n"
PAGES = {
    Service.EC2: metadata.ec2,
    Service.OPENSTACK: metadata.openstack,
    Service.CLOUDSTACK: metadata.cloudstack,
}
EVERY = pytest.mark.parametrize("service", list(Service))


def client(running: MetadataService, *, timeout: float = PATIENCE) -> MetadataClient:
    return MetadataClient(HERE, port=running.server_port, timeout=timeout)


@EVERY
def test_a_service_returns_instance_id_and_user_data(service: Service) -> None:
    with metadata_service(PAGES[service]("i-0a1b", USER_DATA)) as running:
        found = ask_service(service, client(running))
        assert found == InstanceData(source=service, instance_id="i-0a1b", user_data=USER_DATA)
        running.pages = PAGES[service]("i-0a1b", None)
        assert ask_service(service, client(running)).user_data == b""
        running.pages = {}
        with pytest.raises(UnavailableError, match="does not have it"):
            ask_service(service, client(running))


def test_ec2_is_queried_only_with_a_token() -> None:
    with metadata_service(metadata.ec2("i-0a1b", USER_DATA)) as running:
        running.tokens = False  # a service with version 1 only
        with pytest.raises(UnavailableError, match="does not have it"):
            ask_service(Service.EC2, client(running))
        assert running.requests == ["PUT /latest/api/token"]


def reset(asked: Any) -> None:
    asked.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    asked.connection.close()


MISBEHAVIOURS: dict[str, tuple[Manners, str]] = {
    "silence": (lambda asked: asked.server.finished.wait(60), "timed out"),
    "a huge body": (lambda asked: asked.send(200, b"x" * 3_000_000), "too large"),
    "a redirect": (
        lambda asked: asked.send(302, b"", Location=f"http://127.0.0.1:{asked.server.server_port}"),
        "answered 302",
    ),
    "an error": (lambda asked: asked.send(500, b""), "answered 500"),
    "another protocol": (
        lambda asked: asked.wfile.write(b"SECRET-2.0\r\n\x00\x1b[31m\r\n"),
        "did not answer with HTTP",
    ),
    "10,000 headers": (
        lambda asked: asked.wfile.write(b"HTTP/1.0 200 OK\r\n" + b"X: y\r\n" * 10_000 + b"\r\n"),
        "did not answer with HTTP",
    ),
    "a reset connection": (reset, "cannot be asked"),
    "no chunks after their header": (
        lambda asked: asked.wfile.write(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nSECRET\r\n"
        ),
        "did not answer with HTTP",
    ),
    "no instance id": (
        lambda asked: asked.send(200, b"\xff\x00 <html>\r\nX-Evil: \x1b[31m</html>"),
        "sent an invalid answer",
    ),
}


@EVERY
@pytest.mark.parametrize(("manners", "message"), MISBEHAVIOURS.values(), ids=MISBEHAVIOURS)
def test_a_misbehaving_service_is_named(service: Service, manners: Manners, message: str) -> None:
    for seconds in (0.2, 4, 32) if "timed" in message else (PATIENCE,):
        with metadata_service(PAGES[service]("i-0a1b", USER_DATA)) as running:
            running.manners = manners
            with pytest.raises(UnavailableError, match=message) as refused:
                ask_service(service, client(running, timeout=seconds))
            requests = len(running.requests)
        if requests:  # a busy machine may take longer than that for the request
            break
    assert requests == 1  # localpuppet follows no redirect, and does not retry
    assert "\x1b" not in str(refused.value)
    assert "SECRET" not in str(refused.value)


@EVERY
def test_too_large_user_data_is_an_error(service: Service) -> None:
    """All earlier answers of the service are correct."""
    with (
        metadata_service(PAGES[service]("i-0a1b", b"x" * 1_100_000)) as running,
        pytest.raises(UnavailableError, match="too large"),
    ):
        ask_service(service, client(running))


def test_a_service_that_refuses_connections_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(UnavailableError, match="refused"):
        ask_service(Service.EC2, MetadataClient(HERE, port=port, timeout=PATIENCE))


def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with metadata_service({}) as proxy, metadata_service(metadata.ec2("i-0a1b", None)) as running:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.server_port}")
        assert ask_service(Service.EC2, client(running)).instance_id == "i-0a1b"
        assert proxy.requests == []


def _no_lease() -> MetadataServer | None:
    raise AssertionError("the search for a lease is not expected")


@pytest.mark.parametrize("service", [Service.EC2, Service.OPENSTACK])
def test_a_service_at_a_fixed_address_is_link_local(service: Service) -> None:
    server = server_of(service, _no_lease)
    assert server.address.is_link_local
    assert server.source is None


def test_cloudstack_is_queried_from_the_address_of_the_lease() -> None:
    lease = MetadataServer(address=IPv4Address("10.1.1.1"), source=IPv4Address("10.1.1.57"))
    no_lease: Callable[[], MetadataServer | None] = lambda: None  # noqa: E731 - a name for its type
    assert server_of(Service.CLOUDSTACK, lambda: lease) == lease
    with pytest.raises(UnavailableError, match="no DHCP lease"):
        server_of(Service.CLOUDSTACK, no_lease)


def test_a_lease_for_the_address_of_another_machine_reaches_no_service() -> None:
    """An image may contain the lease of the machine from which it was made."""
    with metadata_service(metadata.cloudstack("i-0a1b", None)) as running:
        elsewhere = MetadataServer(address=HERE.address, source=IPv4Address("192.0.2.57"))
        with pytest.raises(UnavailableError, match="cannot be asked"):
            ask_service(
                Service.CLOUDSTACK,
                MetadataClient(elsewhere, port=running.server_port, timeout=PATIENCE),
            )
        assert running.requests == []


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
    assert (str(lease.source), str(lease.address)) == ("10.1.1.57", "10.1.1.1")


@FORMS
def test_a_malformed_server_or_one_outside_a_subnet_of_class_a_is_refused(form: str) -> None:
    anywhere = ("192.0.2.1", "127.0.0.1", "169.254.169.254", "224.0.0.1")
    this_machine, next_subnet = "10.1.1.57", "10.1.2.1"
    for server in (*anywhere, this_machine, next_subnet, "10.1.1.0", "10.1.1.255"):
        with pytest.raises(InvalidInputError, match="own subnet"):
            parse_lease(leased(form, server))
    for mask in ("128.0.0.0", "254.0.0.0", "0.0.0.255"):
        with pytest.raises(InvalidInputError, match="own subnet"):
            parse_lease(leased(form, "11.1.1.1", mask=mask))
    for server in ("10.1.1.999", "....1111", "10.1.1.1.1"):
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


def found(*directories: Path) -> MetadataServer | None:
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
    assert str(lease.address) == "10.1.1.3"
    assert found(tmp_path / "missing") is None


def test_a_refused_lease_names_its_file(tmp_path: Path) -> None:
    path = tmp_path / "dhclient.leases"
    path.write_text(leased(DHCLIENT, "192.0.2.1"))
    with pytest.raises(InvalidInputError) as refused:
        found(tmp_path)
    assert refused.value.where == str(path)
    path.chmod(0o666)
    with pytest.raises(InvalidInputError, match="writable by others"):
        found(tmp_path)
