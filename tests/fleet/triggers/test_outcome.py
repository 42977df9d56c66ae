"""How a sender finds what became of its trigger, in a storm, too."""

import pytest

from localpuppet.fleet.triggers.outcome import DROPPED, MOST, TriggerOutcome, of_run

ME = "a.example.com"


def one(uuid: str = "1", timestamp: int = 10, outcome: str = "changed") -> TriggerOutcome:
    return TriggerOutcome(sender=ME, uuid=uuid, timestamp=timestamp, run="r", outcome=outcome)


def test_its_json_form() -> None:
    assert TriggerOutcome.from_dict(one().to_dict()) == one()
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
    assert TriggerOutcome.from_dict(raw) is None


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
def test_whom_it_answers(told: TriggerOutcome, answers: bool) -> None:
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
def test_whom_it_answers_when_the_node_has_nothing_left_to_do(
    told: TriggerOutcome, answers: bool
) -> None:
    assert told.answers(sender=ME, uuid="mine", sent=range(9, 11), idle=True) is answers


def test_of_many_causes_the_newest_of_each_sender_is_told() -> None:
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
