"""A changed fact, an export or a kick starts a run on another node: real agents, real Puppet."""

import json
import time
from pathlib import Path

from localpuppet.fleet.exports.resource import pack
from localpuppet.fleet.inventory.chunks import ChunkOutbox
from localpuppet.fleet.inventory.entry import ExportsSummary
from localpuppet.fleet.inventory.outbox import Outbox
from tests.fleet.inventory.entries import entry
from tests.fleet.inventory.test_fleet import tell as tell_role
from tests.fleet.inventory.test_fleet import wait_known
from tests.fleet.make import resource
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member
from tests.rigs.node import Node
from tests.rigs.split_member import Split
from tests.rigs.waiting import wait_until

BALANCER = """
$web = servers_with_role('web')
notify { "members: ${web.map |$one| { $one['ipaddress'] }.join(' ')}": }
"""


def tell(root: Path, name: str, address: str) -> None:
    """Leave the entry of a good run of a web server, for the agent or `publish`."""
    facts = {"fqdn": name, "networking": {"ip": address, "fqdn": name}}
    said = entry(name, at=time.time(), facts=facts, roles=("web",), paths=((),))
    Outbox(root / "var").offer(said, refresh=0)


def wait_answer(node: Node, address: str) -> None:
    """Wait until a node knows the address of the web server."""

    def known() -> bool:
        return address in node.run("query", "role=web", "--show", "ipaddress", "--json").out

    wait_until(known, lambda: f"no node knows {address}")


def balancer(fleet: Fleet, **settings: object) -> tuple[Member, Member]:
    """Return a node that asks for web servers, after a good run, and a web server."""
    (lb,) = fleet.add("lb", puppet=True, **settings)
    (web,) = fleet.add("web")
    lb.node.app(BALANCER)
    fleet.start()
    tell(web.root, web.name, "10.0.0.1")
    wait_answer(lb.node, "10.0.0.1")
    assert "members: 10.0.0.1" in lb.run("apply", code=0).out
    return lb, web


def test_a_changed_fact_starts_a_run_that_knows_it(any_fleet: Fleet) -> None:
    lb, web = balancer(any_fleet)
    tell(web.root, web.name, "10.0.0.2")
    lb.wait_log(rf"accepted a change of {web.name}")
    lb.wait_log("run [0-9TZ.a-f-]+ changed")
    assert "members: 10.0.0.2" in lb.run("logs").out
    why = lb.run("why").out
    assert f"change of {web.name}" in why
    assert f'servers_with_role("web")\n    {web.name}: ipaddress' in why
    assert lb.run("why", "--json").json["request"]["causes"]["paths"] == [[web.name]]
    assert Outbox(lb.root / "var").entry() is not None


def offer(root: Path, name: str, address: str) -> None:
    """Leave what a good run of a server that exports itself would."""
    packed = pack([resource("Server", "web", ipaddress=address)])
    ChunkOutbox(root / "var" / "exports").write(packed.data)
    exports = ExportsSummary(count=1, digest=packed.digest, size=len(packed.data))
    said = entry(name, at=time.time(), exports=exports, paths=((),))
    Outbox(root / "var").offer(said, refresh=0)


def test_another_export_starts_a_run_that_collects_it(any_fleet: Fleet) -> None:
    (lb,) = any_fleet.add("lb", puppet=True)
    (web,) = any_fleet.add("web")
    any_fleet.start()
    offer(web.root, web.name, "10.0.0.1")
    wait_until(
        lambda: "10.0.0.1" in lb.run("inventory", "exports", "--json").out, lambda: "no export"
    )
    lb.node.app("Server <<| |>>")
    lb.run("apply", code=0)
    offer(web.root, web.name, "10.0.0.2")
    lb.wait_log(rf"accepted a change of {web.name}")
    lb.wait_log("run [0-9TZ.a-f-]+ unchanged")
    assert f"Server <<| |>>\n    {web.name}: Server[web]" in lb.run("why").out
    taken = lb.run("why", "--json").json["collected"]
    assert [one["resource"] for one in taken[0]["resources"]] == ["Server[web]"]


