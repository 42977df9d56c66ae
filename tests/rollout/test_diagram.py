"""Diagrams of plans and kicks: what is one box, what is left out, and that names stay text."""

import subprocess
from dataclasses import replace
from itertools import chain
from typing import Any
from xml.etree import ElementTree

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.base.machine.isolation import Bounds
from localpuppet.rollout.diagram import (
    MARKED,
    MAX_BOXES,
    MAX_EDGES,
    Diagram,
    dot_sizes,
    dot_text,
    kick_diagram,
    plan_diagram,
)
from localpuppet.rollout.svg import BOUNDS, draw_svg
from tests.fleet.edges.test_relations import asks, node, of, role
from tests.rollout.test_plan import LAMP, part, plan, site

SVG = "{http://www.w3.org/2000/svg}"
EVIL = '</text><script>"\\" -> & &lt; ]]; \\N\\l'


def of_plan(raw: dict[str, Any]) -> Diagram:
    return plan_diagram(plan(raw))


def elements(document: str) -> list[ElementTree.Element]:
    return [*ElementTree.fromstring(document).iter()]  # noqa: S314 - written by localpuppet


def texts(document: str) -> list[str]:
    return [element.text or "" for element in elements(document) if element.tag == f"{SVG}text"]


def names_of(diagram: Diagram) -> list[list[str]]:
    return [[*map(str, box.nodes)] for box in diagram.boxes]


def test_a_box_has_equal_runs_and_an_edge_names_what_they_wait_for() -> None:
    diagram = of_plan(LAMP)
    first, *others = diagram.boxes
    assert first.lines == ("Lamp[app1]: Lamp::Mysql[app1]", "Lamp[app2]: Lamp::Mysql[app2]")
    assert sorted(chain(*names_of(diagram))) == [f"dev{n}.devco.net" for n in (1, 2, 3, 4)]
    assert [edge.start for edge in diagram.edges] == [0] * len(others)
    assert {edge.label for edge in diagram.edges} <= {
        "Sql[app1]",
        "Sql[app2]",
        "Sql[app1], Sql[app2]",
    }
    assert [head for _, head in diagram.heads] == ["Group 1", "Group 2"]


def test_equal_neighbours_share_a_box_with_their_count() -> None:
    webs = {f"s_{n}": part(f"web{n:02}", gives=f"http{n}", needs="sql") for n in range(20)}
    consumes = [f"http{n}" for n in range(20)]
    raw = site(s_db=part("db", gives="sql"), **webs)
    raw["applications"]["s"]["lb"] = {"node": "lb", "consumes": consumes}
    diagram = of_plan(raw)
    assert [box.title for box in diagram.boxes] == ["db", "20 nodes", "lb"]
    shown = [text for text, _ in diagram.boxes[1].rows]
    assert shown[:5] == ["20 nodes", "web00", "web01", "web02", "and 17 more"]
    assert [edge.label for edge in diagram.edges] == ["sql", "http0 and 19 more"]


def test_nodes_that_different_nodes_wait_for_are_different_boxes() -> None:
    diagram = of_plan(
        site(
            a_1=part("a", gives="p"),
            a_2=part("b", gives="q"),
            a_3=part("c", needs="p"),
            a_4=part("d", needs="q"),
        )
    )
    assert names_of(diagram) == [["a"], ["b"], ["c"], ["d"]]


def test_a_node_that_runs_twice_is_two_boxes() -> None:
    diagram = of_plan(
        site(
            a_1=part("x", gives="p"),
            a_2=part("y", needs="p"),
            b_1=part("y", gives="q"),
            b_2=part("x", needs="q"),
        )
    )
    assert {box.title for box in diagram.boxes} == {
        f"{name} (run {number} of 2)" for name in "xy" for number in (1, 2)
    }
    again = [edge for edge in diagram.edges if edge.label == "runs again"]
    assert [names_of(diagram)[edge.start] for edge in again] == [["x"], ["y"]]


@pytest.mark.parametrize(("width", "length"), [(500, 1), (1, 500), (40, 40)])
def test_a_large_plan_is_bounded_and_its_longest_chain_is_kept(width: int, length: int) -> None:
    parts = {
        # Each row is a separate chain, so that no two nodes are equal.
        f"a{row}_{group}": part(
            f"n{group}-{row}", gives=f"c{group}-{row}", needs=f"c{group - 1}-{row}" * (group > 0)
        )
        for group in range(length)
        for row in range(width)
    }
    diagram = of_plan(site(**parts))
    assert len(diagram.boxes) <= MAX_BOXES
    assert len(diagram.edges) <= MAX_EDGES
    if width * length > MAX_BOXES and length > 1:
        assert f"{width * length - MAX_BOXES} more boxes are not drawn" in dict(diagram.notes)[""]
    ranks = [box.rank for box in diagram.boxes if MARKED in box.kinds]
    assert ranks == [*range(1, min(length, MAX_BOXES) + 1)] * (length > 1)
    drawn = texts(draw_svg(diagram))
    assert {text for _, text in diagram.notes} <= {*drawn}


