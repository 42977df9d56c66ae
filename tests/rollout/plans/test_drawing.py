"""Pictures of who makes whom run: where boxes stand, and that names cannot break out."""

from xml.etree import ElementTree

from localpuppet.rollout.plans.drawing import MOST_BOXES, draw
from localpuppet.rollout.plans.layout import arrange
from tests.fleet.roles.test_relations import asks, node, of, role

NAMES = "{http://www.w3.org/2000/svg}"


def texts(document: str) -> list[str]:
    found = ElementTree.fromstring(document).iter(f"{NAMES}text")  # noqa: S314 - our own
    return [element.text or "" for element in found]


def test_edges_lead_to_the_right_and_those_that_close_a_circle_to_the_left() -> None:
    layout = arrange(4, [(0, 1), (1, 2), (2, 0), (0, 3), (3, 3)])
    assert layout.columns[0] == (0,)
    assert {(wire.left, wire.right) for wire in layout.wires} == {(0, 1), (1, 2), (0, 2), (0, 3)}
    column = {vertex: number for number, one in enumerate(layout.columns) for vertex in one}
    assert all(column[wire.left] < column[wire.right] for wire in layout.wires)


def test_a_long_wire_has_a_bend_in_each_column_that_it_crosses() -> None:
    layout = arrange(4, [(0, 1), (1, 2), (2, 3), (0, 3)])
    (long,) = [wire for wire in layout.wires if (wire.left, wire.right) == (0, 3)]
    column = {vertex: number for number, one in enumerate(layout.columns) for vertex in one}
    assert [column[bend] for bend in long.bends] == [1, 2]


def test_a_column_is_sorted_by_what_it_is_joined_to() -> None:
    layout = arrange(4, [(0, 3), (1, 2)])
    left, right = layout.columns
    assert left.index(0) == right.index(3)


def test_a_long_chain_does_not_recurse() -> None:
    size = 3000
    layout = arrange(size, [(number, number + 1) for number in range(size - 1)])
    assert len(layout.columns) == size


def test_nothing_at_all_is_a_picture() -> None:
    found = draw(of())
    assert "nobody kicks, asks about, collects from or triggers another node" in texts(found)
    assert arrange(0, []).columns == ()


def test_a_picture_names_roles_nodes_and_cycles() -> None:
    found = draw(
        of(
            node("web01", "web", kicks=(role("haproxy"), role("nosuch")), asks=(asks("web"),)),
            node("web02", "web"),
            node("lb01", "haproxy", kicks=(role("web"),)),
        )
    )
    assert {"web", "haproxy", "web01.example.com", 'role="nosuch"', "nobody has it"} <= {
        *texts(found)
    }
    assert texts(found)[0] == "Who makes whom run: 2 roles, 3 nodes"
    assert texts(found)[-1] == "cycle: haproxy -> web -> haproxy"
    assert found.count('class="edge kick cycle"') == 2


def test_names_cannot_break_out() -> None:
    evil = '</text><script>alert(1)</script>"&\u202e'
    found = draw(of(node("a", evil, kicks=(f"role='{evil}'", 'role="b"')), node("b", "b")))
    assert "<script>" not in found
    assert any(text.startswith("</text><script>") for text in texts(found))
    assert "\u202e" not in found


def test_a_large_fleet_is_drawn_in_part_and_says_so() -> None:
    found = draw(of(*(node(f"n{n}", f"r{n}", kicks=(role("r0"),)) for n in range(MOST_BOXES + 5))))
    assert "5 more roles are not drawn" in texts(found)
