"""When something that is wrong becomes an incident, and when it is over."""

from hypothesis import given
from hypothesis import strategies as st

from localpuppet.web.notify.routing import (
    KEPT,
    Condition,
    Incident,
    IncidentKind,
    Timing,
    decide,
    freeze,
)

TIMING = Timing(lasts=60.0, gone=120.0)
FAILED = Condition(key="failed:1:web/tags/r1", kind=IncidentKind.FAILED, nodes=("a",))
BLIND = Condition(key="bus", kind=IncidentKind.BUS, subject="the bus is unreachable")


def states(*looks: str, every: float = 30.0) -> str:
    """Return the states after looks: `x` the condition is seen, `.` it is not, `?` blind."""
    known: dict[str, Incident] = {}
    shown = ""
    for number, look in enumerate("".join(looks)):
        now = 1000.0 + number * every
        if look == "?":
            known = freeze(known, BLIND, now=now, timing=TIMING)
        else:
            seen = {FAILED.key: FAILED} if look == "x" else {}
            known = decide(known, seen, now=now, timing=TIMING)
        one = known.get(FAILED.key)
        shown += "-" if one is None else "o" if one.is_open else "c" if one.closed_at else "p"
    return shown


def test_a_condition_opens_after_for_and_closes_after_clear() -> None:
    assert states("xxxx.....") == "ppoooooo" + "c"


def test_a_condition_that_does_not_last_opens_nothing() -> None:
    assert states("x.x.xx.") == "p-p-pp-"


def test_one_that_comes_back_within_clear_stays_the_same_incident() -> None:
    assert states("xxx...xxx") == "ppooooooo"


def test_while_the_fleet_cannot_be_seen_incidents_neither_open_nor_close() -> None:
    assert states("xxx???????????.....") == "ppo" + "o" * 15 + "c"
    # What was not seen has not lasted: the times start again.
    assert states("xx??xxx") == "pp--ppo"
    assert states("xxx..??.....") == "ppo" + "o" * 8 + "c"


def test_a_closed_incident_that_comes_back_is_a_new_one() -> None:
    known: dict[str, Incident] = {}
    ids = set()
    for number, look in enumerate("xxx.....xxx"):
        seen = {FAILED.key: FAILED} if look == "x" else {}
        known = decide(known, seen, now=1000.0 + number * 30, timing=TIMING)
        ids |= {one.id for one in known.values() if one.is_open}
    assert len(ids) == 2


@given(st.lists(st.sampled_from("x.?"), max_size=60), st.floats(1.0, KEPT / 4))
def test_an_incident_opens_and_closes_in_turn(looks: list[str], every: float) -> None:
    shown = states(*looks, every=every)
    changes = "".join(one for one, before in zip(shown, "-" + shown, strict=False) if one != before)
    assert not {"-o", "-c", "pc", "o-", "op", "co"} & {
        changes[at : at + 2] for at in range(len(changes))
    }