def evil_diagrams() -> list[Diagram]:
    raw = {
        "applications": {
            EVIL: {EVIL: {"node": "x", "produces": [EVIL]}, "b": {"node": "y", "consumes": [EVIL]}}
        }
    }
    name = f"{EVIL}\u202e"
    kicks = of(node("a", name, kicks=(f"role='{name}'", role("b"))), node("b", "b"))
    return [of_plan(raw), kick_diagram(kicks)]


def test_no_name_reaches_the_program_that_lays_out() -> None:
    for diagram in evil_diagrams():
        text = dot_sizes(diagram)
        assert "script" not in text
        assert set(text) <= set(dot_sizes(of_plan(LAMP)) + "0123456789")


def test_names_stay_text_in_a_picture() -> None:
    for diagram in evil_diagrams():
        for page in ("", "/nodes/"):
            document = draw_svg(diagram, page)
            tags = {element.tag.removeprefix(SVG) for element in elements(document)}
            assert tags <= {"svg", "style", "title", "rect", "text", "g", "path", "a"}
            keys = {key for element in elements(document) for key in element.attrib}
            assert not {key for key in keys if key.startswith("on") or "src" in key}
            links = {one.get("href") for one in elements(document) if one.get("href")}
            assert all(link.startswith("/nodes/") for link in links if link)
            assert bool(links) == bool(page)
            assert "\u202e" not in document
            assert any(text.startswith("</text><script>") for text in texts(document))


def test_names_stay_text_in_dot() -> None:
    for diagram in evil_diagrams():
        done = subprocess.run(
            ["dot", "-Tsvg"], input=dot_text(diagram).encode(), capture_output=True, check=True
        )
        assert done.stderr == b""
        document = done.stdout.decode()
        assert not {"script", "a", "image"} & {
            element.tag.removeprefix(SVG) for element in elements(document)
        }
        # Neither an escape nor an entity is read in a name.
        shown = [text.replace("\u00a0", " ") for text in texts(document)]
        assert any(EVIL[:24] in text for text in shown), shown


def test_roles_nodes_and_cycles_are_named() -> None:
    diagram = kick_diagram(
        of(
            node("web01", "web", kicks=(role("haproxy"), role("nosuch")), asks=(asks("web"),)),
            node("web02", "web"),
            node("lb01", "haproxy", kicks=(role("web"),)),
        )
    )
    found = texts(draw_svg(diagram))
    assert {
        "web (2 nodes)",
        "haproxy",
        "web01.example.com",
        'role="nosuch"',
        "no node matches",
    } <= {*found}
    assert found[-1] == "Cycle: haproxy -> web -> haproxy"
    assert sum(MARKED in edge.kinds for edge in diagram.edges) == 2


def test_nodes_without_an_order_have_no_longest_chain() -> None:
    diagram = of_plan(site(a_1=part("x"), b_1=part("y")))
    assert diagram.title == "production: 2 nodes, 1 group"
    assert not [box for box in diagram.boxes if MARKED in box.kinds]
    assert diagram.notes == ()


def test_a_tooltip_has_a_node_once() -> None:
    diagram = of_plan(site(a_1=part("x", gives="p"), a_2=part("y", needs="p")))
    titles = [one for one in elements(draw_svg(diagram)) if one.tag == f"{SVG}title"]
    tooltips = [(one.text or "").splitlines() for one in titles]
    assert {tooltip[0] for tooltip in tooltips} >= {"x", "y"}
    assert all(len(set(tooltip)) == len(tooltip) for tooltip in tooltips)


def test_nodes_without_a_role_share_a_box_if_their_neighbours_are_equal() -> None:
    diagram = kick_diagram(
        of(
            node("lb01", "lb", kicks=("fqdn~'web.*'",)),
            *(node(f"web{n}") for n in range(5)),
            *(node(f"db{n}", "db") for n in range(2)),
        )
    )
    assert [box.title for box in diagram.boxes] == ["lb", "5 nodes"]


def test_an_empty_plan_has_a_picture() -> None:
    assert "production: 0 nodes, 0 groups" in texts(draw_svg(of_plan({"applications": {}})))
    found = texts(draw_svg(kick_diagram(of())))
    assert "No node kicks, asks about, collects from or triggers another node." in found


@pytest.mark.parametrize(
    ("bounds", "problem"),
    [
        (replace(BOUNDS, seconds=0), "'dot' did not end within 0 s"),
        (replace(BOUNDS, output=10), "'dot'"),
    ],
)
def test_a_layout_beyond_its_limits_is_an_error(bounds: Bounds, problem: str) -> None:
    with pytest.raises(UnavailableError, match=problem) as raised:
        draw_svg(of_plan(LAMP), bounds=bounds)
    assert raised.value.where == "Graphviz"


def test_without_graphviz_the_error_names_what_to_install() -> None:
    with pytest.raises(UnavailableError, match=r"it is not installed .*apt install graphviz"):
        draw_svg(of_plan(LAMP), program="/nonexistent/dot")