def test_a_catalog_that_fails_gets_one_run_and_a_kill_repeats_none(fleet: Fleet) -> None:
    lb, web = balancer(fleet)
    lb.node.app("fail('broken')")
    tell(web.root, web.name, "10.0.0.2")
    lb.wait_log("run [0-9TZ.a-f-]+ failed")
    lb.kill()
    lb.start()
    fleet.present(lb)
    tell(web.root, web.name, "10.0.0.1")  # the way back, after a run was tried
    lb.wait_log("run [0-9TZ.a-f-]+ failed", 2)
    tell(web.root, web.name, "10.0.0.2")
    lb.wait_log("no reaction: this answer already caused a run")
    assert len(lb.run("history", "--json").json["runs"]) == 3


def test_an_agent_of_two_sides_reacts(split: Split) -> None:
    split.node.app(BALANCER)
    side = split.run_side()
    split.network_side()
    tell(split.other.root, "b.example.com", "10.0.0.1")
    split.other.run("inventory", "publish", code=0)
    wait_answer(split.node, "10.0.0.1")
    split.node.run("apply", code=0)
    tell(split.other.root, "b.example.com", "10.0.0.2")
    split.other.run("inventory", "publish", code=0)
    split.wait_for(side, "accepted a change of b.example.com")
    split.wait_for(side, "changed")
    remembered = json.loads((split.node.state / "agent" / "reactions.json").read_text())
    assert len(remembered["reactions"]) == 1


KICKING = """
exec { '/bin/true': } ~> kick { 'balancers': roles => ['haproxy'] }
exec { '/bin/echo': } ~> kick { 'the same': query => 'role=haproxy or role=web' }
notify { 'kick -> dns': }
"""
ALL = ('role="haproxy"', "role=haproxy or role=web", 'role="dns"')


def make(fleet: Fleet) -> tuple[Member, Member]:
    (lb,) = fleet.add("lb")
    (web,) = fleet.add("web", puppet=True)
    settings = json.loads((web.root / "localpuppet.yaml").read_text())
    settings["puppet"]["reports"] = ["kick"]
    web.node.write("localpuppet.yaml", json.dumps(settings))
    web.node.app(KICKING)
    raw = json.loads((web.root / "input.yaml").read_text())
    web.node.write("input.yaml", json.dumps({**raw, "parameters": {"role": "web"}}))
    return lb, web


def kicks_of(member: Member) -> tuple[str, ...] | None:
    said = Outbox(member.root / "var").entry()
    return None if said is None else said.kicks


def waits(member: Member) -> bool:
    return any((member.root / "var" / "kicks").iterdir())


def test_kicks_follow_the_entry_of_their_run_once_a_node(fleet: Fleet) -> None:
    lb, web = make(fleet)
    fleet.start()
    told = entry(lb.name, at=time.time(), roles=("haproxy",), kicks=('role="web"',))
    Outbox(lb.root / "var").offer(told, refresh=0)
    wait_known(web.node, "haproxy", lb.name)
    assert "Kick[balancers]: kicks lb.example.com after this run" in web.run("apply", code=0).out
    lb.wait_log(r"run .* ended")
    web.wait_log(f"kicks {lb.name}")
    first, then = web.log.index("published the last run"), web.log.index(f"kicks {lb.name}")
    assert first < then, web.log
    assert lb.log.count(f"accepted a trigger from {web.name}") == 1
    web.wait_log("nodes make each other run: haproxy -> web -> haproxy")
    assert kicks_of(web) == ALL
    wait_until(lambda: not waits(web), lambda: web.log)
    assert web.run("why", "--json").json["kicks"] == [lb.name]
    assert f"Kicks\n  {lb.name}\n" in web.run("why").out


def test_without_an_agent_the_publishing_process_sends_kicks(fleet: Fleet) -> None:
    lb, web = make(fleet)
    lb.start()
    fleet.present(lb)
    tell_role(lb.root, lb.name, "haproxy")
    wait_known(web.node, "haproxy", lb.name)
    web.run("apply", code=0)
    lb.wait_log(f"accepted a trigger from {web.name}")
    wait_until(lambda: not waits(web), lambda: "a kick waits")
    wait_known(lb.node, "web", web.name)


def test_reactions_can_be_turned_off(fleet: Fleet) -> None:
    lb, _ = balancer(fleet, agent={"react": False})
    assert not (lb.root / "var" / "agent" / "reactions.json").exists()
