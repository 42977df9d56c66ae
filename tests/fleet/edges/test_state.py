"""The stored state of reactions."""

from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import StateError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.edges.reactions import (
    FILE,
    MAX_ANSWERED,
    AnswerDigest,
    Dependency,
    FinishedRun,
    PastReaction,
    ReactionMemory,
    ReactionState,
    WatchedQuery,
)
from localpuppet.fleet.triggers.cause import AnswerChange, CauseKind, ChangeKind, RunCause


def asked(digest: str, key: str = "k") -> Dependency:
    told = AnswerDigest(digest=digest, revision=3, parts={"a.example.com": {"ip": digest}})
    return Dependency(source="query", key=key, text=f"q({key})", answer=told)


CAUSE = RunCause(
    kind=CauseKind.QUERY,
    sender="lb.example.com",
    uuid="00000000-0000-4000-8000-000000000001",
    path=(NodeName("a.example.com"),),
    timestamp=1_795_000_000,
    expires=None,
    changes=(AnswerChange.of("q(k)", ChangeKind.CHANGED, ("ip",)),),
)
WATCHED = WatchedQuery(question=asked("d0"), base_digest="d0")
STATE = ReactionState(
    run="1",
    queries=(WATCHED,),
    reactions=(PastReaction(at=1.5, nodes=("a.example.com",), causes=(CAUSE.id,)),),
    pending=(CAUSE,),
)


def test_it_survives(tmp_path: Path) -> None:
    memory = ReactionMemory(tmp_path)
    assert memory.load() == ReactionState()
    memory.save(STATE)
    assert memory.load() == STATE
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"schema": 2}', '{"schema": 1, "run": 1}'])
def test_a_damaged_file_is_an_error_that_names_the_file(tmp_path: Path, damage: str) -> None:
    memory = ReactionMemory(tmp_path)
    memory.save(STATE)
    (tmp_path / FILE).write_text(damage)
    with pytest.raises(StateError, match=r"reactions\.json: .*move it away"):
        memory.load()


def test_a_good_run_replaces_what_is_watched() -> None:
    before = replace(STATE, queries=(replace(WATCHED, answered_digests=("d1",), tried=True),))
    run = FinishedRun(run="2", good=True, dependencies=(asked("d2", "k"), asked("d3", "new")))
    after = before.after(run)
    assert after.run == "2"
    assert [
        (one.question.key, one.base_digest, one.answered_digests, one.tried)
        for one in after.queries
    ] == [
        ("k", "d2", (), False),
        ("new", "d3", (), False),
    ]


def test_a_failed_run_has_received_its_answers_too() -> None:
    run = FinishedRun(run="2", good=False, dependencies=(asked("d2", "k"), asked("d3", "new")))
    (one,) = STATE.after(run).queries
    assert (one.base_digest, one.question.answer.digest, one.answered_digests) == (
        "d0",
        "d2",
        ("d2",),
    )
    assert one.tried


def test_a_failed_run_without_queries_keeps_the_watched_queries() -> None:
    assert STATE.after(FinishedRun(run="2", good=False)).queries == STATE.queries
    assert STATE.after(FinishedRun(run="2", good=True)).queries == ()


def test_the_number_of_remembered_answers_is_limited() -> None:
    one = WATCHED
    for number in range(2 * MAX_ANSWERED):
        one = one.dealt_with(AnswerDigest(digest=str(number), revision=1), tried=True)
    assert len(one.answered_digests) == MAX_ANSWERED
    assert one.answered_digests[-1] == str(2 * MAX_ANSWERED - 1)


def test_a_cause_of_this_kind_needs_a_path() -> None:
    assert str(CAUSE) == "change of a.example.com"
    assert RunCause.from_dict(CAUSE.to_dict()) == CAUSE
    with pytest.raises(StateError):
        RunCause.from_dict({**CAUSE.to_dict(), "path": []})
    with pytest.raises(StateError):
        RunCause.from_dict({**CAUSE.to_dict(), "changes": [{"query": "x"}]})
