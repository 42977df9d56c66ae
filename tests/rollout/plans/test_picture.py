"""Pictures of plans: what is drawn, what is left out, and that names cannot break out."""

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from localpuppet.rollout.plans import dot, svg
from localpuppet.rollout.plans.picture import (
    MOST_BOXES,
    MOST_EDGES,
    MOST_GROUPS,
    MOST_ROWS,
    Picture,
    picture,
)
from tests.rollout.plans.test_plan import LAMP, part, plan, site

NAMES = "{http://www.w3.org/2000/svg}"


def drawn(raw: dict[str, Any]) -> Picture:
    return picture(plan(raw))


def texts(document: str) -> list[str]:
    found = ElementTree.fromstring(document).iter(f"{NAMES}text")  # noqa: S314 - our own
    return [element.text or "" for element in found]


def test_boxes_are_runs_and_edges_say_what_is_waited_for() -> None:
    found = drawn(LAMP)
    assert [box.title for box in found.boxes] == [f"dev{n}.devco.net" for n in (1, 2, 3, 4)]
    assert found.boxes[0].lines == (
        "Lamp[app1]: Lamp::Mysql[app1]",
        "Lamp[app2]: Lamp::Mysql[app2]",
    )
    assert [(edge.start, edge.end) for edge in found.edges] == [(0, 1), (0, 2), (0, 3)]
    assert {edge.label for edge in found.edges} == {"Sql[app1], Sql[app2]"}
    assert [box.critical for box in found.boxes] == [True, True, False, False]
    assert [edge.critical for edge in found.edges] == [True, False, False]
    assert (found.heads, found.notes) == (("Group 1", "Group 2"), ())


def test_a_node_that_runs_twice_is_two_boxes_with_an_edge_without_a_label() -> None:
    found = drawn(
        site(
            a_1=part("x", gives="p"),
            a_2=part("y", needs="p"),
            b_1=part("y", gives="q"),
            b_2=part("x", needs="q"),
        )
    )
    assert {box.title for box in found.boxes} == {
        f"{node} (run {number} of 2)" for node in "xy" for number in (1, 2)
    }
    assert all(box.again for box in found.boxes)
    again = [edge for edge in found.edges if not edge.label]
    assert [
        (found.boxes[edge.start].title[0], found.boxes[edge.end].title[0]) for edge in again
    ] == [("x", "x"), ("y", "y")]


def test_what_waits_for_the_same_stands_together() -> None:
    found = drawn(
        site(
            a_1=part("a", gives="p"),
            a_2=part("b", gives="q"),
            a_3=part("c", needs="q"),
            a_4=part("d", needs="p"),
        )
    )
    assert [box.title for box in found.boxes] == ["a", "b", "d", "c"]


@pytest.mark.parametrize(("width", "length"), [(500, 1), (1, 500), (40, 40)])
def test_a_large_plan_is_a_picture_that_says_what_is_not_drawn(width: int, length: int) -> None:
    parts = {
        f"a{group}_{row}": part(
            f"n{group}-{row}", gives=f"c{group}", needs=f"c{group - 1}" * (group > 0)
        )
        for group in range(length)
        for row in range(width)
    }
    found = drawn(site(**parts))
    assert 0 < len(found.boxes) <= MOST_BOXES
    assert len(found.edges) <= MOST_EDGES
    assert len(found.heads) == min(length, MOST_GROUPS)
    assert all(sum(box.group == group for box in found.boxes) <= MOST_ROWS for group in range(9))
    assert f"{width * length - len(found.boxes)} more runs are not drawn" in found.notes
    critical = [box.group for box in found.boxes if box.critical]
    assert critical == list(range(1, len(found.heads) + 1))
    assert set(found.notes) <= set(texts(svg.draw(found)))
    assert all(note in dot.draw(found) for note in found.notes)


def test_names_do_not_break_out_of_a_picture() -> None:
    evil = '</text><script>"\\" -> & ]];'
    raw = {
        "applications": {
            evil: {evil: {"node": "x", "produces": [evil]}, "b": {"node": "y", "consumes": [evil]}}
        }
    }
    found = drawn(raw)
    document = svg.draw(found)
    root = ElementTree.fromstring(document)  # noqa: S314 - our own
    assert not [element for element in root.iter() if element.tag.endswith("script")]
    assert f"{evil}: {evil}"[:43] + "…" in texts(document)
    lines = dot.draw(found).splitlines()
    strings = re.compile(r'"(?:[^"\\]|\\.)*"')
    outside = [strings.sub("", line) for line in lines]
    assert not [line for line in outside if "script" in line or '"' in line]


def test_the_picture_of_an_empty_plan_is_one() -> None:
    found = drawn({"applications": {}})
    assert found.boxes == ()
    assert "production: 0 nodes, 0 groups" in texts(svg.draw(found))
    assert dot.draw(found).endswith('label="production: 0 nodes, 0 groups";\n}\n')
