"""What a node decides when answers have changed."""

from dataclasses import replace

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.edges.reactions import (
    HOUR,
    HOURLY,
    MAX_CAUSES,
    PAUSES,
    SKEW,
    AnswerDigest,
    ChangedPeer,
    Dependency,
    NewAnswer,
    PastReaction,
    ReactionDecision,
    ReactionState,
    WatchedQuery,
    decide,
)
from localpuppet.fleet.triggers.cause import AnswerChange, ChangeKind

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


def peer(
    node: NodeName = WEB,
    *paths: tuple[NodeName, ...],
    refusal: str | None = None,
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
    one = watched()
    decision = decided(ReactionState(queries=(one,)), seen(one, "d1", peer(WEB, (DB,))))
    (cause,) = decision.state.pending
    assert (cause.kind, cause.sender, cause.path) == ("query", ME, (DB, WEB))
    assert cause.expires is None, "on hold it waits"
    assert cause.changes == (
        AnswerChange(query=ROLE, how=ChangeKind.CHANGED, facts=("ipaddress",)),
    )
    (made_now,) = decision.state.reactions
    assert (made_now.at, made_now.nodes, made_now.causes) == (NOW, (WEB,), (cause.id,))
    assert decision.lines == ()


def test_each_answer_causes_at_most_one_run() -> None:
    one = watched()
    after = decided(ReactionState(queries=(one,)), seen(one, "d1")).state.queries[0]
    other = decided(ReactionState(queries=(after,)), seen(after, "d2")).state.queries[0]
    again = decided(ReactionState(queries=(other,)), seen(other, "d1"))
    assert again.state.pending == ()
    assert "this answer already caused a run" in again.lines[0]
    assert ROLE in again.lines[0]


def test_a_return_to_the_old_answer_is_no_change_unless_a_run_was_tried() -> None:
    one = watched()
    looped = decided(ReactionState(queries=(one,)), seen(one, "d1", peer(WEB, (ME,))))
    back = decided(looped.state, seen(looped.state.queries[0], "d0"))
    assert (back.state.pending, back.lines) == ((), ())
    assert back.state.queries[0].question.answer.digest == "d0"
    tried = decided(ReactionState(queries=(one,)), seen(one, "d1")).state
    assert decided(tried, seen(tried.queries[0], "d0")).state.pending != ()


def test_a_loop_is_logged_once_and_causes_no_run() -> None:
    one = watched()
    decision = decided(ReactionState(queries=(one,)), seen(one, "d1", peer(WEB, (ME, DB))))
    assert decision.state.pending == ()
    (line,) = decision.lines
    assert f"the loop ends here: {ME} is in the path {ME} -> {DB} -> {WEB}" in line
    assert decided(decision.state, *[]).lines == ()
    assert decision.state.queries[0].question.answer.digest == "d1", "not looked at again"


def test_a_single_allowed_peer_is_enough_and_only_its_path_is_used() -> None:
    one = watched()
    peers = (peer(WEB, (ME,)), peer(DB))
    decision = decided(ReactionState(queries=(one,)), seen(one, "d1", *peers))
    assert [cause.path for cause in decision.state.pending] == [(DB,)]


def test_the_policy_must_allow_it() -> None:
    one = watched()
    decision = decided(
        ReactionState(queries=(one,)), seen(one, "d1", peer(refusal="denied by line 1"))
    )
    assert decision.state.pending == ()
    assert "not allowed to make this node react: denied by line 1" in decision.lines[0]


def test_an_answer_that_no_node_changed_is_logged_and_causes_no_run() -> None:
    one = watched()
    new = NewAnswer(watched=one, now=told("d1"), peers=())
    decision = decided(ReactionState(queries=(one,)), new)
    assert decision.state.pending == ()
    assert "no node published a change to it" in decision.lines[0]


def test_a_path_that_is_not_a_chain_causes_no_run() -> None:
    one = watched()
    decision = decided(ReactionState(queries=(one,)), seen(one, "d1", peer(WEB, (DB, DB))))
    assert decision.state.pending == ()
    assert "is not a chain" in decision.lines[0]


def test_six_reactions_an_hour_and_the_seventh_waits() -> None:
    one = watched()
    ages = [HOUR - 10, *[500.0] * (HOURLY - 1)]
    state = ReactionState(queries=(one,), reactions=made(*ages))
    decision = decided(state, seen(one, "d1"))
    assert (decision.state, decision.due) == (state, NOW + 10)
    assert f"the limit of {HOURLY} reactions an hour is reached" in decision.waiting
    later = decided(state, seen(one, "d1"), now=NOW + 10)
    assert len(later.state.pending) == 1
    assert len(later.state.reactions) == HOURLY, "reactions older than an hour are forgotten"


def test_a_peer_that_changes_again_and_again_is_waited_for() -> None:
    one = watched()
    state = ReactionState(queries=(one,), reactions=made(300, 30, node=WEB))
    decision = decided(state, seen(one, "d1"))
    assert (decision.state, decision.due) == (state, NOW - 30 + PAUSES[2])
    assert "repeatedly" in decision.waiting
    both = decided(state, seen(one, "d1", peer(), peer(DB)))
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
    one = watched()
    state = ReactionState(queries=(one,), reactions=made(*[500.0] * HOURLY, node=WEB))
    decision = decided(state, seen(one, "d1"), waits=True)
    assert len(decision.state.pending) == 1
    assert len(decision.state.reactions) == HOURLY


def test_reactions_with_times_in_the_future_do_not_count() -> None:
    one = watched()
    state = ReactionState(queries=(one,), reactions=made(*[-1e6] * HOURLY, node=WEB))
    assert len(decided(state, seen(one, "d1")).state.pending) == 1


def test_a_clock_that_is_set_back_a_little_keeps_the_limits() -> None:
    one = watched()
    state = ReactionState(queries=(one,), reactions=made(*[-SKEW] * HOURLY))
    assert decided(state, seen(one, "d1")).due == NOW + SKEW + HOUR
    peers = ReactionState(queries=(one,), reactions=made(-1, -1, node=WEB))
    assert decided(peers, seen(one, "d1")).due == NOW + 1 + PAUSES[2]


def test_causes_have_a_limit() -> None:
    one = watched()
    peers = tuple(peer(NodeName(f"n{index:03}.example.com")) for index in range(200))
    decision = decided(ReactionState(queries=(one,)), seen(one, "d1", *peers))
    assert len(decision.state.pending) == MAX_CAUSES
    assert len(decision.state.reactions[0].nodes) == 200, "each of them is waited for"


def test_a_peer_that_changed_two_answers_is_a_single_cause() -> None:
    role, facts = watched(), watched(key='query_facts("web", ["value"])')
    state = ReactionState(queries=(role, facts))
    (cause,) = decided(state, seen(role, "d1"), seen(facts, "d2")).state.pending
    assert len(cause.changes) == 2
