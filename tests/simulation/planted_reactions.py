"""Plausible bugs of reactions: the tests must find each."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from localpuppet.fleet.edges import reactions as decision
from localpuppet.fleet.edges import reactor
from localpuppet.fleet.edges.reactions import FinishedRun, ReactionState, WatchedQuery
from localpuppet.fleet.edges.reactor import Reactor
from tests.simulation.reacting import Node

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
    plant.setattr(
        reactor, "decide", lambda *words, **more: replace(decision.decide(*words, **more), lines=())
    )


def records_todays_answers_for_those_of_a_run(plant: Plant) -> None:
    """Loses changes during the run."""
    after = ReactionState.after

    def wrong(self: ReactionState, run: FinishedRun) -> ReactionState:
        return after(
            self, replace(run, dependencies=tuple(_today(one) for one in run.dependencies))
        )

    asked: list[Callable[[str], Any]] = []

    def _today(one: Any) -> Any:
        return replace(one, answer=asked[-1](one.key))

    catch_up = Reactor.catch_up

    def noting(self: Reactor) -> tuple[bool, bool]:
        asked.append(self.sources[0].ask)
        return catch_up(self)

    plant.setattr(ReactionState, "after", wrong)
    plant.setattr(Reactor, "catch_up", noting)


def forgets_over_a_restart(plant: Plant) -> None:
    """Keeps the answers that had their run in memory only."""
    save = Node.save

    def less(self: Node, state: ReactionState) -> None:
        bare = tuple(replace(one, answered_digests=()) for one in state.queries)
        save(self, replace(state, queries=bare))

    plant.setattr(Node, "save", less)


def thinks_that_nothing_was_tried(plant: Plant) -> None:
    """Treats the return to an earlier answer after a failed run as no change."""
    dealt_with = WatchedQuery.dealt_with

    def untried(self: WatchedQuery, newest: Any, *, tried: bool) -> WatchedQuery:
        return replace(dealt_with(self, newest, tried=tried), tried=False)

    plant.setattr(WatchedQuery, "dealt_with", untried)


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
    records_todays_answers_for_those_of_a_run,
    forgets_over_a_restart,
    thinks_that_nothing_was_tried,
    overlooks_runs_that_failed,
)
