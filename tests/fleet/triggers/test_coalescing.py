"""At most one run and one that waits; holds; restarts; storms; where chains end."""

import json
import tracemalloc
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus.bus_limits import (
    MAX_WAITING_PATHS,
    MAX_WAITING_TEXT,
    MAX_WAITING_TRIGGERS,
)
from localpuppet.fleet.triggers.cause import CauseKind, RunCause
from localpuppet.fleet.triggers.coalescing import SPELT, Coalescer, Path
from localpuppet.fleet.triggers.trigger_admission import next_path
from tests.fleet.make import a_cause, there

NOW = 1_795_000_000
A, B, C = (NodeName(f"{letter}.example.com") for letter in "abc")


def trigger(number: int, *, path: Path = (A,), ttl: int = 180) -> RunCause:
    times = {"timestamp": NOW, "expires": NOW + ttl}
    of = {"sender": path[-1], "uuid": str(uuid.UUID(int=number)), "path": path}
    return a_cause(CauseKind.TRIGGER, **of, **times)


def timer(number: int) -> RunCause:
    return a_cause(uuid=str(uuid.UUID(int=number)), timestamp=NOW, expires=NOW + 1800)


def started(coalescer: Coalescer) -> tuple[str, ...]:
    batch = coalescer.step(NOW, held=None).start
    return batch.ids if batch else ()


@pytest.fixture
def coalescer() -> Coalescer:
    return Coalescer()


def test_causes_during_a_run_lead_to_a_single_run_after_it(coalescer: Coalescer) -> None:
    first, *later = [trigger(number) for number in range(5)]
    coalescer.accept(first)
    assert started(coalescer) == (first.id,)
    for cause in later:
        coalescer.accept(cause)
        assert started(coalescer) == (), "one at a time"
    assert coalescer.ended() == (first.id,)
    assert started(coalescer) == tuple(cause.id for cause in later)
    coalescer.ended()
    assert started(coalescer) == ()
    assert (coalescer.running, coalescer.waiting) == (None, None)


def test_a_cause_is_taken_once(coalescer: Coalescer) -> None:
    coalescer.accept(trigger(1))
    assert "waits for its run already" in str(coalescer.problem(trigger(1)))
    started(coalescer)
    assert "waits for its run already" in str(coalescer.problem(trigger(1)))
    assert coalescer.problem(trigger(1, path=(C,))) is None, "another sender's id"


def test_each_cause_outwaits_a_hold_for_its_own_time(coalescer: Coalescer) -> None:
    short, long, ever = trigger(1, ttl=60), trigger(2, ttl=600), timer(3)
    for cause in (short, long, ever):
        coalescer.accept(cause)
    assert coalescer.step(NOW + 60.9, held="disk").dropped == (), "its last second is not over"
    step = coalescer.step(NOW + 61, held="disk")
    assert step.start is None
    assert [drop.id for drop in step.dropped] == [short.id]
    assert step.dropped[0].reason == "expired while the node was on hold: disk"
    batch = there(coalescer.step(NOW + 61, held=None).start)
    assert batch.ids == (long.id, ever.id)
    assert [item["uuid"] for item in batch.to_dict()["causes"]] == [long.uuid, ever.uuid]
    endless = Coalescer.restore([replace(ever, expires=None)])
    assert endless.step(NOW + 10**9, held="disk").dropped == ()


def test_waiting_causes_expire_one_after_the_other(coalescer: Coalescer) -> None:
    causes = [trigger(number, ttl=100 * number) for number in (1, 2, 3)]
    for cause in causes:
        coalescer.accept(cause)
    started(coalescer)
    late = trigger(4, ttl=10)
    coalescer.accept(late)
    coalescer.put_back()
    for cause, after in ((late, 11), *((cause, 100 * n + 1) for n, cause in enumerate(causes, 1))):
        assert coalescer.step(NOW + after - 1, held="disk").dropped == ()
        assert [drop.id for drop in coalescer.step(NOW + after, held="disk").dropped] == [cause.id]


def test_a_cause_that_waits_for_a_run_does_not_expire(coalescer: Coalescer) -> None:
    coalescer.accept(timer(1))
    started(coalescer)
    coalescer.accept(trigger(2, ttl=1))
    assert coalescer.step(NOW + 9999, held=None).dropped == ()
    coalescer.ended()
    step = coalescer.step(NOW + 9999, held=None)
    assert step.start is not None
    assert step.start.ids == (trigger(2).id,)


def test_causes_of_a_run_that_did_not_start_wait_again_in_order(coalescer: Coalescer) -> None:
    coalescer.accept(trigger(1))
    started(coalescer)
    coalescer.accept(trigger(2, path=(C,), ttl=10))
    coalescer.put_back()
    assert started(coalescer) == (trigger(1).id, trigger(2, path=(C,)).id)
    assert coalescer.running is not None
    assert coalescer.running.paths == ((A,), (C,))


