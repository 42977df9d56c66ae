"""The reasons that a rollout reports for nodes that are not ready."""

from localpuppet.rollout.execution.state import RolloutState
from localpuppet.rollout.execution.unready import why_not_ready
from tests.rollout.execution.simulated import began, node


def said(problems: dict[int, str]) -> str:
    state = RolloutState(began(range(1, 9)))
    return why_not_ready(state, {node(number): why for number, why in problems.items()})


def test_a_reason_is_said_once_and_that_of_most_nodes_first() -> None:
    silent = dict.fromkeys(range(2, 9), "did not answer")
    assert said({1: "on hold: work", **silent}) == (
        f"{', '.join(node(number) for number in range(2, 7))} and 2 more: did not answer; "
        f"{node(1)}: on hold: work"
    )


def test_of_many_reasons_the_rarest_are_counted() -> None:
    reasons = {number: f"reason {number}" for number in range(1, 6)}
    assert said(reasons).endswith(f"{node(3)}: reason 3; and 2 more")
