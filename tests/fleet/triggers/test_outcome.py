"""How a sender finds the outcome of its trigger, also in a storm."""

import pytest

from localpuppet.fleet.triggers.cause import DROPPED, MOST, TriggerOutcome, of_run

ME = "a.example.com"


def one(uuid: str = "1", timestamp: int = 10, outcome: str = "changed") -> TriggerOutcome:
    return TriggerOutcome(sender=ME, uuid=uuid, timestamp=timestamp, run="r", outcome=outcome)


def test_its_json_form() -> None:
    assert TriggerOutcome.of_published(one().to_dict()) == one()
    assert TriggerOutcome.of_cause("choria=a/1", 5, run=None, outcome="x").sender == "choria=a"


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        {},
        "x",
        {**one().to_dict(), "timestamp": "1"},
        {**one().to_dict(), "run": 1},
        {key: value for key, value in one().to_dict().items() if key != "run"},
    ],
)
def test_another_form_is_passed_over(raw: object) -> None:
    assert TriggerOutcome.of_published(raw) is None


@pytest.mark.parametrize(
    ("told", "answers"),
    [
        (one("mine"), True),
        (one("mine", outcome=DROPPED), True),
        (one("later", timestamp=11), True),
        (one("later", timestamp=11, outcome=DROPPED), False),
        (one("same second", timestamp=10), False),
        (one("earlier", timestamp=9), False),
        (TriggerOutcome(sender="b", uuid="mine", timestamp=11, run=None, outcome="changed"), False),
    ],
)
def test_an_outcome_answers_its_trigger_and_earlier_ones_of_its_sender(
    told: TriggerOutcome, answers: bool
) -> None:
    assert told.answers(sender=ME, uuid="mine", sent=range(9, 11), idle=False) is answers


@pytest.mark.parametrize(
    ("told", "answers"),
    [
        (one("mine"), True),
        (one("same second", timestamp=9), True),
        (one("same second", timestamp=10), True),
        (one("same second", timestamp=10, outcome=DROPPED), False),
        (one("earlier", timestamp=8), False),
        (TriggerOutcome(sender="b", uuid="x", timestamp=10, run=None, outcome="changed"), False),
    ],
)
def test_an_outcome_of_an_idle_node_answers_triggers_of_the_same_second_too(
    told: TriggerOutcome, answers: bool
) -> None:
    assert told.answers(sender=ME, uuid="mine", sent=range(9, 11), idle=True) is answers


def test_outcomes_name_the_newest_cause_of_each_sender() -> None:
    sent = {f"s{index % 4}/{index}": index for index in range(1000)}
    sent["s9/early"] = 1
    found = of_run(sent, run="r", outcome="changed")
    assert len(found) == MOST
    newest = {told.sender: told for told in found}
    assert {sender: told.timestamp for sender, told in newest.items()} == {
        "s0": 996,
        "s1": 997,
        "s2": 998,
        "s3": 999,
        "s9": 1,
    }
    assert of_run({}, run=None, outcome="x") == []
