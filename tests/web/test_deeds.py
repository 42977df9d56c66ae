"""What a person may have a node do."""

import pytest

from localpuppet.errors import InvalidInputError
from localpuppet.formats.names import NodeName
from localpuppet.orchestrator.rollout.words.word import Word
from localpuppet.web.deeds import Action, Deed, consequences, parse_word, rollout_consequences
from localpuppet.web.row import Held, Row

NODE = NodeName.parse("web01")
HELD = Held(owner="bob", reason="disk", until=None)


def test_a_hold_needs_a_reason_and_may_have_an_end() -> None:
    deed = Deed.read(Action.HOLD, NODE, {"message": " disk ", "length": "2h", "x": "y"})
    assert str(deed) == "hold (for 2h: disk)"
    assert str(Deed.read(Action.HOLD, NODE, {"message": "disk"})) == "hold (without end: disk)"
    for form in ({}, {"message": " "}, {"message": "a\nb"}, {"message": "a", "length": "soon"}):
        with pytest.raises(InvalidInputError):
            Deed.read(Action.HOLD, NODE, form)


def test_other_actions_take_nothing_of_a_form() -> None:
    assert Deed.read(Action.NOOP, NODE, {"message": "x"}) == Deed(action=Action.NOOP, node=NODE)
    with pytest.raises(InvalidInputError, match="is not one of trigger, noop, hold, enable"):
        Action.parse("reboot")


def test_a_word_is_heard_by_a_rollout_that_a_process_goes_on_with() -> None:
    def said(word: Word, state: str) -> str:
        return " ".join(rollout_consequences(word, state))

    assert "no process" in said(Word.STOP, "interrupted")
    assert "no process" not in said(Word.STOP, "running")
    assert "does not wait" in said(Word.CONTINUE, "running")
    assert "does not wait" not in said(Word.CONTINUE, "paused")
    with pytest.raises(InvalidInputError, match="is not one of continue, stop"):
        parse_word("resume")


@pytest.mark.parametrize("action", list(Action))
def test_what_will_happen_says_which_right_it_needs(action: Action) -> None:
    assert "policy decides" in consequences(action, Row(node="a", state="idle"))[-1]


def test_what_will_happen_depends_on_how_the_node_is() -> None:
    def said(action: Action, row: Row) -> str:
        return " ".join(consequences(action, row))

    assert "may not hear" in said(Action.HOLD, Row(node="a"))
    held = Row(node="a", state="on hold", holds=(HELD,))
    assert "nothing runs before the hold ends" in said(Action.NOOP, held)
    assert "nothing holds it" in said(Action.ENABLE, Row(node="a", state="idle"))
    assert "nothing holds it" not in said(Action.ENABLE, held)
    assert "this one follows it" in said(Action.TRIGGER, Row(node="a", cause="timer"))
