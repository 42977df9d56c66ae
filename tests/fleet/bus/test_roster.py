"""The roster of a bus: rights on keys, refused rosters, and the permissions of each engine."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.documents import Documents
from localpuppet.fleet.bus import permissions
from localpuppet.fleet.bus.permissions import Roster
from tests.fleet.make import there

DOCS = Path(__file__).parents[3] / "docs"
EXAMPLE = (DOCS / "examples" / "roster.yaml").read_bytes()
HOW_TO = (DOCS / "how-to" / "secure-the-bus.md").read_text()
REFERENCE = (DOCS / "reference" / "roster.md").read_text()
WEB01 = "web01.example.com"


def read(data: bytes) -> Roster:
    raw = Documents(None).parse(data, schema="roster", where="roster.yaml")
    return Roster.from_dict(raw, where="roster.yaml")


def rights(roster: Roster, name: str) -> dict[str, bool]:
    """Return key → whether it may be written, besides being read or not."""
    (member,) = [one for one in roster.members() if one.name == name]
    assert all(grant.prefix == grant.key.endswith("/") for grant in member.grants)
    found = {grant.key: grant.write for grant in member.grants}
    assert len({*member.grants}) == len(member.grants), "a right twice"
    return found


def test_the_documentation_has_the_rights_of_web01() -> None:
    section = REFERENCE.partition("## Rights of a node")[2].partition("\n## ")[0]
    told = dict(re.findall(r"^\| (.*?) \| `(/.*?)` \|$", section, re.MULTILINE))
    found = rights(read(EXAMPLE), WEB01)
    assert set(told.values()) == set(found)
    for what, key in told.items():
        assert found[key] is not what.startswith("read"), what


def test_the_short_roster_of_the_documentation() -> None:
    text = there(re.search(r"```yaml\n(.*?)```", HOW_TO, re.DOTALL))
    assert rights(read(text[1].encode()), "alice")[f"/localpuppet/requests/{WEB01}/alice/"] is True
    assert rights(read(text[1].encode()), "alice")["/localpuppet/rollouts/alice/"] is True


def test_the_documentation_names_the_calls_of_nats() -> None:
    (web01, *_) = read(EXAMPLE).members()
    found = permissions.permissions(web01, stream="localpuppet")["publish"]
    for call in {re.split(r"lp(?:-inventory)?\.", one)[0] for one in found if "API" in one}:
        assert call.removesuffix(".") in REFERENCE


def test_a_node_without_rights_has_only_its_own_keys() -> None:
    roster = read(b"nodes: {a.b: {}}")
    assert rights(roster, "a.b") == {
        "/localpuppet/store": False,
        "/localpuppet/presence/": False,
        "/localpuppet/leases/": False,
        "/puppet_trigger/events/hosts/a.b/": False,
        "/localpuppet/requests/a.b/": False,
        "/localpuppet/presence/a.b": True,
        "/localpuppet/inventory/a.b": True,
        "/localpuppet/exports/a.b/": True,
        "/localpuppet/catalogs/a.b/": True,
        "/localpuppet/history/a.b/": True,
    }


def test_reading_the_entries_of_all_nodes_and_forgetting_nodes_are_rights() -> None:
    roster = read(b"{nodes: {a.b: {reads: [inventory]}}, people: {alice: {forgets: true}}}")
    reader, alice = rights(roster, "a.b"), rights(roster, "alice")
    for prefix in ("/localpuppet/inventory/", "/localpuppet/exports/", "/localpuppet/tombstones/"):
        assert reader[prefix] is False
    assert alice["/localpuppet/tombstones/"] is True
    assert "/localpuppet/inventory/" not in alice
    for kind in ("history", "catalogs"):
        text = f"{{nodes: {{a.b: {{reads: [inventory]}}}}, people: {{alice: {{reads: [{kind}]}}}}}}"
        assert rights(read(text.encode()), "alice")[f"/localpuppet/{kind}/"] is False
        assert [key for key in reader if kind in key] == [f"/localpuppet/{kind}/a.b/"]


def test_the_inventory_is_in_a_stream_of_its_own() -> None:
    roster = read(b"{nodes: {a.b: {}}, people: {alice: {asks: [a.b]}}}")
    node, alice = (permissions.permissions(one, stream="lp") for one in roster.members())
    for place in ("inventory.a~b", "exports.a~b.>", "catalogs.a~b.>", "history.a~b.>"):
        assert f"lp-inventory.localpuppet.{place}" in node["publish"]
    assert not [one for one in alice["publish"] if "inventory" in one]
    text = permissions.accounts(roster.members(), roster.admins, stream="lp")
    assert "STREAM.INFO.lp-inventory" in text
    for part in ('service: "lp-inventory.>"', 'stream: "lp-inventory-live.>"'):
        assert part in text


def test_keyprefix_and_stream() -> None:
    roster = read(b"{nodes: {a: {triggers: [b]}, b: {}}, keyprefix: /x/y, stream: other}")
    assert "/x/y/hosts/b/a" in rights(roster, "a")
    text = permissions.accounts(roster.members(), roster.admins, stream=roster.stream)
    assert "STREAM.INFO.other" in text
    assert "localpuppet.>" not in text.replace("lp.localpuppet", "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nodes: {web01: {triggers: [lb1]}, lb01: {}}", "'lb1' is not a node .*mean 'lb01'"),
        ("nodes: {web01: {asks: [alice]}}\npeople: {alice: {}}", "not a node of this file"),
        ("nodes: {web01: {trigger: []}}", "trigger"),
        ("nodes: {web01: {takeover: [bob]}}", "takeover: 'bob' is not a name of this file"),
        ("nodes: {Web01: {}}", "nodes"),
        ("nodes: {a: {}}\npeople: {a: {}}", "a appears twice"),
        ("nodes: {a: {}}\nadmins: [a]", "a appears twice"),
        ("nodes: {root: {}}", "root is etcd's own user"),
        ("nodes: {a: {leases: [a/b]}}", "leases"),
        ("nodes: {a: {leases: ['>']}}", "leases"),
        ("nodes: {a: {}}\npeople: {'*': {}}", "people"),
        ("nodes: {a: {}}\nkeyprefix: '/x/*'", "keyprefix"),
        ("nodes: {a: {}}\nstream: '>'", "stream"),
        ("people: {a: {}}", "nodes"),
    ],
)
def test_a_bad_roster_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason) as caught:
        read(text.encode())
    assert "\n" not in str(caught.value)


NAMES = st.from_regex(r"[a-z][a-z0-9]{0,3}(\.[a-z]{1,3})?", fullmatch=True)


@st.composite
def rosters(draw: st.DrawFn) -> dict[str, Any]:
    name = NAMES.filter(lambda name: name != "root")
    nodes = draw(st.lists(name, min_size=1, max_size=5, unique=True))
    some = st.lists(st.sampled_from(nodes), max_size=4)
    leases = st.lists(NAMES, max_size=2)
    rights = {"triggers": some, "asks": some, "takeover": some, "leases": leases}
    body = st.fixed_dictionaries({}, optional=rights)
    return {"nodes": {name: draw(body) for name in nodes}}


@given(rosters())
def test_no_member_gets_a_right_that_the_file_does_not_give(raw: dict[str, Any]) -> None:
    """Of the keys with two names, a node writes those with its own and another name of the file."""
    roster = Roster.from_dict(raw, where="roster")
    for name, body in raw["nodes"].items():
        found = rights(roster, name)
        writes = {key for key, write in found.items() if write}
        asked_by = [one for one, other in raw["nodes"].items() if name in other.get("asks", [])]
        assert writes == {
            f"/localpuppet/presence/{name}",
            f"/localpuppet/inventory/{name}",
            f"/localpuppet/exports/{name}/",
            f"/localpuppet/catalogs/{name}/",
            f"/localpuppet/history/{name}/",
            *(f"/localpuppet/leases/{lease}" for lease in body.get("leases", [])),
            *(f"/puppet_trigger/events/hosts/{to}/{name}" for to in body.get("triggers", [])),
            *(f"/localpuppet/requests/{to}/{name}/" for to in body.get("asks", [])),
            *(f"/localpuppet/replies/{caller}/{name}/" for caller in asked_by),
            *(f"/localpuppet/rollouts/{whose}/" for whose in speaks(raw, name)),
            *(f"/localpuppet/commands/{other}/{name}/" for other in beside(raw, name)),
            *(f"/localpuppet/replies/{other}/{name}/" for other in beside(raw, name)),
        }
        private = {key for key in found if "/hosts/" in key or "/replies/" in key} - writes
        assert all(name in key.split("/") for key in private)


def speaks(raw: dict[str, Any], name: str) -> set[str]:
    """Return the callers whose rollouts a member may command."""
    body = raw["nodes"][name]
    return {name, *body.get("takeover", [])} if body.get("asks") else set()


def beside(raw: dict[str, Any], name: str) -> list[str]:
    """Return the members that may command the same rollouts: they send each other commands."""
    owners = {one for one, body in raw["nodes"].items() if body.get("asks")}
    return [other for other in raw["nodes"] if speaks(raw, name) & speaks(raw, other) & owners]


def test_a_role_is_named_by_what_it_allows() -> None:
    def role(text: str) -> str:
        script = permissions.script(read(text.encode()).members())
        return there(re.search(r"^member a (localpuppet\.a\.\w+)$", script, re.MULTILINE))[1]

    first = role("nodes: {a: {triggers: [b]}, b: {}}")
    assert role("nodes: {a: {triggers: [b]}, b: {leases: [x]}}") == first
    assert role("nodes: {a: {}, b: {}}") != first
