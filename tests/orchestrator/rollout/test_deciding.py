"""What a rollout does next, against models that are too slow and too simple to be wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.errors import InvalidInputError
from localpuppet.orchestrator.rollout.amount import Amount
from localpuppet.orchestrator.rollout.deciding import decide
from localpuppet.orchestrator.rollout.events import (
    Ended,
    Ending,
    Fate,
    Skipped,
    Started,
    Stopped,
    Turn,
)
from localpuppet.orchestrator.rollout.state import State
from tests.orchestrator.rollout.simulated import began, node

AMOUNTS = st.builds(Amount, number=st.integers(1, 100), percent=st.booleans())
GROUPS = st.lists(st.sets(st.integers(0, 11), min_size=1), min_size=1, max_size=4)


def turns(*numbers: int, step: int = 1) -> tuple[Turn, ...]:
    return tuple(Turn(step, node(one)) for one in numbers)


def end(state: State, *numbers: int, step: int = 1, fate: Fate = Fate.SUCCEEDED) -> None:
    for turn in turns(*numbers, step=step):
        state.take(Ended(turn=turn, fate=fate))


def start(state: State) -> tuple[Turn, ...]:
    found = decide(state).start
    state.take(Started(turns=found))
    return found


def test_groups_follow_each_other() -> None:
    state = State(began([1, 2], [1, 3]))
    assert start(state) == turns(1, 2)
    end(state, 2)
    assert start(state) == ()
    end(state, 1)
    assert start(state) == turns(1, 3, step=2)
    end(state, 1, 3, step=2)
    assert decide(state).over


def test_a_batch_is_closed_and_a_window_is_not() -> None:
    state = State(began(range(5), batch=Amount.parse("50%", what="")))
    assert start(state) == turns(0, 1)
    end(state, 0)
    assert start(state) == ()
    end(state, 1)
    assert start(state) == turns(2, 3)
    state = State(began(range(5), window=2))
    assert start(state) == turns(0, 1)
    end(state, 1)
    assert start(state) == turns(2)


def test_canaries_come_first_and_one_that_fails_ends_it_whatever_may_fail() -> None:
    first = began(range(5), canary=2, window=3, max_failures=Amount.parse("5", what=""))
    state = State(first)
    assert start(state) == turns(0, 1)
    end(state, 0)
    assert start(state) == ()
    end(state, 1)
    assert start(state) == turns(2, 3, 4)
    end(state, 2, fate=Fate.FAILED)
    assert not decide(state).stop, "no canary"
    state = State(first)
    start(state)
    end(state, 0, fate=Fate.SILENT)
    assert decide(state).stop == "n00.example.com, a canary, is silent"


def test_a_node_that_failed_runs_no_more_and_one_that_was_skipped_never() -> None:
    state = State(began([1, 2, 4], [1, 2, 3, 4], max_failures=Amount.parse("25%", what="")))
    state.take(Skipped(reasons={node(4): "on hold"}))
    assert start(state) == turns(1, 2)
    end(state, 1, fate=Fate.FAILED)
    end(state, 2)
    assert start(state) == turns(2, 3, step=2)
    end(state, 2, 3, step=2)
    assert decide(state).over
    assert [str(fate) for fate in state.fates().values()] == [
        "failed",
        "succeeded",
        "succeeded",
        "skipped",
    ]


def test_what_was_stopped_starts_nothing_and_is_over_when_nothing_is_on() -> None:
    state = State(began([1], [2]))
    start(state)
    state.take(Stopped(ending=Ending.STOPPED, why="alice"))
    assert not decide(state).over
    end(state, 1)
    assert decide(state).over
    assert decide(state).start == ()


@pytest.mark.parametrize("text", ["", "-1", "0", "101%", "1.5", "x", "5 %", "9999999"])
def test_what_is_not_an_amount(text: str) -> None:
    with pytest.raises(InvalidInputError):
        Amount.parse(text, what="--batch")


@given(amount=AMOUNTS, total=st.integers(0, 1000))
def test_a_percentage_is_rounded_down(amount: Amount, total: int) -> None:
    found = Amount.parse(str(amount), what="").of(total)
    assert found == (int(total * (amount.number / 100) + 1e-9) if amount.percent else amount.number)


@given(data=st.data(), groups=GROUPS, allowed=st.builds(str, st.integers(0, 8)) | st.just("30%"))
def test_every_rollout(data: st.DataObject, groups: list[set[int]], allowed: str) -> None:
    """Whatever ends in whatever order: the rules hold at each step, and it comes to an end."""
    window = data.draw(st.none() | st.integers(1, 4))
    batch = data.draw(AMOUNTS) if window is None else None
    canary = data.draw(st.integers(0, 3))
    budget = Amount.parse(allowed, what="", minimum=0)
    first = began(
        *map(sorted, groups), window=window, batch=batch, canary=canary, max_failures=budget
    )
    state = State(first)
    total = len(set().union(*groups))
    most = total * 30 // 100 if allowed == "30%" else int(allowed)
    failed: set[str] = set()  # the naive counter
    canary_failed = False
    begun: list[Turn] = []
    while not (now := decide(state)).over:
        if now.stop:
            assert canary_failed or len(failed) > most
            state.take(Stopped(ending=Ending.FAILURES, why=now.stop))
            continue
        if state.stopped is None:
            assert len(failed) <= most
            assert not canary_failed
        for turn in now.start:
            assert turn not in begun, "a turn starts once"
            assert turn.node not in failed
            assert all(one.step >= turn.step for one in state.running), "groups are apart"
        if now.start:
            begun += now.start
            state.take(Started(turns=now.start))
        if window is not None:
            members = state.turns(begun[-1].step)[canary:]
            assert sum(turn in members for turn in state.running) <= window
        assert state.running, "nothing is on, nothing starts, and it is not over"
        turn = data.draw(st.sampled_from(state.running))
        fate = data.draw(
            st.sampled_from([Fate.SUCCEEDED, Fate.SUCCEEDED, Fate.FAILED, Fate.SILENT])
        )
        if fate is not Fate.SUCCEEDED:
            failed.add(turn.node)
            canary_failed |= turn in state.turns(turn.step)[:canary]
        state.take(Ended(turn=turn, fate=fate))
    if state.stopped is None:
        planned = {Turn(step, node(one)) for step, group in enumerate(groups, 1) for one in group}
        assert {turn for turn in planned if turn.node not in failed} <= set(begun)
