"""Approvals: which rollout a digest means, which plan it is for, and how changes differ from it."""

from dataclasses import replace

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName, ReleasePath
from localpuppet.node.puppet.changes import PredictedChanges
from localpuppet.rollout import events
from localpuppet.rollout.deciding import approval_of, decide, find, not_approvable, refuse_other
from localpuppet.rollout.rollout_options import (
    MAX_ALL,
    Delivery,
    RolloutOptions,
    UnapprovedChange,
    compare,
    digest_of,
)
from localpuppet.rollout.state import RolloutState
from tests.rollout.make import (
    ID,
    SALT,
    approval,
    began,
    change,
    foretold,
    node,
    rollout_over,
    run_ended,
)

FIRST = replace(began([1], [2], noop=True, tags=("web",)), salt=SALT)
OVER = rollout_over()
TAGS = RolloutOptions(tags=("web",))


def looked(*told: PredictedChanges | None, over: events.RolloutEnded | None = OVER) -> RolloutState:
    """Return the state of a rollout with noop whose nodes reported this."""
    state = RolloutState(FIRST)
    for number, one in enumerate(told, 1):
        turn = events.NodeRun(number, node(number))
        state.take(run_ended(turn, outcome="unchanged", predicted_changes=one))
    if over is not None:
        state.take(over)
    return state


WHOLE = looked(foretold(change("/a")), foretold())


def test_an_approval_is_found_by_its_digest_or_the_first_digits() -> None:
    approval = approval_of(WHOLE)
    assert approval is not None
    assert approval.nodes == {node(1): foretold(change("/a")), node(2): foretold()}
    other = looked(foretold(change("/b")), foretold())
    for digits in (12, 64):
        assert find([other, WHOLE], approval.digest[:digits]) == (approval, FIRST)
    for wrong in ("", "0" * 12, approval.digest[:11], "x" * 64):
        with pytest.raises(InvalidInputError, match="--approve"):
            find([other, WHOLE], wrong)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (looked(foretold(), foretold(), over=None), "is still running"),
        (
            looked(foretold(), foretold(), over=replace(OVER, ending=events.RolloutEnding.STOPPED)),
            "is still running",
        ),
        (looked(foretold(), None), "n02.example.com did not report what would change"),
        (
            looked(foretold(), replace(foretold(), total=5000)),
            "n02.example.com would change too many properties to report",
        ),
        (RolloutState(began([1])), "was not a rollout with --noop"),
    ],
)
def test_an_incomplete_rollout_cannot_be_approved(state: RolloutState, why: str) -> None:
    assert not_approvable(state).startswith(why)
    assert approval_of(state) is None


@pytest.mark.parametrize(
    ("groups", "options", "why"),
    [
        ([[1], [2]], TAGS, ""),
        ([[1], [2]], replace(TAGS, window=1, canary=1), ""),
        ([[1], [2, 3]], TAGS, "does not have n03.example.com, selected now"),
        ([[1]], TAGS, "has n02.example.com, not selected now"),
        ([[2], [1]], TAGS, "has a different order from group 1"),
        ([[1, 2]], TAGS, "has a different order from group 1"),
        ([[1], [2], [1]], TAGS, "has a different order from group 3"),
        ([[1], [2]], RolloutOptions(), "was approved with web"),
        ([[1], [2]], replace(TAGS, noop=True), "--approve and --noop"),
        (
            [[1], [2]],
            RolloutOptions(delivery=Delivery(release=ReleasePath("shop/tags/r8"))),
            "--release and --approve exclude each other",
        ),
    ],
)
def test_another_plan_is_refused(
    groups: list[list[int]], options: RolloutOptions, why: str
) -> None:
    nodes: tuple[tuple[NodeName, ...], ...] = tuple(tuple(map(node, one)) for one in groups)
    if not why:
        refuse_other(FIRST, nodes, options)
        return
    with pytest.raises(InvalidInputError) as caught:
        refuse_other(FIRST, nodes, options)
    assert why in str(caught.value)


def test_more_changes_than_can_be_approved_together_end_the_rollout() -> None:
    state = looked(replace(foretold(), total=MAX_ALL), over=None)
    assert decide(state).stop == ""
    state = looked(replace(foretold(), total=MAX_ALL + 1), over=None)
    assert decide(state).stop == (
        f"the nodes would change more than {MAX_ALL} properties (select fewer nodes)"
    )


A, B, OTHER = change("/a"), change("/b"), change("/a", 1)


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        (foretold(A, B), foretold(A, B), ""),
        (foretold(A, B), foretold(B), ""),
        (foretold(A, B), foretold(), ""),
        (foretold(A), foretold(A, B), "would make 1 change that was not approved"),
        (
            foretold(A),
            foretold(OTHER, B),
            "would make 2 changes that were not approved, 1 of them to other values",
        ),
        (
            foretold(A, release="shop/tags/r6"),
            foretold(A),
            "would run shop/tags/r7, and shop/tags/r6 was approved",
        ),
        (None, foretold(), "would run shop/tags/r7, and nothing was approved"),
    ],
)
def test_the_same_or_fewer_changes_pass(
    before: PredictedChanges | None, now: PredictedChanges, why: str
) -> None:
    found = compare(before, now)
    assert (bool(found), found.reason) == (bool(why), why)
    assert UnapprovedChange.from_dict(found.to_dict()) == found


def test_another_difference_has_another_digest() -> None:
    one, two = compare(foretold(), foretold(A)), compare(foretold(), foretold(OTHER))
    assert one.digest != two.digest
    assert len(one.digest) == 16


def test_a_digest_covers_the_whole_approval() -> None:
    groups, nodes = [[node(1)], [node(2)]], {node(1): foretold(A), node(2): foretold()}
    first = digest_of(ID, groups=groups, tags=[], nodes=nodes)
    others = [
        digest_of(ID, groups=[[node(1), node(2)]], tags=[], nodes=nodes),
        digest_of(ID, groups=groups, tags=["web"], nodes=nodes),
        digest_of(ID, groups=groups, tags=[], nodes=nodes | {node(2): foretold(B)}),
        digest_of(ID, groups=groups, tags=[], nodes=nodes | {node(2): foretold(release="x/t/r1")}),
    ]
    assert len({first, *others}) == 5
    whole = approval(nodes)
    began = events.RolloutBegan(
        id=ID, caller="op", groups=(), options=RolloutOptions(), title="", approval=whole
    )
    assert events.from_dict(events.to_dict(began)) == began
