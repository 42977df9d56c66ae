"""Nodes that know each other's entries: real agents on each bus, and an agent with two sides."""

import asyncio
import json
import time
from pathlib import Path

import yaml

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus.jetstream_messages import JetStream
from localpuppet.fleet.bus.nats_link import NatsConnection
from localpuppet.fleet.inventory.outbox import Outbox
from tests.fleet.inventory.entries import entry
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member
from tests.rigs.node import Node
from tests.rigs.reaching import servers_at
from tests.rigs.split_member import Split
from tests.rigs.waiting import PATIENCE, wait_until


def tell(root: Path, name: str, *roles: str) -> None:
    """Leave what a good run would: the agent, or `publish`, brings it to the bus."""
    Outbox(root / "var").offer(entry(name, at=time.time(), roles=roles), refresh=0)


def known(node: Node, *roles: str) -> list[str]:
    """Return the nodes of a role, as another node knows them."""
    words = [word for role in roles for word in ("--role", role)]
    return [one["node"] for one in node.run("nodes", *words, "--json", code=0).json["nodes"]]


def wait_known(node: Node, role: str, *names: NodeName) -> None:
    seen: list[list[str]] = [[]]

    def look() -> bool:
        seen[0] = known(node, role)
        return seen[0] == sorted(names)

    wait_until(look, lambda: f"not {names}, but {seen[0]}")


def test_others_know_a_published_entry_and_forget_it_as_policies_allow(any_fleet: Fleet) -> None:
    a, b = any_fleet.add("a", "b")
    a.node.write(
        "policies/puppet.policy", f"policy default deny\nallow\tchoria={b.name}\tforget\t*\t*\n"
    )
    any_fleet.start()
    tell(b.root, b.name, "web")
    wait_known(a.node, "web", b.name)
    shown = a.run("inventory", "facts", b.name, "--json")
    assert shown.json["entry"]["facts"]["fqdn"] == b.name
    assert shown.json["revision"] > 0
    assert 0 <= shown.json["age"] < 900

    short, words = b.name.partition(".")[0], ("inventory", "forget")
    would = b.run(*words, short, "--dry-run")
    assert f"remove the entry of {b.name} from" in would.out
    unknown = b.run(*words, f"{short}x", "--yes")
    assert (unknown.code, f"no known node {short}x" in unknown.err) == (2, True)
    b.run(*words, b.name, "--yes")
    wait_known(a.node, "web")
    b.wait_log("is not forgotten")  # its own policy does not allow it
    wait_known(b.node, "web", b.name)
    tell(b.root, b.name, "web", "db")
    wait_known(a.node, "db", b.name)


def test_revoking_a_key_removes_its_node(fleet: Fleet) -> None:
    a, b = fleet.add("a", "b")
    fleet.start()
    tell(b.root, b.name, "web")
    wait_known(a.node, "web", b.name)
    a.run("keys", "revoke", b.name, "--yes", code=0)
    wait_known(a.node, "web")
    a.wait_log(f"{b.name} is out of the inventory")


def test_without_an_agent_the_bus_is_listed(fleet: Fleet) -> None:
    a, b = fleet.add("a", "b")
    tell(b.root, b.name, "web")
    assert b.run("inventory", "publish").out == "published\n"
    assert b.run("inventory", "publish").out == "published before: nothing changed\n"
    assert known(a.node, "web", "db") == [b.name]
    assert known(a.node, "db") == []


def test_facts_of_a_hostile_node_cannot_control_terminals_or_redirect_others(fleet: Fleet) -> None:
    a, b = fleet.add("a", "b")
    evil = "\x1b]0;owned\x07\n9  forged\u202e"
    evil_facts = {evil: evil, "kernel": evil, "networking": {"ip": "local://localhost"}}
    said = entry(b.name, at=time.time(), roles=("web",), facts=evil_facts)
    Outbox(b.root / "var").offer(said, refresh=0)
    b.run("inventory", "publish", code=0)
    facts = [f"inventory facts {b.name}", "inventory facts --summary kernel"]
    for words in [*facts, "query role=web --show kernel", "nodes --role web"]:
        done = a.run(*words.split(), code=0)
        assert all(line.isprintable() for line in done.out.splitlines()), words
        assert not any(line.startswith("9  forged") for line in done.out.splitlines()), words
    bolt = yaml.safe_load(a.run("query", "role=web", "--format", "bolt").out)
    assert bolt["targets"] == [{"name": b.name, "uri": b.name}]


def test_a_view_that_is_too_old_answers_no_query(nats_fleet: Fleet) -> None:
    (a,) = nats_fleet.add("a", inventory={"max_stale": 0.001})
    nats_fleet.start()
    wait_until(lambda: _says(a, "last current"), lambda: a.log)


def test_nodes_without_presence_are_unknown_while_the_bus_is_full(nats_fleet: Fleet) -> None:
    a, b = nats_fleet.add("a", "b")
    tell(b.root, b.name, "web")
    b.run("inventory", "publish", code=0)
    (row,) = a.run("nodes", "--json").json["nodes"]
    assert (row["node"], row["state"]) == (b.name, "unresponsive")
    asyncio.run(_fill(nats_fleet.bus.servers[0].url))
    full = a.run("nodes", "--json")
    assert "nodes cannot publish their state, so that of some is unknown" in full.err
    assert [row["state"] for row in full.json["nodes"]] == ["unknown"]


async def _fill(url: str) -> None:
    """Leave no room in the stream of the nodes' presence."""
    connection = NatsConnection(servers_at(url), inbox="_INBOX", timeout=PATIENCE)
    api = JetStream(connection)
    stream = await api.call("STREAM.INFO.localpuppet", {})
    assert stream is not None
    await api.call("STREAM.UPDATE.localpuppet", {**stream["config"], "max_bytes": 1024})
    await connection.close()


def _says(member: Member, text: str) -> bool:
    done = member.run("nodes", "--role", "web", "--json")
    assert (done.code, done.out) == (69, ""), done
    return text in done.err


def test_an_agent_with_two_sides_publishes_and_receives_entries(split: Split) -> None:
    split.run_side()
    split.network_side()
    tell(split.node.root, "a.example.com", "db")
    wait_known(split.other, "db", NodeName("a.example.com"))
    tell(split.other.root, "b.example.com", "web")
    split.other.run("inventory", "publish", code=0)
    wait_known(split.node, "web", NodeName("b.example.com"))
    listed = json.loads(split.node.run("inventory", "facts", "--summary", "role", "--json").out)[
        "values"
    ]
    assert [one["value"] for one in listed] == ["db", "web"]


def test_a_copy_that_cannot_be_kept_is_no_answer_to_any_question(fleet: Fleet) -> None:
    (a,) = fleet.add("a")
    (a.root / "var/inventory/view.sqlite").mkdir(parents=True)
    for words in (
        ("nodes", "--role", "web"),
        ("inventory", "facts", a.name),
        ("query", "role=web"),
    ):
        done = a.run(*words)
        assert (done.code, done.out) == (69, ""), done
