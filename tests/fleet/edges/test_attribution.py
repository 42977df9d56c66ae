"""Which nodes made an answer another one."""

from collections.abc import Mapping

from localpuppet.base.formats.converter import from_record, to_record
from localpuppet.fleet.edges.reactions import MAX_NODES, AnswerDigest, changes
from localpuppet.fleet.triggers.cause import AnswerChange, ChangeKind

TEXT = "query_nodes()"


def told(**parts: Mapping[str, str]) -> AnswerDigest:
    return AnswerDigest(digest="d", revision=1, parts=parts)


def found(
    before: AnswerDigest,
    now: AnswerDigest,
    *,
    since: set[str] | None = None,
    gone: frozenset[str] = frozenset(),
) -> dict[str, tuple[ChangeKind, tuple[str, ...]]]:
    counted = {*before.parts, *now.parts} - gone
    result = changes(
        TEXT,
        before,
        now,
        since=counted if since is None else since,
        counts=lambda node: node not in gone,
    )
    return {node: (one.how, one.facts) for node, one in result.items()}


def test_a_node_that_joined_one_that_left_and_one_that_changed() -> None:
    before = told(a={"ip": "1", "os": "1"}, b={"ip": "1"}, c={"ip": "1"})
    now = told(a={"ip": "2", "os": "1"}, b={"ip": "1"}, d={"ip": "1"})
    assert found(before, now) == {
        "a": (ChangeKind.CHANGED, ("ip",)),
        "c": (ChangeKind.LEFT, ()),
        "d": (ChangeKind.JOINED, ()),
    }


def test_a_node_that_has_published_nothing_since_did_not_change_the_answer() -> None:
    """An answer of one node: another takes the place of the one that left."""
    before, now = told(a={}), told(b={})
    assert found(before, now, since={"a"}) == {"a": (ChangeKind.LEFT, ())}
    assert found(before, now, since=set(), gone=frozenset("a")) == {"a": (ChangeKind.LEFT, ())}


def test_a_bus_that_restarts_its_revisions_hides_no_change() -> None:
    assert found(told(a={"ip": "1"}), told(a={"ip": "2"}), since=set()) == {
        "a": (ChangeKind.CHANGED, ("ip",))
    }


def test_a_changed_count_is_attributed_to_the_nodes_that_published() -> None:
    assert found(told(a={}), told(a={}), since={"x"}) == {"x": (ChangeKind.ELSEWHERE, ())}
    assert found(told(a={}), told(a={}), since=set()) == {}


def test_an_answer_without_parts_is_compared_by_its_nodes_only() -> None:
    assert found(told(a={}, b={}), told(a={"ip": "1"}, b={"ip": "2"}), since=set()) == {}


def test_nodes_and_facts_have_limits() -> None:
    many = {f"n{index:04}": {f"f{fact:03}": "1" for fact in range(50)} for index in range(500)}
    other = {node: dict.fromkeys(about, "2") for node, about in many.items()}
    result = changes(
        TEXT,
        AnswerDigest(digest="a", revision=1, parts=many),
        AnswerDigest(digest="b", revision=1, parts=other),
        since=set(many),
        counts=lambda _: True,
    )
    assert len(result) == MAX_NODES
    assert len(result["n0000"].facts) == 16


def test_a_change_is_short() -> None:
    change = AnswerChange.of("x" * 1000 + "\n", ChangeKind.CHANGED, ("a\nb",))
    assert len(change.query) == 200
    assert "\n" not in change.facts[0]
    assert from_record(AnswerChange, to_record(change)) == change


def test_an_answer_that_is_too_large_to_explain_still_names_its_nodes() -> None:
    large = told(a={"ip": "1"}, b={"ip": "1"}, c={})
    assert (large.explained, large.within(2)) == (2, large)
    short = large.within(1)
    assert (short.explained, short.digest, list(short.parts)) == (0, large.digest, ["a", "b", "c"])
    now = told(a={"ip": "1"}, b={"ip": "2"}, d={"ip": "1"})
    assert found(short, now, since={"b", "d"}) == {"d": (ChangeKind.JOINED, ())}
    again = told(a={"ip": "1"}, b={"ip": "2"}, c={})
    assert found(short, again, since={"b"}) == {"b": (ChangeKind.ELSEWHERE, ())}
