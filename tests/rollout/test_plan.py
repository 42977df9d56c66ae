"""Narrowed plans, refused plans with the names in their errors, and plans of hostile sizes."""

import json
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.rollout.plan import ChainRun, Plan, PlanSelection, make_plan
from localpuppet.rollout.site import EnvironmentSite

LAMP = json.loads((Path(__file__).parents[1] / "data" / "environment-lamp.json").read_text())


def plan(raw: dict[str, Any], *, instances: tuple[str, ...] = (), nodes: str = "") -> Plan:
    selection = PlanSelection(
        instances=instances, nodes=tuple(NodeName.parse(node) for node in nodes.split())
    )
    return make_plan(EnvironmentSite.from_dict(raw, where="site"), selection, where="site")


def groups(found: Plan) -> list[list[str]]:
    return [[str(run.node) for run in group] for group in found.groups]


def part(node: str, *, gives: str = "", needs: str = "") -> dict[str, Any]:
    return {"node": node, "produces": gives.split(), "consumes": needs.split()}


def site(**parts: dict[str, Any]) -> dict[str, Any]:
    """Return a document whose applications are the first letters of the parts' names."""
    applications: dict[str, dict[str, Any]] = {}
    for name, body in parts.items():
        applications.setdefault(name[0], {})[name] = body
    return {"applications": applications}


def refusal(raw: dict[str, Any], **selection: Any) -> str:
    with pytest.raises(InvalidInputError) as refused:
        plan(raw, **selection)
    assert refused.value.exit_code == 2
    return str(refused.value)


def test_puppets_own_environment_graph() -> None:
    found = plan(LAMP)
    web = ["dev2.devco.net", "dev3.devco.net", "dev4.devco.net"]
    assert groups(found) == [["dev1.devco.net"], web]
    assert found.applications == ("Lamp[app1]", "Lamp[app2]")
    assert found.groups[0][0].by_application() == {
        "Lamp[app1]": ["Lamp::Mysql[app1]"],
        "Lamp[app2]": ["Lamp::Mysql[app2]"],
    }
    assert found.chain == (
        ChainRun(group=1, node=NodeName("dev1.devco.net"), capability=None),
        ChainRun(group=2, node=NodeName("dev2.devco.net"), capability="Sql[app1]"),
    )


def test_an_instance_is_planned_alone_and_counted_alone() -> None:
    found = plan(LAMP, instances=("Lamp[app2]",))
    assert found.applications == ("Lamp[app2]",)
    assert found.groups[0][0].by_application() == {"Lamp[app2]": ["Lamp::Mysql[app2]"]}


def test_nodes_are_planned_in_the_order_that_leads_through_others() -> None:
    raw = site(
        a_db=part("db", gives="sql"),
        a_app=part("app", needs="sql", gives="http"),
        a_lb=part("lb", needs="http"),
    )
    found = plan(raw, nodes="db lb")
    assert groups(found) == [["db"], ["lb"]]
    assert found.external_capabilities == ("http",)
    assert [link.capability for link in found.chain] == [None, None]


def test_without_the_nodes_between_two_runs_of_a_node_become_a_single_run() -> None:
    raw = site(
        a_1=part("x", gives="p"), a_2=part("y", needs="p", gives="q"), a_3=part("x", needs="q")
    )
    assert groups(plan(raw)) == [["x"], ["y"], ["x"]]
    assert groups(plan(raw, nodes="x")) == [["x"]]


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"instances": ("Lamp[app3]",)}, "unknown application instance 'Lamp[app3]' (did you mean"),
        ({"nodes": "dev9.devco.net"}, "unknown node 'dev9.devco.net' (did you mean"),
    ],
)
def test_a_selection_of_an_unknown_name_is_refused(selection: dict[str, Any], message: str) -> None:
    assert refusal(LAMP, **selection).startswith(f"site: {message}")


