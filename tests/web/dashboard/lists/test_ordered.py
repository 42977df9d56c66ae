"""Names in an order that changes."""

from hypothesis import given
from hypothesis import strategies as st

from localpuppet.web.dashboard.lists.node_standings import Ordered

KEYS = st.dictionaries(st.text("abc", min_size=1, max_size=2), st.integers(0, 3))


@given(KEYS, KEYS, st.integers(0, 4))
def test_names_are_ordered_by_key_and_then_by_name(
    first: dict[str, int], then: dict[str, int], limit: int
) -> None:
    ordered = Ordered()
    for name, key in first.items():
        ordered.add(key, name)
    for name in first.keys() & then.keys():
        ordered.remove(first[name], name)
    for name, key in then.items():
        ordered.add(key, name)
    now = first | then
    assert [*ordered.names()] == sorted(now, key=lambda name: (now[name], name))
    assert [*ordered.names(down=True)] == sorted(now, key=lambda name: (-now[name], name))
    assert [*ordered.of(limit)] == sorted(name for name in now if now[name] == limit)
    assert sorted(ordered.below(limit)) == sorted(name for name in now if now[name] < limit)
