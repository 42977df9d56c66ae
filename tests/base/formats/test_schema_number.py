"""The schema number of a record: an error names another number or a missing one."""

import pytest

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.converter import Message
from localpuppet.base.formats.schema_number import check_schema, damage_errors, without_schema
from localpuppet.base.formats.values import Json


class Numbered(Message):
    WHERE, SCHEMA = "request", 1


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ({"schema": 2}, "has schema 2; this version reads 1"),
        ({"schema": 0}, "has schema 0; this version reads 1"),
        ({"schema": 10**30}, "has schema 100000000000; this version reads 1"),
        ({}, "has no schema number; this version reads 1"),
        ({"schema": "1"}, "has no schema number; this version reads 1"),
        ({"schema": True}, "has no schema number; this version reads 1"),
    ],
)
def test_an_error_names_an_unknown_schema_number_of_a_record_or_message(
    raw: dict[str, Json], problem: str
) -> None:
    with pytest.raises(StateError) as state:
        check_schema(raw, 1, where="record.json")
    assert str(state.value) == f"record.json: {problem}"
    with pytest.raises(InvalidInputError) as invalid:
        Numbered.read(raw)
    assert str(invalid.value) == f"request: {problem}"


def test_the_fields_of_a_record_exclude_its_schema_number() -> None:
    assert without_schema({"schema": 3, "a": 1}, 3) == {"a": 1}


@pytest.mark.parametrize("error", [KeyError("a"), TypeError("b"), InvalidInputError("c")])
def test_an_invalid_field_is_reported_as_damage(error: Exception) -> None:
    with pytest.raises(StateError, match=r"^file: is damaged: "), damage_errors("file"):
        raise error
