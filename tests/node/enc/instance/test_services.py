"""Metadata services over real HTTP: the requests of a node, and misbehaving services."""

import socket
from collections.abc import Callable
from ipaddress import IPv4Address

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.node.enc.instance.instance_data import InstanceData, Service
from localpuppet.node.enc.instance.services import (
    DhcpLease,
    MetadataClient,
    MetadataServer,
    ask_service,
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


@EVERY
def test_an_answer_without_user_data_is_accepted(service: Service) -> None:
    with metadata_service(PAGES[service]("i-0a1b", None)) as running:
        assert ask_service(service, client(running)).user_data == b""


@EVERY
def test_an_answer_without_an_instance_id_is_an_error(service: Service) -> None:
    with (
        metadata_service({}) as running,
        pytest.raises(UnavailableError, match="does not have it"),
    ):
        ask_service(service, client(running))


def test_ec2_is_queried_only_with_a_token() -> None:
    with metadata_service(metadata.ec2("i-0a1b", USER_DATA)) as running:
        running.tokens = False  # a service with version 1 only
        with pytest.raises(UnavailableError, match="does not have it"):
            ask_service(Service.EC2, client(running))
        assert running.requests == ["PUT /latest/api/token"]


@EVERY
@pytest.mark.parametrize(
    ("manners", "message"),
    [
        (metadata.never, "timed out"),
        (metadata.trickle, "timed out"),
        (metadata.trickling_body, "timed out"),
        (metadata.huge, "too large"),
        (metadata.endless, "has no length"),
        (metadata.cut, "broke after 4 of 4000 bytes"),
        (metadata.redirect, "answered 302"),
        (metadata.error, "answered 500"),
        (metadata.no_http, "did not answer with HTTP"),
        (metadata.many_headers, "did not answer with HTTP"),
        (metadata.reset, "cannot be asked"),
        (metadata.no_chunks, "did not answer with HTTP"),
        (metadata.rubbish, "sent an invalid answer"),
    ],
)
def test_a_misbehaving_service_is_an_error(
    service: Service, manners: Manners, message: str
) -> None:
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


def _no_lease() -> DhcpLease | None:
    raise AssertionError("the search for a lease is not expected")


@pytest.mark.parametrize("service", [Service.EC2, Service.OPENSTACK])
def test_a_service_at_a_fixed_address_is_link_local(service: Service) -> None:
    server = server_of(service, _no_lease)
    assert server.address.is_link_local
    assert server.source is None


def test_cloudstack_is_queried_from_the_address_of_the_lease() -> None:
    lease = DhcpLease(address=IPv4Address("10.1.1.57"), server=IPv4Address("10.1.1.1"))
    no_lease: Callable[[], DhcpLease | None] = lambda: None  # noqa: E731 - a name for its type
    server = server_of(Service.CLOUDSTACK, lambda: lease)
    assert (server.address, server.source) == (lease.server, lease.address)
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
