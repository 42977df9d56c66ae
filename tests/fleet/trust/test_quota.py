"""Quotas: owners of much have to wait, and owners of little find room."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from localpuppet.fleet.trust.seen import Quota


def test_a_single_owner_fills_the_shared_part_and_others_get_the_reserve() -> None:
    quota = Quota(shared=10, reserve=4, few=2)
    assert quota.has_room(own=9, total=9)
    assert not quota.has_room(own=10, total=10)
    assert quota.has_room(own=0, total=10)
    assert quota.has_room(own=1, total=11)
    assert not quota.has_room(own=2, total=12)
    assert not quota.has_room(own=0, total=14)


def test_an_owner_may_have_a_separate_limit() -> None:
    quota = Quota(shared=10, reserve=4, few=2, each=3)
    assert quota.has_room(own=2, total=2)
    assert not quota.has_room(own=3, total=3)


@settings(deadline=None)
@given(st.lists(st.sampled_from("abcd")))
def test_after_a_flood_each_owner_gets_a_place_in_any_order(owners: list[str]) -> None:
    quota = Quota(shared=10, reserve=4, few=2)
    taken: Counter[str] = Counter()
    for owner in owners:
        if quota.has_room(own=taken[owner], total=taken.total()):
            taken[owner] += 1
    assert taken.total() <= 14
    newcomer = quota.has_room(own=0, total=taken.total())
    # Each owner gets at most two places of the reserve: after one flood, each gets one.
    assert newcomer or len(taken) > 2
