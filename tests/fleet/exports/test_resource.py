"""One exported resource: what is read, and what is refused by name."""

from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.bus.bus_limits import MAX_EXPORTED_RESOURCE
from localpuppet.fleet.exports.resource import ExportedResource, named_type, texts_in
from tests.fleet.make import resource

BINARY = {"__ptype": "Binary", "__pvalue": "/wA="}


def parse(**changed: Any) -> ExportedResource:
    raw = {**resource("File", "/etc/x", content="x").to_dict(), **changed}
    return ExportedResource.read(raw)


def test_a_resource_is_encoded_and_parsed() -> None:
    first = resource("Concat::Fragment", "größe", "b", "a", order=[1, {"x": None}], data=BINARY)
    assert ExportedResource.read(first.to_dict()) == first
    assert (first.ref, first.place) == (
        "Concat::Fragment[größe]",
        "/etc/puppet/modules/app/init.pp:3",
    )
    assert parse(file=None, line=None).place == ""
    assert parse(tags=["Web", "web"]).tags == ("web",)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"type": "file"}, "not the name of a type"),
        ({"type": "File::"}, "not the name of a type"),
        ({"title": ""}, "title is empty"),
        ({"title": "a\nb"}, "control character"),
        ({"title": "a\x1b[2J"}, "control character"),
        ({"title": "a\u202eb"}, "control character"),
        ({"title": "x" * 1025}, "too long"),
        ({"tags": ["a\tb"]}, "control character"),
        ({"tags": ["a"] * 257}, "257 elements"),
        ({"parameters": {"Path": 1}}, "not the name of a parameter"),
        ({"parameters": {"a-b": 1}}, "not the name of a parameter"),
        ({"parameters": {f"p{n}": 1 for n in range(501)}}, "more than 500 parameters"),
        ({"parameters": {"a": {"__ptype": "Sensitive", "__pvalue": "x"}}}, "of a type of Puppet's"),
        ({"parameters": {"a": [{"__ptype": "Deferred", "name": "x"}]}}, "of a type of Puppet's"),
        ({"parameters": {"a": {"b": {**BINARY, "c": 1}}}}, "of a type of Puppet's"),
        ({"parameters": {"a": {"__ptype": "Binary", "__pvalue": "?"}}}, "not a binary in base64"),
        ({"parameters": {"a": {"__ptype": "Binary", "__pvalue": 1}}}, "not a binary in base64"),
        ({"parameters": {"content": "x" * MAX_EXPORTED_RESOURCE}}, "too large"),
        ({"parameters": []}, "a mapping"),
        ({"line": -1}, "from 0"),
        ({"file": "/x\nError: not true"}, "file has a control character"),
        ({"certname": "x"}, "unknown key"),
    ],
)
def test_an_invalid_resource_is_refused(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason) as caught:
        parse(**changed)
    assert str(caught.value).isprintable()


def test_a_refusal_names_the_resource_and_the_parameter() -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse(parameters={"owner": {"__ptype": "x"}})
    assert caught.value.where == "File[/etc/x]: parameters: owner"


def test_people_may_write_types_as_they_declare_them() -> None:
    assert named_type("concat::fragment") == "Concat::Fragment"
    assert named_type("File_line") == "File_line"


def test_every_text_of_a_value_is_found() -> None:
    value: Any = ["a", {"key": ["b", 1, None, True]}, {"__ptype": "Binary", "__pvalue": "Yw=="}]
    assert list(texts_in(value)) == ["a", "key", "b", "c"]