def test_a_run_that_cannot_start_drops_each_cause_with_the_reason(coalescer: Coalescer) -> None:
    coalescer.accept(trigger(1))
    coalescer.accept(trigger(2))
    started(coalescer)
    coalescer.accept(trigger(3))
    drops = coalescer.give_up("input.yaml: has no app")
    assert [drop.id for drop in drops] == [trigger(1).id, trigger(2).id]
    assert {drop.reason for drop in drops} == {"no run could be started: input.yaml: has no app"}
    assert started(coalescer) == (trigger(3).id,)


def test_after_a_restart_all_that_is_not_settled_waits() -> None:
    causes = [trigger(1), timer(2), trigger(3, path=(A, C))]
    coalescer = Coalescer.restore(RunCause.from_dict(cause.to_dict()) for cause in causes)
    batch = there(coalescer.step(NOW + 9999, held=None).start)
    assert batch.ids == tuple(cause.id for cause in causes)
    assert set(batch.paths) == {(A,), (), (A, C)}


def test_no_run_is_on() -> None:
    for method in (Coalescer().ended, Coalescer().put_back, lambda: Coalescer().give_up("x")):
        with pytest.raises(RuntimeError, match="a bug in localpuppet"):
            method()


def test_a_storm(coalescer: Coalescer) -> None:
    coalescer.accept(timer(0))
    started(coalescer)
    tracemalloc.start()
    for number in range(1, 10_001):
        cause = trigger(number)
        assert coalescer.problem(cause) is None
        coalescer.accept(cause)
        assert coalescer.step(NOW, held=None).start is None
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert memory < 8 * 1024 * 1024
    coalescer.ended()
    batch = there(coalescer.step(NOW, held=None).start)
    assert len(batch.ids) == 10_000
    record = batch.to_dict()
    assert (len(record["causes"]), record["count"]) == (SPELT, 10_000)
    assert str(batch) == "10000 causes: trigger from a.example.com, …"
    assert len(json.dumps(record)) < 50_000
    assert len(coalescer.ended()) == 10_000
    assert started(coalescer) == (), "two runs in all"


def test_a_storm_on_hold_is_dropped_one_by_one(coalescer: Coalescer) -> None:
    for number in range(5000):
        coalescer.accept(trigger(number, ttl=100 + number % 3))
        coalescer.step(NOW, held="disk")
    dropped = [coalescer.step(NOW + second, held="disk").dropped for second in (100, 101, 102, 103)]
    assert [len(drops) for drops in dropped] == [0, 1667, 1667, 1666]


def test_memory_has_an_end(coalescer: Coalescer) -> None:
    for number in range(MAX_WAITING_TRIGGERS):
        coalescer.accept(trigger(number))
    assert coalescer.problem(trigger(-1 % 2**100)) == "20000 causes wait for a run already"
    assert coalescer.problem(trigger(10**6, path=(B,))) is None, "of another sender"
    assert coalescer.problem(timer(10**7)) is None
    started(coalescer)
    for number in range(MAX_WAITING_PATHS):
        coalescer.accept(trigger(number + 10**6, path=(NodeName(f"n{number}"), A)))
    assert coalescer.problem(trigger(10**7, path=(NodeName("n0"), A))) is None
    assert "1000 different paths" in str(coalescer.problem(trigger(10**7, path=(C, A))))


def test_a_sender_that_invents_paths_leaves_room_for_others(coalescer: Coalescer) -> None:
    for number in range(3 * MAX_WAITING_PATHS):
        cause = trigger(number, path=(NodeName(f"n{number}"), A))
        if coalescer.problem(cause) is None:
            coalescer.accept(cause)
    assert coalescer.waiting is not None
    assert len(coalescer.waiting.paths) == MAX_WAITING_PATHS, "at most its own room"
    for number, sender in enumerate((B, C), 10**6):
        other = trigger(number, path=(sender,))
        assert coalescer.problem(other) is None
        coalescer.accept(other)
    assert coalescer.problem(timer(10**7)) is None, "nor a run of the node's own"


def test_a_sender_with_large_triggers_leaves_room_for_others(coalescer: Coalescer) -> None:
    """Each is on disk, and in memory after a restart."""
    large = ("x" * 1000,) * 64
    sent = 0
    while coalescer.problem(cause := replace(trigger(sent), tags=large)) is None:
        coalescer.accept(cause)
        sent += 1
    assert sent * 64_000 < 2 * MAX_WAITING_TEXT
    other = trigger(10**6, path=(B,))
    assert coalescer.problem(other) is None
    assert coalescer.problem(timer(10**7)) is None, "nor a run of the node's own"


