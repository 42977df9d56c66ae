"""From settings to what signs and what verifies: the wiring, with real files and keys."""

from datetime import UTC, datetime, timedelta

import pytest

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.fleet.app import FleetApp
from localpuppet.fleet.requests.request import RunOnce, ask
from localpuppet.fleet.requests.request_handler import RequestRefusal
from localpuppet.fleet.trust.identity import SignerIdentity
from localpuppet.fleet.trust.signing import MessageKind
from localpuppet.node.app import NodeApp
from tests.doubles.certificates import Ca, pem, rsa_key, write
from tests.doubles.identities import person
from tests.rigs.node import Node

DAY = timedelta(days=1)


@pytest.fixture
def web(node: Node) -> Node:
    node.settings(node="web01.example.com")
    return node


def app(node: Node) -> FleetApp:
    return FleetApp(NodeApp(str(node.root)))


def identity(node: Node) -> SignerIdentity:
    return app(node).identity


def test_without_settings_a_node_signs_and_trusts_itself(web: Node) -> None:
    with pytest.raises(InvalidInputError, match="this node has no key"):
        identity(web).signer(make=False)
    identity(web).verifier()
    assert not (web.state / "keys").exists()  # reading commands make no key
    token = identity(web).signer().sign(b"{}", MessageKind.PRESENCE)
    assert (web.state / "keys" / "node.pem").exists()
    signed = identity(web).verifier().verify(token, MessageKind.PRESENCE)
    assert signed.signer == "web01.example.com"


def test_a_request_passes_through_the_settings(web: Node) -> None:
    alice = person("alice")
    found = identity(web)
    clock = NodeApp(str(web.root)).clock
    node = app(web).name

    def received() -> object:
        token = ask(alice.signer, node, "runonce", RunOnce(), clock=clock)[1]
        return app(web).request_admission().receive(token)

    first = received()
    assert isinstance(first, RequestRefusal)
    assert "no key of alice is trusted here" in first.reason
    found.trusted.pin(alice.name, alice.key.public_key())
    second = received()
    assert isinstance(second, RequestRefusal)
    assert "this node has no policy" in second.reason
    web.write("policies/puppet.policy", "policy default deny\nallow\tchoria=alice\trunonce\t*\t*\n")
    request, token = ask(alice.signer, node, "runonce", RunOnce(), clock=clock)
    assert app(web).request_admission().receive(token) == request
    assert (web.state / "seen.sqlite").exists()
    again = app(web).request_admission().receive(token)
    assert isinstance(again, RequestRefusal), "another process"
    assert "replay" in again.reason


def test_a_certificate_from_the_settings(node: Node) -> None:
    now = datetime.now(UTC)
    ca = Ca(until=now + 1000 * DAY)
    issued = ca.issue("web01.example.com", key=rsa_key(), since=now - DAY, until=now + DAY)
    write(node.root / "cert.pem", issued.text)
    write(node.root / "key.pem", pem(issued.key), mode=0o600)
    write(node.root / "ca.pem", ca.text)
    files = {"certificate": "cert.pem", "key": "key.pem", "ca": "ca.pem"}
    node.settings(identity=files)
    token = identity(node).signer().sign(b"{}", MessageKind.REPLY)
    assert identity(node).verifier().verify(token, MessageKind.REPLY).signer == "web01.example.com"
    write(node.root / "crl.pem", ca.revoke(issued.certificate, next_update=now + DAY))
    node.settings(identity={**files, "crl": "crl.pem"})
    with pytest.raises(IntegrityError, match="is revoked"):
        identity(node).verifier().verify(token, MessageKind.REPLY)
