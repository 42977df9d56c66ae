"""How often an agent checks whether answers have changed."""

from localpuppet.fleet.edges.reactor import DEBOUNCE, RECHECK, SHARE, Pace


def test_changes_are_evaluated_together_some_time_after_the_first() -> None:
    pace = Pace(0)
    pace.looked(begun=10, ended=10)
    assert pace.wait(10) == RECHECK
    pace.changed(100)
    pace.changed(101)
    assert pace.wait(101) == DEBOUNCE - 1
    assert pace.wait(100 + DEBOUNCE) == 0


def test_changes_without_end_do_not_put_it_off() -> None:
    pace = Pace(0)
    pace.looked(begun=0, ended=0)
    for tenth in range(100):
        pace.changed(10 + tenth / 10)
    assert pace.wait(10 + DEBOUNCE) == 0


def test_looking_takes_one_part_of_the_time() -> None:
    pace = Pace(0)
    pace.looked(begun=10, ended=14)
    pace.changed(14)
    assert pace.wait(14) == 4 * (SHARE - 1)
    pace.changed(15)
    assert pace.wait(14 + 4 * (SHARE - 1)) == 0


def test_a_wait_that_ends_is_looked_at() -> None:
    pace = Pace(0)
    pace.looked(begun=10, ended=10)
    pace.look_at(40)
    assert pace.wait(10) == 30


def test_it_is_looked_at_from_time_to_time() -> None:
    assert Pace(5).wait(5) == DEBOUNCE
