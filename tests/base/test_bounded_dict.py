"""Dictionaries with a limit."""

from localpuppet.base.bounded_dict import BoundedDict


def test_the_key_that_was_set_first_is_forgotten_above_the_limit() -> None:
    known: BoundedDict[str, int] = BoundedDict(2)
    known["a"] = 1
    known["b"] = 2
    known["a"] = 3
    assert known == {"b": 2, "a": 3}
    known["c"] = 4
    assert known == {"a": 3, "c": 4}
