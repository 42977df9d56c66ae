"""Room for all: who has taken much waits, who has little finds a place."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from localpuppet.fleet.trust.quota import Quota


def test_one_fills_what_is_shared_and_others_find_the_reserve() -> None:
    quota = Quota(shared=10, reserve=4, few=2)
    assert quota.has_room(own=9, total=9)
    assert not quota.has_room(own=10, total=10)
    assert quota.has_room(own=0, total=10)
    assert quota.has_room(own=1, total=11)
    assert not quota.has_room(own=2, total=12)
    assert not quota.has_room(own=0, total=14)


def test_one_may_have_a_bound_of_its_own() -> None:
    quota = Quota(shared=10, reserve=4, few=2, each=3)
    assert quota.has_room(own=2, total=2)
    assert not quota.has_room(own=3, total=3)


@settings(deadline=None)
@given(st.lists(st.sampled_from("abcd")))
def test_whoever_comes_in_whatever_order(owners: list[str]) -> None:
    quota = Quota(shared=10, reserve=4, few=2)
    taken: Counter[str] = Counter()
    for owner in owners:
        if quota.has_room(own=taken[owner], total=taken.total()):
            taken[owner] += 1
    assert taken.total() <= 14
    newcomer = quota.has_room(own=0, total=taken.total())
    # Each owner gets at most two places of the reserve: after one flood, each gets one.
    assert newcomer or len(taken) > 2