def test_a_selection_that_matches_no_node_is_refused() -> None:
    raw = site(a_1=part("x"), b_1=part("y"))
    raw["applications"]["empty"] = {}
    assert groups(plan(raw)) == [["x", "y"]]
    assert refusal(raw, instances=("empty",)) == "site: the selection matches no node"
    assert refusal(raw, instances=("a",), nodes="y") == (
        "site: node y has no component of the selected applications"
    )


def test_a_capability_without_a_producer_is_named() -> None:
    raw = site(a_1=part("x", needs="p"), a_2=part("y", needs="p q"))
    assert refusal(raw) == (
        "site: nothing produces p, which a_1 of a on x consumes (and 2 more like this) "
        "(add its producer, or remove it from 'consumes')"
    )


def test_a_producer_that_is_not_selected_is_named_even_if_another_is() -> None:
    raw = site(a_1=part("x", needs="p"), a_2=part("y", gives="p"), b_1=part("z", gives="p"))
    assert groups(plan(raw)) == [["y", "z"], ["x"]]
    assert refusal(raw, instances=("a",)) == (
        "site: p, which a_1 of a on x consumes, is produced by b_1 of b on z, which is not "
        "selected (add --instance 'b')"
    )


def test_a_circle_is_named_with_its_components_nodes_and_capabilities() -> None:
    raw = site(
        a_0=part("w", gives="o"),
        a_1=part("x", needs="o r", gives="p"),
        a_2=part("x", needs="p", gives="q"),
        b_1=part("y", needs="q", gives="r"),
        b_2=part("z", needs="r"),
    )
    assert refusal(raw) == (
        "site: the order has a cycle: a_2 of a on x -> q -> b_1 of b on y -> r -> a_1 of a on x "
        "-> p -> a_2 of a on x (remove one of these from 'consumes')"
    )
    assert "the order has a cycle" in refusal(raw, nodes="w"), "also where it is not selected"


def test_the_error_for_ten_thousand_cycles_is_short() -> None:
    parts = {}
    for number in range(10_000):
        parts[f"a{number}"] = part("x", gives=f"p{number}", needs=f"q{number}")
        parts[f"b{number}"] = part("y", gives=f"q{number}", needs=f"p{number}")
    message = refusal(site(**parts))
    assert "9999 more cycles" in message
    assert len(message) < 300


def test_a_circle_through_everything_is_shortened() -> None:
    size = 20_000
    parts = {
        f"a{number}": part(f"n{number}", gives=f"c{number}", needs=f"c{(number - 1) % size}")
        for number in range(size)
    }
    message = refusal(site(**parts))
    assert "a0 of a on n0 -> c0 -> a1 of a on n1" in message
    assert f"… {2 * size + 1 - 12} more …" in message
    assert len(message) < 500


def test_a_chain_of_twenty_thousand_nodes_is_as_many_groups() -> None:
    size = 20_000
    parts = {
        f"a{number}": part(f"n{number}", gives=f"c{number}", needs=f"c{number - 1}" * (number > 0))
        for number in range(size)
    }
    found = plan(site(**parts))
    assert len(found.groups) == len(found.chain) == size
    assert found.runs[-1].node == f"n{size - 1}"


def test_two_nodes_can_alternate_twenty_thousand_times() -> None:
    size = 20_000
    parts = {
        f"a{number}": part(
            f"n{number % 2}", gives=f"c{number}", needs=f"c{number - 1}" * (number > 0)
        )
        for number in range(size)
    }
    found = plan(site(**parts))
    assert [run.node for run in found.runs] == [f"n{number % 2}" for number in range(size)]
    assert len(found.repeated()[NodeName("n0")]) == size // 2


def test_a_capability_of_many_producers_and_consumers_is_not_multiplied_out() -> None:
    size = 20_000
    parts = {f"a{number}": part(f"a{number}", gives="c") for number in range(size)}
    parts |= {f"b{number}": part(f"b{number}", needs="c") for number in range(size)}
    found = plan(site(**parts))  # 400 million pairs would not end in time, nor fit
    assert [len(group) for group in found.groups] == [size, size]
