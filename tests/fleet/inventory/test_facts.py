"""Which facts leave a node, and what a compromised node can claim."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.inventory.admission import ClaimPolicy, refusal
from localpuppet.fleet.inventory.facts import (
    FactSelection,
    PublishedRun,
    class_names,
    entry_of,
    named_for,
    roles_of,
    with_roles,
)
from tests.fleet.inventory.entries import entry
from tests.rigs.bad_inputs import CASES

ACCEPTED = [case for case in CASES if (case["kind"], case["expect"]) == ("facts_doc", "accept")]
NODE = NodeName.parse("web01.example.com")
CANARY = "canary-6f1e"

FACTS: dict[str, Any] = {
    "os": {"family": "Debian", "release": {"major": "12"}},
    "networking": {"fqdn": "web01.lan", "hostname": "web01", "domain": "lan", "ip": "10.0.0.1"},
    "hostname": "web01",
    "domain": "lan",
    "fqdn": "web01.lan",
    "clientcert": "web01.lan",
    "memory": {"system": {"total": "4 GiB", "used_bytes": 1, "available": "1 GiB", "capacity": 9}},
    "mountpoints": {"/": {"size": "9 GiB", "used": "1 GiB", "available_bytes": 8}},
    "load_averages": {"1m": 0.1},
    "system_uptime": {"seconds": 9},
    "uptime_seconds": 9,
    "disks": {"sda": {"size": "9 GiB"}},
    "nothing": None,
    "empty": {},
}


def test_facts_that_change_with_each_run_are_not_published() -> None:
    found = FactSelection().of(FACTS)
    assert found["memory"] == {"system": {"total": "4 GiB"}}
    assert found["mountpoints"] == {"/": {"size": "9 GiB"}}
    assert not {"load_averages", "system_uptime", "uptime_seconds"} & set(found)
    assert found["os"] == FACTS["os"]
    assert (found["nothing"], found["empty"]) == (None, {})


@pytest.mark.parametrize(
    "secret",
    [
        {"ec2_userdata": CANARY},
        {"ec2_metadata": {"user-data": CANARY}},
        {"az_metadata": {"compute": {"customData": CANARY, "osProfile": [{"UserData": CANARY}]}}},
        {"gce": {"instance": {"attributes": {"startup-script": CANARY, "sshKeys": CANARY}}}},
        {"ec2_metadata": {"iam": {"security-credentials": {"role": {"Token": CANARY}}}}},
        {"cloudstack_user_data": CANARY},
        {"app": {"db": {"password": CANARY, "Password_Hash": CANARY}, "passwd": CANARY}},
        {"list": [{"deep": [{"api-key": CANARY}]}]},
        {"site_url": f"ldap://reader:{CANARY}@ldap", "mirrors": [f"https://{CANARY}@mirror/"]},
        {"host_key": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{CANARY}"},
        {"API_KEY": CANARY, "my_secret_thing": CANARY, "vault_token": {"a": [CANARY]}},
        {"ssl": {"privateKey": CANARY, "private_key_pem": CANARY, "passphrase": CANARY}},
        {"aws": {"AccessKeyId": CANARY, "access_key": CANARY}, "kubeconfig": CANARY},
    ],
    ids=lambda secret: next(iter(secret)),
)
@pytest.mark.parametrize("facts", [(), ("*",)], ids=["all", "selected"])
def test_a_secret_is_never_published(secret: dict[str, Any], facts: tuple[str, ...]) -> None:
    found = FactSelection(facts=facts).of({**FACTS, **secret})
    assert CANARY not in json.dumps(found)
    assert found["os"] == FACTS["os"]


def test_a_site_selects_and_hides() -> None:
    chosen = FactSelection(facts=("os", "networking.ip", "disks.*.size"), hide=("os.release",))
    plain = {"os": {"family": "Debian"}, "networking": {"ip": "10.0.0.1"}}
    assert chosen.of(FACTS) == {**plain, "disks": {"sda": {"size": "9 GiB"}}}
    assert "networking" not in FactSelection(hide=("net*",)).of(FACTS)


def test_facts_of_the_cloud_are_published_only_if_the_settings_select_them() -> None:
    facts = {"os": "Debian", "tier": "front", "greeting": CANARY}
    found = ("tier", "greeting")
    assert FactSelection().of(facts, withheld=found) == {"os": "Debian"}
    expected = {"os": "Debian", "tier": "front"}
    assert FactSelection(facts=("os", "ti*")).of(facts, withheld=found) == expected
    wanted = {"os": "Debian", "greeting": CANARY}
    assert FactSelection(facts=("*",), hide=("tier",)).of(facts, withheld=found) == wanted


def test_the_names_in_an_entry_are_the_signers() -> None:
    named = named_for(FACTS, NODE)
    assert {named[key] for key in ("fqdn", "clientcert", "certname")} == {str(NODE)}
    names = {"hostname": "web01", "domain": "example.com"}
    assert named["networking"] == {"fqdn": str(NODE), "ip": "10.0.0.1", **names}
    assert {name: named[name] for name in names} == names


@pytest.mark.parametrize(
    ("parameter", "fact", "roles"),
    [
        ("web", "db", ("web",)),
        (None, "db", ("db",)),
        (["web", "cache", "web"], None, ("web", "cache")),
        (None, None, ()),
    ],
)
def test_a_role_is_the_parameter_or_fact(parameter: Any, fact: Any, roles: tuple[str, ...]) -> None:
    assert roles_of({"role": parameter}, {"role": fact}) == roles


@pytest.mark.parametrize("role", [7, ["web", 7], [f"r{n}" for n in range(65)], {"a": "b"}, ""])
def test_an_invalid_role_is_refused(role: Any) -> None:
    with pytest.raises(InvalidInputError):
        roles_of({"role": role}, {})


def test_the_fact_role_has_the_roles_of_the_node() -> None:
    assert with_roles({"role": "db"}, ("web",)) == {"role": "web"}
    assert with_roles({"role": "db"}, ("a", "b")) == {"role": ["a", "b"]}
    assert with_roles({"role": "db", "x": 1}, ()) == {"x": 1}


def test_other_nodes_accept_the_entry_of_a_run() -> None:
    facts = {**FACTS, "role": "db", "trusted": {"certname": str(NODE)}, "instance_id": "i-1"}
    classes = class_names(["main", "nginx::vhost", "Bad", "main"])
    draft = entry(NODE, at=1.0, facts=facts, classes=classes, paths=((),) * 40)
    run = PublishedRun(entry=draft, parameters={"role": "web"}, withheld=["instance_id"])
    said = entry_of(run, FactSelection())
    assert refusal(said, NODE, None) is None
    assert (said.roles, said.facts["role"]) == (("web",), "web")
    assert said.classes == ("main", "nginx::vhost")
    assert "instance_id" not in said.facts
    assert len(said.paths) == 32
    assert said.digest == said.digested().digest


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case["id"])
def test_facts_of_the_corpus_become_an_entry(case: dict[str, Any]) -> None:
    facts = json.loads(case["input"])
    draft = entry(NODE, at=1.0, facts=facts)
    said = entry_of(PublishedRun(entry=draft, parameters={}, withheld=()), FactSelection())
    assert said.to_payload()
    assert said.node == NODE
    assert facts.keys() <= said.facts.keys()


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
def test_a_policy_decides_who_claims_which_roles(roles: tuple[str, ...], allowed: bool) -> None:
    assert (_refusal(POLICY, roles=roles) is None) == allowed


@pytest.mark.parametrize(
    ("facts", "address"),
    [
        ({"networking": {"ip": "10.0.1.7", "ip6": "fd00::7"}}, None),
        ({"ipaddress_eth0": "10.0.9.9", "ipaddress6_lo": "::1", "ipaddress6": "fe80::1%e"}, None),
        ({"networking": {"ip": "10.0.2.7"}}, "10.0.2.7"),
        ({"ipaddress": "10.0.2.7"}, "10.0.2.7"),
        (
            {"networking": {"interfaces": {"eth0": {"bindings": [{"address": "10.0.2.8"}]}}}},
            "10.0.2.8",
        ),
        ({"networking": {"interfaces": {"e": {"bindings6": [{"address": "fd00::8"}]}}}}, "fd00::8"),
        ({"ipaddress6_eth0": "fd00:0::8"}, "fd00::8"),
    ],
    ids=str,
)
def test_a_policy_decides_who_claims_addresses(facts: dict[str, Any], address: str | None) -> None:
    expected = None if address is None else f"{WEB} may not claim the address {address}"
    assert _refusal(POLICY, facts=facts) == expected


def test_a_signer_in_no_line_and_empty_addresses_claim_nothing() -> None:
    other = entry("a.nowhere.org", at=1.0, facts={}, roles=("web",))
    assert "may not claim the role" in (refusal(other, "a.nowhere.org", POLICY) or "")
    assert refusal(entry("a.nowhere.org", at=1.0, facts={}), "a.nowhere.org", POLICY) is None
    policy = ClaimPolicy.parse(b"*.web01.example.com\t*\t*\n", where="p")
    assert _refusal(policy, roles=("web",)) is not None
    facts = {"ipaddress": None, "ipaddress6": "", "networking": {"ip": None, "mac": "x"}}
    assert _refusal(POLICY, facts=facts) is None


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
    assert _refusal(ClaimPolicy.parse(b"*\t*\t*\n", where="inventory.policy"), facts=facts) is None


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