def test_the_tags_of_a_run_fit_into_an_argument(coalescer: Coalescer) -> None:
    """Otherwise no run could be started, and all causes would be dropped."""

    def asked(number: int) -> RunCause:
        tags = tuple(f"{number:04}{tag:04}{'x' * 900}" for tag in range(20))
        more = {"sender": "choria=eve", "puppet_tags": tags, "timestamp": NOW}
        return a_cause(CauseKind.REQUEST, uuid=str(uuid.UUID(int=number)), **more)

    for number in range(8):
        if coalescer.problem(asked(number)) is None:
            coalescer.accept(asked(number))
    started(coalescer)
    for number in range(8, 16):
        if coalescer.problem(asked(number)) is None:
            coalescer.accept(asked(number))
    coalescer.put_back()
    batch = there(coalescer.waiting)
    assert len(batch) == 4
    assert len(",".join(batch.puppet_tags)) < 128 * 1024


def test_room_is_counted_again_when_causes_expire_or_are_put_back(coalescer: Coalescer) -> None:
    for number in range(MAX_WAITING_PATHS):
        coalescer.accept(trigger(number, path=(NodeName(f"n{number}"), A), ttl=10))
    coalescer.accept(trigger(10**6, path=(C, A), ttl=1000))
    new = trigger(10**7, path=(B, A))
    assert coalescer.problem(new) is not None
    assert len(coalescer.step(NOW + 11, held="work").dropped) == MAX_WAITING_PATHS
    assert coalescer.problem(new) is None, "expired causes take no room"
    started(coalescer)
    for number in range(MAX_WAITING_PATHS):
        coalescer.accept(trigger(number, path=(NodeName(f"n{number}"), A)))
    coalescer.put_back()
    assert coalescer.problem(new) is not None
    assert coalescer.problem(trigger(10**7, path=(B,))) is None


@pytest.mark.parametrize(
    ("causes", "text"),
    [
        ([timer(1)], "timer"),
        ([trigger(1)], "trigger from a.example.com"),
        ([trigger(1), trigger(2)], "2 causes: trigger from a.example.com"),
        ([trigger(1), timer(2)], "2 causes: trigger from a.example.com, timer"),
        (
            [trigger(1), timer(2), trigger(3, path=(C,))],
            "3 causes: trigger from a.example.com, timer, …",
        ),
    ],
)
def test_a_batch_for_people(causes: list[RunCause], text: str) -> None:
    assert str(Coalescer.restore(causes).waiting) == text


def test_a_node_sends_on_along_a_cause_without_the_receiver() -> None:
    assert next_path([(A,)], me=B, receiver=C) == (A, B)
    assert next_path([()], me=B, receiver=C) == (B,)
    assert next_path([(C,), (A,)], me=B, receiver=C) == (A, B)
    assert next_path([(A, C), (C,)], me=B, receiver=A) == (C, B)
    shortest = next_path([(A, C), (A,), ()], me=B, receiver=NodeName("d"))
    assert shortest == (B,), "it leaves most of the chain"


@pytest.mark.parametrize(
    ("paths", "receiver", "text"),
    [
        ([(A,)], A, "the loop ends here: a.example.com is in the path a.example.com -> b"),
        ([(A, C), (C, A)], A, "(and of 1 more)"),
        ([()], B, "b.example.com does not trigger itself"),
        ([], A, "no trigger is sent: the run uses an unreleased work tree"),
        ([tuple(NodeName(f"n{i}") for i in range(9))], A, "the chain ends here: 8 hops"),
    ],
)
def test_chains_end_with_a_reason(paths: list[Path], receiver: NodeName, text: str) -> None:
    answer = next_path(paths, me=B, receiver=receiver)
    assert isinstance(answer, str)
    assert text in answer


nodes = st.sampled_from([NodeName(f"n{number}") for number in range(12)])
some_paths = st.lists(st.lists(nodes, unique=True, max_size=9).map(tuple), max_size=5)


@given(some_paths, nodes, nodes)
def test_a_path_grows_by_this_node_and_has_no_node_twice(
    paths: list[Path], me: NodeName, receiver: NodeName
) -> None:
    answer = next_path(paths, me=me, receiver=receiver)
    fitting = [path for path in paths if not {me, receiver} & set(path) and len(path) < 9]
    possible = fitting if me != receiver else []
    if isinstance(answer, str):
        assert not possible
        return
    assert answer[:-1] in possible
    assert answer[-1] == me
    assert receiver not in answer
    assert len(set(answer)) == len(answer) <= 9


@given(some_paths, some_paths, nodes, nodes)
def test_mixing_causes_adds_no_path(
    some: list[Path], others: list[Path], me: NodeName, receiver: NodeName
) -> None:
    mixed = next_path([*some, *others], me=me, receiver=receiver)
    alone = [next_path([path], me=me, receiver=receiver) for path in [*some, *others]]
    assert isinstance(mixed, str) or mixed in alone
    assert isinstance(mixed, str) == all(isinstance(path, str) for path in alone)
