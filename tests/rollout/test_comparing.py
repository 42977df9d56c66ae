"""How predicted changes differ from the approved ones, and the digest of an approval."""

import pytest

from localpuppet.node.puppet.changes import PredictedChanges
from localpuppet.rollout.events import RolloutBegan, from_dict, to_dict
from localpuppet.rollout.rollout_options import RolloutOptions, UnapprovedChange, compare, digest_of
from tests.rollout.foretold import approval, change, foretold
from tests.rollout.simulated import ID, node

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
    began = RolloutBegan(
        id=ID, caller="op", groups=(), options=RolloutOptions(), title="", approval=whole
    )
    assert from_dict(to_dict(began)) == began
