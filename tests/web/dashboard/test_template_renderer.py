"""How views show times and ages."""

from datetime import UTC, datetime, timedelta

import pytest

from localpuppet.web.dashboard.template_renderer import show_age, show_moment

NOW = datetime(2026, 11, 20, 14, 0, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("moment", "shown"),
    [
        ("2026-11-20T00:00:00", "00:00 UTC"),
        ("2026-11-20T23:59:59", "23:59 UTC"),
        ("2026-11-19T23:35:00", "yesterday 23:35 UTC"),
        ("2026-11-21T09:00:00", "tomorrow 09:00 UTC"),
        ("2026-11-18T23:59:59", "2026-11-18 23:59 UTC"),
        ("2026-11-22T00:00:00", "2026-11-22 00:00 UTC"),
    ],
)
def test_a_time_has_its_day_unless_it_is_today(moment: str, shown: str) -> None:
    assert show_moment(datetime.fromisoformat(f"{moment}+00:00"), NOW) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s ago"),
        (12.9, "12 s ago"),
        (60, "1 minute ago"),
        (3599, "59 minutes ago"),
        (3600, "1 hour ago"),
        (86400, "1 day ago"),
        (40 * 86400, "40 days ago"),
        (-7, "in 7 s"),
        (-7200, "in 2 hours"),
    ],
)
def test_an_age_has_one_unit(seconds: float, shown: str) -> None:
    assert show_age(NOW - timedelta(seconds=seconds), NOW) == shown
