"""Ids of runs, taken apart and put together."""

from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.formats.names import RunId
from localpuppet.fleet.history.day import DAY, day_of
from localpuppet.web.dashboard.tables.run_table import parts_of, run_of

_ids = st.builds(
    lambda time, digits: RunId(f"{time.year:04}{time:%m%dT%H%M%S.%f}Z-{digits:04x}"),
    st.datetimes(),
    st.integers(0, 0xFFFF),
).filter(lambda run: run[:4] != "9999")


@given(_ids, _ids)
def test_an_id_is_restored_from_parts_that_sort_as_it_does(one: RunId, other: RunId) -> None:
    assert run_of(*parts_of(one)) == one
    assert (parts_of(one) < parts_of(other)) == (one < other)


def test_a_day_is_that_of_its_times() -> None:
    run = RunId("20261122T235959.999999Z-ffff")
    assert parts_of(run)[0] == day_of(run.time.timestamp()) == day_of(20_779 * DAY)
    assert parts_of(run)[1] < 2**63
