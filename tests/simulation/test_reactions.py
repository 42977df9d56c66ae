"""Simulated fleets that react to each other keep the guarantees of reactions.

Agents are killed, catalogs fail, nodes are on hold. The tests also find planted bugs.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from localpuppet.fleet.edges import reactions as decision
from localpuppet.fleet.edges.reactions import FinishedRun, ReactionState, WatchedQuery
from localpuppet.fleet.edges.reactor import Reactor
from localpuppet.fleet.inventory.query.functions import FunctionCall
from tests.rigs.long import with_sample
from tests.simulation.reacting import Node, ReactingFleet
from tests.simulation.reaction_history import check

QUESTIONS = [
    FunctionCall.of("servers_with_role", ["web"]),
    FunctionCall.of("server_with_role", ["db", {"hostname": "none"}]),
    FunctionCall.of("query_nodes", ["role=web", "value"]),
    FunctionCall.of("query_facts", ["role=db or role=web", ["value", "digests"]]),
    FunctionCall.of("puppetdb_query", ["inventory[certname, facts.digests] { facts.role = 'db' }"]),
    FunctionCall.of("puppetdb_query", ["inventory[count()] { facts.value > 1 }"]),
    FunctionCall.of(
        "puppetdb_query",
        ["nodes[certname] { certname in facts[certname] { name = 'role' and value = 'web' } }"],
    ),
]
PLACES = ["before", "pending", "accepted", "saved"]
ROUNDS = 14
# These fleets find the current planted bugs early: the first of 300 that finds one may be late.
FINDING = (3, 7, 8, 11, 36, 42, 108, 170)


def publish_something_new(fleet: ReactingFleet, node: Node, value: int) -> None:
    """A node runs and publishes a new value, and all others receive it immediately."""
    node.value, node.broken, node.held = value, False, None
    fleet.restart(node)
    fleet.timer(node)
    fleet.work(node)
    for other in fleet.nodes:
        fleet.deliver(other, node.me)


def play(fleet: ReactingFleet, chance: Random, steps: int, *, busy: bool) -> None:
    """Do random steps; with `busy`, many are changes that all nodes receive immediately."""

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
            lambda: publish_something_new(fleet, node, fleet.number()),
            lambda: publish_something_new(fleet, node, fleet.number()),
            fleet.let_all_work,
        ]
        chance.choice(what + news * busy)()

    for _ in range(steps):
        happens(chance.choice(fleet.nodes))


def problems(seed: int, *, steps: int = 250) -> list[str]:
    """Return the violated guarantees of a fleet that is made from a seed."""
    chance = Random(seed)  # noqa: S311 - a fleet, not a secret
    size = chance.randint(2, 4)
    asked = [chance.sample(QUESTIONS, chance.randint(1, 3)) for _ in range(size)]
    feeds = [chance.random() < 0.6 for _ in range(size)]
    fleet = ReactingFleet(asked, feeds)
    for node in fleet.nodes:  # each node has run once
        fleet.timer(node)
        fleet.work(node)
    play(fleet, chance, steps, busy=seed % 2 == 1)
    found = check(fleet.history, settled=False)
    if not fleet.settle(ROUNDS):
        found.append("the fleet does not become quiet")
    return [*found, *check(fleet.history, settled=True)]


@pytest.mark.parametrize("seed", with_sample(range(40), *range(8)))
def test_a_simulated_fleet_keeps_the_guarantees_of_reactions(seed: int) -> None:
    assert problems(seed) == []


def test_the_simulation_produces_reactions_log_lines_and_kills() -> None:
    """A simulation without reactions would keep every guarantee."""
    chance = Random(1)  # noqa: S311 - as above
    fleet = ReactingFleet([[one] for one in QUESTIONS[:4]], [True] * 4)
    for node in fleet.nodes:
        fleet.timer(node)
        fleet.work(node)
    play(fleet, chance, 600, busy=True)
    kinds = [event["what"] for event in fleet.history]
    assert kinds.count("reacted") > 10
    assert {"line", "killed", "changed"} <= set(kinds)


# Plausible bugs: the simulation must find each.
Plant = pytest.MonkeyPatch


def forgets_what_had_its_run(plant: Plant) -> None:
    """Reacts repeatedly while the catalog fails."""
    dealt_with = WatchedQuery.dealt_with

    def forgetful(self: WatchedQuery, newest: Any, *, tried: bool) -> WatchedQuery:
        return replace(dealt_with(self, newest, tried=tried), answered_digests=())

    plant.setattr(WatchedQuery, "dealt_with", forgetful)


def begins_a_chain_each_time(plant: Plant) -> None:
    """Ignores the chain that led to a change, so that two nodes react to each other endlessly."""
    plant.setattr(decision, "next_path", lambda _paths, *, me, receiver: (me,))


def knows_no_limit(plant: Plant) -> None:
    """Reacts to every change."""
    plant.setattr(decision, "node_waits_until", lambda _made, now: now)
    plant.setattr(decision, "peer_waits_until", lambda _made, _peer, now: now)


def decides_during_a_run(plant: Plant) -> None:
    """Does not wait for the answers that the active run gets."""
    catch_up = Reactor.catch_up
    plant.setattr(Reactor, "catch_up", lambda self: (catch_up(self)[0], False))


def hands_over_before_it_remembers(plant: Plant) -> None:
    """Hands a reaction over before it is saved, so that a kill in between repeats it."""
    remember = Reactor._remember

    def late(self: Reactor, state: ReactionState) -> None:
        if state.pending:
            self.host.react(state.pending)
            state = replace(state, pending=())
        remember(self, state)

    plant.setattr(Reactor, "_remember", late)


def forgets_what_is_pending(plant: Plant) -> None:
    """Forgets a saved reaction that a kill prevented it from handing over."""
    load = Node.load

    def less(self: Node) -> ReactionState:
        return replace(load(self), pending=())

    plant.setattr(Node, "load", less)


def says_nothing(plant: Plant) -> None:
    """Stops a loop without a log line."""
    decide = decision.decide
    plant.setattr(
        decision, "decide", lambda *words, **more: replace(decide(*words, **more), lines=())
    )


def overlooks_runs_that_failed(plant: Plant) -> None:
    """Reacts to answers with which a run by the timer has already failed."""
    after = ReactionState.after

    def only_good(self: ReactionState, run: FinishedRun) -> ReactionState:
        return after(self, run) if run.good else replace(self, run=run.run)

    plant.setattr(ReactionState, "after", only_good)


BUGS: Sequence[Callable[[Plant], None]] = (
    forgets_what_had_its_run,
    begins_a_chain_each_time,
    knows_no_limit,
    decides_during_a_run,
    hands_over_before_it_remembers,
    forgets_what_is_pending,
    says_nothing,
    overlooks_runs_that_failed,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug", with_sample(BUGS, forgets_what_had_its_run, says_nothing), ids=lambda bug: bug.__name__
)
def test_the_simulation_finds_a_planted_bug_of_reactions(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    assert any(problems(seed) for seed in (*FINDING, *range(300)))
