"""Components from the records of the node and the entries of others."""

from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.bus.bus_limits import MAX_NODE_COMPONENTS
from localpuppet.fleet.inventory.entry import (
    NodeComponent,
    NotedComponent,
    application_of,
    read_components,
)

MYSQL: dict[str, Any] = {"name": "Lamp::Mysql[app1]", "produces": ["Sql[app1]"], "consumes": []}


def noted(**more: Any) -> NotedComponent:
    return NotedComponent.read({"schema": 1, **MYSQL, **more})


def test_recorded_components_are_read_and_sorted() -> None:
    web = noted(name="Lamp::Web[app1-1]", application="Lamp[app1]", consumes=["Sql[app1]"])
    found = read_components([web, noted()])
    assert [(one.application, one.name) for one in found] == [
        ("Lamp[app1]", "Lamp::Mysql[app1]"),
        ("Lamp[app1]", "Lamp::Web[app1-1]"),
    ]
    for one in found:
        assert NodeComponent.from_dict(one.to_dict()) == one


@pytest.mark.parametrize(
    ("name", "application"),
    [
        ("Lamp::Mysql[app1]", "Lamp[app1]"),
        ("Lamp[app1]", "Lamp[app1]"),
        ("A::B::C[x [y] z]", "A[x [y] z]"),
        ("mysql", "mysql"),
        ("[x]", "[x]"),
    ],
)
def test_the_application_of_a_reference(name: str, application: str) -> None:
    assert application_of(name) == application


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"name": ""}, "name: the name is empty"),
        ({"name": " x"}, "name: is not a name"),
        ({"name": "x" * 256}, "name: is not a name"),
        ({"name": "a\nb"}, "control character"),
        ({"application": 7}, "application: must be a string"),
        ({"produces": "x"}, "produces: must be a list"),
        ({"consumes": ["x"] * 65}, "consumes: has 65 elements"),
        ({"consumes": ["\u202e"]}, r"consumes\[0\]: the name has a control character"),
    ],
)
def test_an_invalid_component_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        read_components([noted(**more)])


def test_a_catalog_with_too_many_components_is_an_error() -> None:
    assert len(read_components([noted()] * MAX_NODE_COMPONENTS)) == MAX_NODE_COMPONENTS
    with pytest.raises(InvalidInputError, match="has 257 components; a node publishes at most 256"):
        read_components([noted()] * (MAX_NODE_COMPONENTS + 1))
