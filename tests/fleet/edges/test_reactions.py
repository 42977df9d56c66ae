"""Which nodes made an answer another one, what follows of it, and the stored state of reactions."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import StateError
from localpuppet.base.formats.converter import from_record, to_record
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.edges.reactions import (
    FILE,
    HOUR,
    HOURLY,
    MAX_ANSWERED,
    MAX_CAUSES,
    MAX_NODES,
    PAUSES,
    SKEW,
    AnswerDigest,
    ChangedPeer,
    Dependency,
    FinishedRun,
    NewAnswer,
    PastReaction,
    ReactionDecision,
    ReactionMemory,
    ReactionState,
    WatchedQuery,
    changes,
    decide,
)
from localpuppet.fleet.triggers.cause import AnswerChange, CauseKind, ChangeKind, RunCause
from tests.fleet.make import a_cause

ME = NodeName("lb01.example.com")
WEB = NodeName("web01.example.com")
DB = NodeName("db01.example.com")
NOW = 1_795_000_000.0
ROLE = 'servers_with_role("web")'


def told(digest: str, revision: int = 1) -> AnswerDigest:
    return AnswerDigest(digest=digest, revision=revision, parts={WEB: {"ipaddress": digest}})


def watched(base: str = "d0", *, key: str = ROLE) -> WatchedQuery:
    asked = Dependency(source="query", key=key, text=key, answer=told(base))
    return WatchedQuery(question=asked, base_digest=base)


ONE = watched()


def peer(
    node: NodeName = WEB, *paths: tuple[NodeName, ...], refusal: str | None = None
) -> ChangedPeer:
    change = AnswerChange.of(ROLE, ChangeKind.CHANGED, ("ipaddress",))
    return ChangedPeer(node=node, paths=paths or ((),), refusal=refusal, change=change)


def seen(one: WatchedQuery, digest: str, *peers: ChangedPeer) -> NewAnswer:
    return NewAnswer(watched=one, now=told(digest, 2), peers=peers or (peer(),))


def decided(
    state: ReactionState, *news: NewAnswer, now: float = NOW, waits: bool = False
) -> ReactionDecision:
    ids = iter(f"00000000-0000-4000-8000-{index:012}" for index in range(1000))
    return decide(state, news, me=ME, now=now, waits=waits, new_id=lambda: next(ids))


def made(*ages: float, node: NodeName = DB) -> tuple[PastReaction, ...]:
    return tuple(PastReaction(at=NOW - age, nodes=(node,), causes=()) for age in ages)


def test_a_change_is_a_reaction_along_the_path_of_the_node_that_changed() -> None:
    decision = decided(ReactionState(queries=(ONE,)), seen(ONE, "d1", peer(WEB, (DB,))))
    (cause,) = decision.state.pending
    assert (cause.kind, cause.sender, cause.path) == ("query", ME, (DB, WEB))
    assert cause.expires is None, "on hold it waits"
    found = cause.changes
    assert found == (AnswerChange(query=ROLE, how=ChangeKind.CHANGED, facts=("ipaddress",)),)
    (made_now,) = decision.state.reactions
    assert (made_now.at, made_now.nodes, made_now.causes) == (NOW, (WEB,), (cause.id,))
    assert decision.lines == ()


def test_each_answer_causes_at_most_one_run() -> None:
    after = decided(ReactionState(queries=(ONE,)), seen(ONE, "d1")).state.queries[0]
    other = decided(ReactionState(queries=(after,)), seen(after, "d2")).state.queries[0]
    again = decided(ReactionState(queries=(other,)), seen(other, "d1"))
    assert again.state.pending == ()
    assert "this answer already caused a run" in again.lines[0]
    assert ROLE in again.lines[0]


def test_a_return_to_the_old_answer_is_no_change_unless_a_run_was_tried() -> None:
    looped = decided(ReactionState(queries=(ONE,)), seen(ONE, "d1", peer(WEB, (ME,))))
    back = decided(looped.state, seen(looped.state.queries[0], "d0"))
    assert (back.state.pending, back.lines) == ((), ())
    assert back.state.queries[0].question.answer.digest == "d0"
    tried = decided(ReactionState(queries=(ONE,)), seen(ONE, "d1")).state
    assert decided(tried, seen(tried.queries[0], "d0")).state.pending != ()


def test_a_loop_is_logged_once_and_causes_no_run() -> None:
    decision = decided(ReactionState(queries=(ONE,)), seen(ONE, "d1", peer(WEB, (ME, DB))))
    assert decision.state.pending == ()
    (line,) = decision.lines
    assert f"the loop ends here: {ME} is in the path {ME} -> {DB} -> {WEB}" in line
    assert decided(decision.state, *[]).lines == ()
    assert decision.state.queries[0].question.answer.digest == "d1", "not looked at again"


def test_a_single_allowed_peer_is_enough_and_only_its_path_is_used() -> None:
    peers = (peer(WEB, (ME,)), peer(DB))
    decision = decided(ReactionState(queries=(ONE,)), seen(ONE, "d1", *peers))
    assert [cause.path for cause in decision.state.pending] == [(DB,)]


@pytest.mark.parametrize(
    ("peers", "line"),
    [
        pytest.param((peer(refusal="denied by line 1"),),
         "not allowed to make this node react: denied by line 1", id="the policy must allow it"),
        pytest.param((), "no node published a change to it", id="no node changed it"),
        pytest.param((peer(WEB, (DB, DB)),), "is not a chain", id="a path that is no chain"),
    ],
)  # fmt: skip
def test_an_answer_that_causes_no_run_is_logged(peers: tuple[ChangedPeer, ...], line: str) -> None:
    new = NewAnswer(watched=ONE, now=told("d1", 2), peers=peers)
    decision = decided(ReactionState(queries=(ONE,)), new)
    assert decision.state.pending == ()
    assert line in decision.lines[0]


def test_six_reactions_an_hour_and_the_seventh_waits() -> None:
    ages = [HOUR - 10, *[500.0] * (HOURLY - 1)]
    state = ReactionState(queries=(ONE,), reactions=made(*ages))
    decision = decided(state, seen(ONE, "d1"))
    assert (decision.state, decision.due) == (state, NOW + 10)
    assert f"the limit of {HOURLY} reactions an hour is reached" in decision.waiting
    later = decided(state, seen(ONE, "d1"), now=NOW + 10)
    assert len(later.state.pending) == 1
    assert len(later.state.reactions) == HOURLY, "reactions older than an hour are forgotten"


def test_a_peer_that_changes_again_and_again_is_waited_for() -> None:
    state = ReactionState(queries=(ONE,), reactions=made(300, 30, node=WEB))
    decision = decided(state, seen(ONE, "d1"))
    assert (decision.state, decision.due) == (state, NOW - 30 + PAUSES[2])
    assert "repeatedly" in decision.waiting
    both = decided(state, seen(ONE, "d1", peer(), peer(DB)))
    assert [cause.path for cause in both.state.pending] == [(DB,)], "another need not wait"


def test_a_peer_leaves_room_for_others() -> None:
    one, now, times = watched(), NOW, []
    state = ReactionState(queries=(one,))
    while now < NOW + HOUR:
        state = replace(decided(state, seen(one, "d1"), now=now).state, queries=(one,))
        times += [now] if state.pending else []
        state = replace(state, pending=())
        now += 10
    assert len(times) < HOURLY


def test_what_changes_while_a_reaction_waits_costs_nothing() -> None:
    state = ReactionState(queries=(ONE,), reactions=made(*[500.0] * HOURLY, node=WEB))
    decision = decided(state, seen(ONE, "d1"), waits=True)
    assert len(decision.state.pending) == 1
    assert len(decision.state.reactions) == HOURLY


def test_a_clock_set_back_a_little_keeps_the_limits_and_one_set_back_far_does_not() -> None:
    state = ReactionState(queries=(ONE,), reactions=made(*[-SKEW] * HOURLY))
    assert decided(state, seen(ONE, "d1")).due == NOW + SKEW + HOUR
    peers = ReactionState(queries=(ONE,), reactions=made(-1, -1, node=WEB))
    assert decided(peers, seen(ONE, "d1")).due == NOW + 1 + PAUSES[2]
    state = ReactionState(queries=(ONE,), reactions=made(*[-1e6] * HOURLY, node=WEB))
    assert len(decided(state, seen(ONE, "d1")).state.pending) == 1


def test_causes_have_a_limit() -> None:
    peers = tuple(peer(NodeName(f"n{index:03}.example.com")) for index in range(200))
    decision = decided(ReactionState(queries=(ONE,)), seen(ONE, "d1", *peers))
    assert len(decision.state.pending) == MAX_CAUSES
    assert len(decision.state.reactions[0].nodes) == 200, "each of them is waited for"


def test_a_peer_that_changed_two_answers_is_a_single_cause() -> None:
    role, facts = watched(), watched(key='query_facts("web", ["value"])')
    state = ReactionState(queries=(role, facts))
    (cause,) = decided(state, seen(role, "d1"), seen(facts, "d2")).state.pending
    assert len(cause.changes) == 2


TEXT = "query_nodes()"


def parts_of(**parts: Mapping[str, str]) -> AnswerDigest:
    return AnswerDigest(digest="d", revision=1, parts=parts)


def attributed(
    before: AnswerDigest,
    now: AnswerDigest,
    *,
    since: set[str] | None = None,
    gone: frozenset[str] = frozenset(),
) -> dict[str, tuple[ChangeKind, tuple[str, ...]]]:
    since = ({*before.parts, *now.parts} - gone) if since is None else since
    result = changes(TEXT, before, now, since=since, counts=lambda node: node not in gone)
    return {node: (one.how, one.facts) for node, one in result.items()}


def test_a_node_that_joined_one_that_left_and_one_that_changed() -> None:
    before = parts_of(a={"ip": "1", "os": "1"}, b={"ip": "1"}, c={"ip": "1"})
    now = parts_of(a={"ip": "2", "os": "1"}, b={"ip": "1"}, d={"ip": "1"})
    others = {"c": (ChangeKind.LEFT, ()), "d": (ChangeKind.JOINED, ())}
    assert attributed(before, now) == {"a": (ChangeKind.CHANGED, ("ip",)), **others}


def test_a_node_that_has_published_nothing_since_did_not_change_the_answer() -> None:
    """An answer of one node: another takes the place of the one that left."""
    before, now = parts_of(a={}), parts_of(b={})
    assert attributed(before, now, since={"a"}) == {"a": (ChangeKind.LEFT, ())}
    assert attributed(before, now, since=set(), gone=frozenset("a")) == {"a": (ChangeKind.LEFT, ())}
    # A bus that restarts its revisions hides no change.
    one, other = parts_of(a={"ip": "1"}), parts_of(a={"ip": "2"})
    assert attributed(one, other, since=set()) == {"a": (ChangeKind.CHANGED, ("ip",))}
    # A changed count is attributed to the nodes that published.
    same = parts_of(a={})
    assert attributed(same, same, since={"x"}) == {"x": (ChangeKind.ELSEWHERE, ())}
    assert attributed(same, same, since=set()) == {}
    # An answer without parts is compared by its nodes only.
    values = parts_of(a={"ip": "1"}, b={"ip": "2"})
    assert attributed(parts_of(a={}, b={}), values, since=set()) == {}


def test_nodes_and_facts_have_limits() -> None:
    many = {f"n{index:04}": {f"f{fact:03}": "1" for fact in range(50)} for index in range(500)}
    other = {node: dict.fromkeys(about, "2") for node, about in many.items()}
    before, now = (AnswerDigest(digest="a", revision=1, parts=parts) for parts in (many, other))
    result = changes(TEXT, before, now, since=set(many), counts=lambda _: True)
    assert len(result) == MAX_NODES
    assert len(result["n0000"].facts) == 16


def test_a_change_is_short() -> None:
    change = AnswerChange.of("x" * 1000 + "\n", ChangeKind.CHANGED, ("a\nb",))
    assert len(change.query) == 200
    assert "\n" not in change.facts[0]
    assert from_record(AnswerChange, to_record(change)) == change


def test_an_answer_that_is_too_large_to_explain_still_names_its_nodes() -> None:
    large = parts_of(a={"ip": "1"}, b={"ip": "1"}, c={})
    assert (large.explained, large.within(2)) == (2, large)
    short = large.within(1)
    assert (short.explained, short.digest, list(short.parts)) == (0, large.digest, ["a", "b", "c"])
    now = parts_of(a={"ip": "1"}, b={"ip": "2"}, d={"ip": "1"})
    assert attributed(short, now, since={"b", "d"}) == {"d": (ChangeKind.JOINED, ())}
    again = parts_of(a={"ip": "1"}, b={"ip": "2"}, c={})
    assert attributed(short, again, since={"b"}) == {"b": (ChangeKind.ELSEWHERE, ())}


def asked(digest: str, key: str = "k") -> Dependency:
    told = AnswerDigest(digest=digest, revision=3, parts={"a.example.com": {"ip": digest}})
    return Dependency(source="query", key=key, text=f"q({key})", answer=told)


CHANGE = AnswerChange.of("q(k)", ChangeKind.CHANGED, ("ip",))
CAUSE = a_cause(CauseKind.QUERY, path=(NodeName("a.example.com"),), changes=(CHANGE,))
WATCHED = WatchedQuery(question=asked("d0"), base_digest="d0")
REACTION = PastReaction(at=1.5, nodes=("a.example.com",), causes=(CAUSE.id,))
STATE = ReactionState(run="1", queries=(WATCHED,), reactions=(REACTION,), pending=(CAUSE,))


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
    expected = [("k", "d2"), ("new", "d3")]
    assert [(one.question.key, one.base_digest) for one in after.queries] == expected
    assert [(one.answered_digests, one.tried) for one in after.queries] == [((), False)] * 2


def test_a_failed_run_has_received_its_answers_too() -> None:
    run = FinishedRun(run="2", good=False, dependencies=(asked("d2", "k"), asked("d3", "new")))
    (one,) = STATE.after(run).queries
    assert (one.base_digest, one.question.answer.digest) == ("d0", "d2")
    assert (one.answered_digests, one.tried) == (("d2",), True)


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
