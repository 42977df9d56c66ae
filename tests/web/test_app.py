"""From settings to access rules."""

import re
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.app import FleetApp
from localpuppet.node.app import NodeApp
from localpuppet.node.releases.release_records import StagedRecords
from localpuppet.web.access.rules import Visitor
from localpuppet.web.access.serving import ListenAddress
from localpuppet.web.app import DashboardAccess, WebApp
from tests.doubles.certificates import Ca, pem, write
from tests.doubles.ports import FakeLog
from tests.rigs.node import Node
from tests.web.make import staged

ELSEWHERE = ListenAddress(address="192.0.2.1", port=8443)
DAY = timedelta(days=1)
WEB = {"people": ["alice", "bob"], "certificate": "fleet.pem", "key": "fleet.key"}


class Here:
    """A root whose CA has issued certificates."""

    def __init__(self, node: Node) -> None:
        self.node = node
        now = datetime.now(UTC)
        self.ca = Ca(since=now - DAY, until=now + 9 * DAY)
        self.issue: Callable[..., Any] = lambda name, **more: self.ca.issue(
            name, since=now - DAY, until=now + DAY, **more
        )
        write(node.root / "ca.pem", self.ca.text)
        own = self.issue("fleet.example.com", dns=["fleet.example.com"])
        write(node.root / "fleet.pem", own.text)
        write(node.root / "fleet.key", pem(own.key), mode=0o600)
        self.settings()

    def settings(self, **more: Any) -> None:
        self.node.settings(**{"identity": {"ca": "ca.pem"}, "web": WEB, **more})

    def way(self, place: ListenAddress = ELSEWHERE, *, actions: bool = False) -> DashboardAccess:
        fleet = FleetApp(NodeApp(str(self.node.root)))
        return WebApp(fleet, FakeLog()).way_in(place, actions=actions)(8443)


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(Node(tmp_path))  # no Puppet is asked for anything


def knows(way: DashboardAccess, name: str, here: Here) -> bool:
    return way.door.knows(Visitor(headers={}, certificate=here.issue(name).der))


def test_people_have_access_as_long_as_the_settings_list_them(here: Here) -> None:
    way = here.way()
    assert way.door.url == "https://fleet.example.com:8443/"
    assert (way.link(), way.entrance) == ("", None)
    assert way.tls is not None
    assert [knows(way, name, here) for name in ("alice", "bob", "web01")] == [True, True, False]
    here.settings(web={**WEB, "people": ["bob"]})
    assert [knows(way, name, here) for name in ("alice", "bob")] == [False, True]
    (here.node.root / "localpuppet.yaml").unlink()
    assert not knows(way, "bob", here)


def test_people_may_read_releases_if_the_settings_list_them_for_that(here: Here) -> None:
    way = here.way()

    def reads(name: str) -> bool:
        return way.reads_code(Visitor(headers={}, certificate=here.issue(name).der))

    assert [reads(name) for name in ("alice", "bob")] == [False, False]
    here.settings(web={**WEB, "release_readers": ["alice"]})
    assert [reads(name) for name in ("alice", "bob")] == [True, False]
    assert here.way(ListenAddress(address="127.0.0.1", port=8443)).reads_code(Visitor(headers={}))


def test_without_its_own_certificate_the_dashboard_uses_that_of_the_node(here: Here) -> None:
    identity = {"ca": "ca.pem", "certificate": "fleet.pem", "key": "fleet.key"}
    here.settings(identity=identity, web={"people": ["alice"]})
    assert here.way().door.url == "https://fleet.example.com:8443/"


def test_on_loopback_the_dashboard_has_a_link_and_needs_no_settings(here: Here) -> None:
    here.node.settings()
    way = here.way(ListenAddress(address="127.0.0.1", port=8443), actions=True)
    assert re.match(r"http://[0-9a-f]{32}\.localhost:8443/enter\?key=", way.link())
    elsewhere = here.way(ListenAddress(address="127.0.0.2", port=8443))
    assert elsewhere.link().startswith("http://127.0.0.2:8443/enter?key=")
    assert way.entrance is way.door
    assert way.tls is None


def test_a_dashboard_keeps_its_host_name_unless_it_has_actions(here: Here) -> None:
    here.node.settings()
    place = ListenAddress(address="127.0.0.1", port=8443)

    def hosts(*, actions: bool) -> set[str]:
        return {here.way(place, actions=actions).door.url for _ in range(2)}

    assert (len(hosts(actions=False)), len(hosts(actions=True))) == (1, 2)
    assert hosts(actions=False).isdisjoint(hosts(actions=True))


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"web": {}}, "web.people: lists no name.*ssh -L"),
        ({"identity": {}}, "identity.ca: must name the CA"),
        ({"web": {"people": ["alice"]}}, "web: names no certificate for the dashboard"),
        ({"web": {"people": ["Alice"]}}, r"web.people\[0\]: 'Alice' is not a signer's name"),
        ({"web": {"people": [], "key": "x"}}, "web: must have both certificate and key"),
        ({"web": {**WEB, "certificate": "ca.pem"}}, "ca.pem: has no host name"),
        ({"web": {**WEB, "key": "ca.pem"}}, "fleet.pem: cannot be used for TLS"),
    ],
)
def test_missing_settings_are_an_error(here: Here, settings: dict[str, Any], what: str) -> None:
    here.settings(**settings)
    with pytest.raises(InvalidInputError, match=what):
        here.way()


def test_deliveries_over_tls_use_the_certificate_of_the_dashboard_and_need_none(here: Here) -> None:
    fleet = FleetApp(NodeApp(str(here.node.root)))
    tls = WebApp(fleet, FakeLog())._tls(None)
    assert (tls.names_clients, tls.context().verify_mode) == (False, ssl.CERT_NONE)


def test_actions_over_tls_are_refused(here: Here) -> None:
    with pytest.raises(InvalidInputError, match="--actions works on loopback only"):
        here.way(actions=True)


async def test_the_notifier_sees_verified_releases_and_bus_certificates(here: Here) -> None:
    server = {"servers": ["nats://127.0.0.1:4222"], "ca": "ca.pem"}
    source = {"git": "https://git.example.com/web.git"}
    signed = {**source, "require_signed": True, "signers": "signers"}
    (here.node.root / "signers").write_text("alice ssh-ed25519 AAAA\n")
    StagedRecords(here.node.state).write(staged("web/tags/r7", "d"))
    for settings, releases in ((source, ["web/tags/r7"]), (signed, [])):
        channel = {"type": "github", "source": "web", "repository": "a/b", "token_file": "t"}
        here.settings(
            bus="nats",
            buses={"nats": server},
            notify={"channels": {"ci": channel}},
            sources={"web": settings},
        )
        sight = WebApp(FleetApp(NodeApp(str(here.node.root))), FakeLog()).notifier().sight
        assert [one.release for one in sight.releases("web")] == releases
        names = {Path(name).name for name in sight.certificates()}
        assert names == {"ca.pem", "fleet.pem"}
