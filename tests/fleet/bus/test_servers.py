"""Which URLs are servers, and which names keys may have."""

from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.bus import layout
from localpuppet.fleet.bus.servers import Endpoint, Servers

ROOT = Path("/etc/puppet")


def servers(engine: str, **raw: Any) -> Servers:
    return Servers.from_dict(raw, engine=engine, root=ROOT, where="localpuppet.yaml: buses.x")


@pytest.mark.parametrize(
    ("engine", "url", "host", "port", "tls"),
    [
        ("etcd", "https://etcd1.example.com", "etcd1.example.com", 2379, True),
        ("etcd", "http://127.0.0.1:1/", "127.0.0.1", 1, False),
        ("nats", "tls://nats1.example.com", "nats1.example.com", 4222, True),
        ("nats", "nats://[::1]:4223", "::1", 4223, False),
    ],
)
def test_a_server(engine: str, url: str, host: str, port: int, tls: bool) -> None:
    assert Endpoint.parse(url, engine=engine) == Endpoint(url=url, host=host, port=port, tls=tls)


@pytest.mark.parametrize(
    ("engine", "url"),
    [
        ("etcd", "etcd1:2379"),
        ("etcd", "ftp://a"),
        ("etcd", "tls://a"),
        ("etcd", "http://u:p@a"),
        ("etcd", "http://@a"),
        ("etcd", "http://a:x"),
        ("etcd", "http://a/b"),
        ("etcd", "http://a?token=u:p"),
        ("etcd", "http://a\nb"),
        ("nats", "nats1:4222"),
        ("nats", "http://a:1"),
        ("nats", "nats://u:p@a:4222"),
        ("nats", "nats://a b"),
        ("nats", "tls://"),
    ],
)
def test_an_invalid_server_is_refused_with_its_place(engine: str, url: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        servers(engine, servers=[f"{'https' if engine == 'etcd' else 'tls'}://a", url])
    assert "buses.x.servers[1]" in str(caught.value)
    assert "u:p" not in str(caught.value)
    assert f"{url}://" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("address", ["::1", "fe80::1", "2001:db8::a"])
def test_an_ipv6_address_without_brackets_is_refused_with_the_right_form(address: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Endpoint.parse(f"nats://{address}:4222", engine="nats")
    assert "needs brackets" in str(caught.value)
    assert f"write nats://[{address}]:4222" in str(caught.value)


@pytest.mark.parametrize("half", ["certificate", "key", "user"])
def test_half_of_a_pair_is_refused(half: str) -> None:
    with pytest.raises(InvalidInputError, match=f"{half} needs"):
        servers("nats", servers=["tls://a"], **{half: "x"})


def test_settings_become_servers_with_defaults() -> None:
    found = servers("nats", servers=["tls://a"], ca="ca.pem", replicas=3, api="$JS.bus.API")
    assert found == Servers(
        endpoints=(Endpoint.parse("tls://a", engine="nats"),),
        ca=ROOT / "ca.pem",
        replicas=3,
        api="$JS.bus.API",
    )


@pytest.mark.parametrize("name", ["", "a/b", ".x", "-x", "a b", "x" * 101, "ä", "a\n"])
def test_names_of_leases(name: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a lease name"):
        layout.parse_lease_name(name)
