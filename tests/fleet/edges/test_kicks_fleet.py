"""A node kicks another with the real Puppet: after its run, when the other can see its entry."""

import json
import time

from localpuppet.fleet.inventory.outbox import Outbox
from tests.fleet.inventory.entries import entry
from tests.fleet.inventory.test_fleet import tell, wait_known
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member
from tests.rigs.waiting import wait_until

CODE = """
exec { '/bin/true': } ~> kick { 'balancers': roles => ['haproxy'] }
exec { '/bin/echo': } ~> kick { 'the same': query => 'role=haproxy or role=web' }
notify { 'kick -> dns': }
"""
ALL = ('role="haproxy"', "role=haproxy or role=web", 'role="dns"')


def make(fleet: Fleet) -> tuple[Member, Member]:
    """Return a load balancer, and a web server that kicks it with real Puppet."""
    (lb,) = fleet.add("lb")
    (web,) = fleet.add("web", puppet=True)
    settings = json.loads((web.root / "localpuppet.yaml").read_text())
    settings["puppet"]["reports"] = ["kick"]
    web.node.write("localpuppet.yaml", json.dumps(settings))
    web.node.app(CODE)
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
    done = web.run("apply")
    assert done.code == 0, done.err
    assert "Kick[balancers]: kicks lb.example.com after this run" in done.out
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
    tell(lb.root, lb.name, "haproxy")
    wait_known(web.node, "haproxy", lb.name)
    done = web.run("apply")
    assert done.code == 0, done.err
    lb.wait_log(f"accepted a trigger from {web.name}")
    wait_until(lambda: not waits(web), lambda: "a kick waits")
    wait_known(lb.node, "web", web.name)
