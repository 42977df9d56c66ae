"""Timestamps in records of any author."""

import pytest

from localpuppet.base.formats.times import checked_time, parse_time


def test_a_timestamp_keeps_its_text() -> None:
    text = "2026-11-22T13:00:00+02:00"
    assert checked_time(text) == text
    assert parse_time(text) == parse_time("2026-11-22T11:00:00Z")


@pytest.mark.parametrize(
    "text",
    [
        "yesterday",
        "2026-11-22T11:00:00",
        "0001-01-01T00:00:00+14:00",  # in UTC there are no such years
        "9999-12-31T23:59:59-14:00",
    ],
)
def test_a_timestamp_without_a_utc_equivalent_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"isoformat|zone|years"):
        checked_time(text)
