"""Fleets that react to each other, with agents that are killed, catalogs that fail and holds: what
is guaranteed of reactions holds. And bugs that are planted are found.
"""

from collections.abc import Callable
from random import Random

import pytest

from localpuppet.fleet.inventory.query.functions import FunctionCall
from tests.simulation.planted_reactions import BUGS
from tests.simulation.reacting import Node, ReactingFleet
from tests.simulation.reaction_history import check

QUESTIONS = [
    FunctionCall.of("servers_with_role", ["web"]),
    FunctionCall.of("server_with_role", ["db", {"hostname": "none"}]),
    FunctionCall.of("query_nodes", ["role=web", "value"]),
    FunctionCall.of("query_facts", ["role=db or role=web", ["value", "said"]]),
    FunctionCall.of("puppetdb_query", ["inventory[certname, facts.said] { facts.role = 'db' }"]),
    FunctionCall.of("puppetdb_query", ["inventory[count()] { facts.value > 1 }"]),
    FunctionCall.of(
        "puppetdb_query",
        ["nodes[certname] { certname in facts[certname] { name = 'role' and value = 'web' } }"],
    ),
]
PLACES = ["before", "pending", "accepted", "saved"]
ROUNDS = 14
# These fleets find the bugs of today: the first of 300 that finds one may come late.
FINDING = (3, 7, 8, 11, 36, 42, 108, 170)


def say_something_new(fleet: ReactingFleet, node: Node, value: int) -> None:
    """A node runs, says what it was not before, and all others hear it at once."""
    node.value, node.broken, node.held = value, False, None
    fleet.restart(node)
    fleet.timer(node)
    fleet.work(node)
    for other in fleet.nodes:
        fleet.deliver(other, node.me)


def play(fleet: ReactingFleet, chance: Random, steps: int, *, busy: bool) -> None:
    """Let happen what may; `busy`: much of it is news that all nodes hear at once."""

    def happens(node: Node) -> None:
        other = chance.choice(fleet.nodes)
        what: list[Callable[[], object]] = [
            lambda: fleet.deliver(node, other.me),
            lambda: fleet.deliver(node, other.me),
            lambda: fleet.turn(node),
            lambda: fleet.turn(node),
            lambda: fleet.turn(node, die_at=chance.choice(PLACES)),
            lambda: fleet.step(node),
            lambda: fleet.step(node),
            lambda: fleet.compile(node),
            lambda: fleet.end(node),
            lambda: fleet.acknowledge(node),
            lambda: fleet.work(node),
            lambda: fleet.timer(node),
            lambda: fleet.kill(node),
            lambda: fleet.restart(node),
            lambda: fleet.restart(node),
            lambda: fleet.forget(node, other.me),
            lambda: setattr(node, "value", chance.randrange(4)),
            lambda: setattr(node, "role", chance.choice(["web", "db"])),
            lambda: setattr(node, "broken", chance.random() < 0.4),
            lambda: setattr(node, "held", chance.choice([None, None, "disks"])),
            lambda: setattr(fleet, "time", fleet.time + chance.choice([1, 60, 700])),
        ]
        news: list[Callable[[], object]] = [
            lambda: say_something_new(fleet, node, fleet.number()),
            lambda: say_something_new(fleet, node, fleet.number()),
            fleet.let_all_work,
        ]
        chance.choice(what + news * busy)()

    for _ in range(steps):
        happens(chance.choice(fleet.nodes))


def problems(seed: int, *, steps: int = 250) -> list[str]:
    """Return what is wrong with a fleet that a number stands for."""
    chance = Random(seed)  # noqa: S311 - a fleet, not a secret
    size = chance.randint(2, 4)
    asked = [chance.sample(QUESTIONS, chance.randint(1, 3)) for _ in range(size)]
    feeds = [chance.random() < 0.6 for _ in range(size)]
    fleet = ReactingFleet(asked, feeds)
    for node in fleet.nodes:  # a fleet that is up
        fleet.timer(node)
        fleet.work(node)
    play(fleet, chance, steps, busy=seed % 2 == 1)
    found = check(fleet.history, settled=False)
    if not fleet.settle(ROUNDS):
        found.append("it goes on for ever")
    return [*found, *check(fleet.history, settled=True)]


@pytest.mark.parametrize("seed", range(40))
def test_what_is_guaranteed_holds(seed: int) -> None:
    assert problems(seed) == []


def test_reactions_are_what_happens() -> None:
    """The simulation is about something: there are reactions, lines, kills and good runs."""
    chance = Random(1)  # noqa: S311 - as above
    fleet = ReactingFleet([[one] for one in QUESTIONS[:4]], [True] * 4)
    for node in fleet.nodes:
        fleet.timer(node)
        fleet.work(node)
    play(fleet, chance, 600, busy=True)
    kinds = [event["what"] for event in fleet.history]
    assert kinds.count("reacted") > 10
    assert {"line", "killed", "changed"} <= set(kinds)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    assert any(problems(seed) for seed in (*FINDING, *range(300)))
