"""The reasons that a rollout reports for nodes that are not ready."""

from localpuppet.rollout.deciding import why_not_ready
from localpuppet.rollout.state import RolloutState
from tests.rollout.simulated import began, node


def said(problems: dict[int, str]) -> str:
    state = RolloutState(began(range(1, 9)))
    return why_not_ready(state, {node(number): why for number, why in problems.items()})


def test_equal_reasons_are_grouped_and_the_most_frequent_comes_first() -> None:
    silent = dict.fromkeys(range(2, 9), "did not answer")
    assert said({1: "on hold: work", **silent}) == (
        f"{', '.join(node(number) for number in range(2, 7))} and 2 more: did not answer; "
        f"{node(1)}: on hold: work"
    )


def test_of_many_reasons_the_rarest_are_only_counted() -> None:
    reasons = {number: f"reason {number}" for number in range(1, 6)}
    assert said(reasons).endswith(f"{node(3)}: reason 3; and 2 more")
