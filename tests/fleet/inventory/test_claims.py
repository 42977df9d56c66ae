"""What a compromised node can claim."""

from collections.abc import Callable
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.inventory.admission import ClaimPolicy, refusal
from tests.fleet.inventory.entries import entry

WEB = "web01.example.com"
POLICY = ClaimPolicy.parse(
    b"# who\twhat\twhere\n"
    b"*.example.com\tweb cache\t10.0.1.0/24\n"
    b"web01.example.com\textra\t10.0.9.9 fd00::7\n"
    b"db01.other.net\tdb\t*\n",
    where="inventory.policy",
)


def _refusal(policy: ClaimPolicy | None = None, *, signer: str = WEB, **more: Any) -> str | None:
    return refusal(entry(WEB, at=1.0, **more), signer, policy)


@pytest.mark.parametrize(
    "facts",
    [
        {"fqdn": "db01.example.com"},
        {"certname": "db01.example.com"},
        {"clientcert": "db01.example.com"},
        {"networking": {"fqdn": "db01.example.com"}},
        {"networking": {"hostname": "db01"}},
        {"hostname": "db01"},
        {"trusted": {"certname": "db01.example.com"}},
        {"domain": "example.net"},
        {"networking": {"hostname": "web01", "domain": "example.net"}},
        {"trusted": {"hostname": "db01"}},
        {"hostname": ["web01"]},
    ],
    ids=str,
)
def test_an_entry_with_the_name_of_another_node_is_refused(facts: dict[str, Any]) -> None:
    assert "is not the name of its signer" in (_refusal(facts=facts) or "")


def test_an_entry_that_another_node_signed_is_refused() -> None:
    assert _refusal(signer="db01.example.com") == f"signed by db01.example.com, claims to be {WEB}"


@pytest.mark.parametrize("role", ["db", ["web", "db"], [f"r{n}" for n in range(1000)], {"a": 1}])
def test_the_fact_role_must_be_among_the_roles(role: Any) -> None:
    assert _refusal(facts={"role": role}, roles=("web",)) == "its fact role is not among its roles"
    assert _refusal(facts={"role": ["web"]}, roles=("web",)) is None


def test_without_a_policy_roles_and_addresses_are_taken() -> None:
    assert _refusal(roles=("db",), facts={"networking": {"ip": "10.0.0.1"}}) is None


@pytest.mark.parametrize(
    ("roles", "allowed"),
    [(("web",), True), (("web", "extra"), True), (("db",), False), (("web", "db"), False)],
)
def test_a_policy_decides_which_nodes_claim_which_roles(
    roles: tuple[str, ...], allowed: bool
) -> None:
    assert (_refusal(POLICY, roles=roles) is None) == allowed


@pytest.mark.parametrize(
    ("facts", "address"),
    [
        ({"networking": {"ip": "10.0.1.7", "ip6": "fd00::7"}}, None),
        (
            {"ipaddress_eth0": "10.0.9.9", "ipaddress6_lo": "::1", "ipaddress6": "fe80::1%e"},
            None,
        ),
        ({"networking": {"ip": "10.0.2.7"}}, "10.0.2.7"),
        ({"ipaddress": "10.0.2.7"}, "10.0.2.7"),
        (
            {"networking": {"interfaces": {"eth0": {"bindings": [{"address": "10.0.2.8"}]}}}},
            "10.0.2.8",
        ),
        (
            {"networking": {"interfaces": {"e": {"bindings6": [{"address": "fd00::8"}]}}}},
            "fd00::8",
        ),
        ({"ipaddress6_eth0": "fd00:0::8"}, "fd00::8"),
    ],
    ids=str,
)
def test_a_policy_decides_which_nodes_claim_which_addresses(
    facts: dict[str, Any], address: str | None
) -> None:
    expected = None if address is None else f"{WEB} may not claim the address {address}"
    assert _refusal(POLICY, facts=facts) == expected


def test_a_signer_in_no_line_claims_nothing() -> None:
    other = entry("a.nowhere.org", at=1.0, facts={}, roles=("web",))
    assert "may not claim the role" in (refusal(other, "a.nowhere.org", POLICY) or "")
    silent = entry("a.nowhere.org", at=1.0, facts={})
    assert refusal(silent, "a.nowhere.org", POLICY) is None


def test_a_suffix_is_not_the_name_itself() -> None:
    policy = ClaimPolicy.parse(b"*.web01.example.com\t*\t*\n", where="p")
    assert _refusal(policy, roles=("web",)) is not None


@pytest.mark.parametrize(
    "said",
    [
        "10.0.2.7 ",
        "010.0.2.7",
        "10.0.2.7/32",
        "10.0.1.7%\nserver stolen 10.0.2.7",
        "10.0.1.7%eth0",
        "fe80::1%\n10.0.2.7",
        "db01.example.com",
        "local://x",
        167772679,
        True,
        ["10.0.1.7", "10.2.7"],
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    ("place", "named"),
    [
        (lambda said: {"networking": {"ip": said}}, "networking.ip"),
        (
            lambda said: {"networking": {"interfaces": {"e": {"bindings": [{"address": said}]}}}},
            "networking.interfaces.e.bindings.address",
        ),
        (lambda said: {"ipaddress_eth0": said}, "ipaddress_eth0"),
    ],
    ids=["ip", "binding", "flat"],
)
def test_a_value_that_others_may_read_as_an_address_is_a_claim(
    said: Any, place: Callable[[Any], dict[str, Any]], named: str
) -> None:
    facts = place(said)
    assert _refusal(POLICY, facts=facts) == f"{WEB} says in {named} what is not an address"
    everywhere = ClaimPolicy.parse(b"*\t*\t*\n", where="inventory.policy")
    assert _refusal(everywhere, facts=facts) is None


def test_empty_addresses_claim_nothing() -> None:
    facts = {"ipaddress": None, "ipaddress6": "", "networking": {"ip": None, "mac": "x"}}
    assert _refusal(POLICY, facts=facts) is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"web01 web *", "three tab-separated columns"),
        (b"web01\tweb", "three tab-separated columns"),
        (b"web*\tweb\t*", "is a pattern"),
        (b"web01\tweb *\t*", "has other words"),
        (b"web01\tweb  db\t*", "repeated spaces"),
        (b"web01\tweb\t10.0.0.1/24", "not an address or network"),
        (b"web01\tweb\t*\r", "control character"),
        (b"Web01\tweb\t*", "not a signer's name"),
        (b"\xff\tweb\t*", "not UTF-8"),
    ],
)
def test_a_single_bad_line_refuses_the_file(line: bytes, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        ClaimPolicy.parse(b"*\t*\t*\n" + line + b"\n", where="inventory.policy")
