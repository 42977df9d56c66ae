"""Groups of nodes whose differences are equal except for names and addresses."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.cli.preview.preview_command import preview_text
from localpuppet.node.preview.compile_request import CompileFailure
from localpuppet.node.preview.difference import (
    ADDED,
    CHANGED,
    CatalogDifference,
    ForbiddenChange,
    ParameterChange,
    ResourceChange,
)
from localpuppet.node.preview.drawing import preview_html, preview_markdown
from localpuppet.node.preview.result import (
    DifferenceGrouping,
    NodePlaceholders,
    PreviewResult,
    PreviewRevision,
)
from localpuppet.node.preview.wording import overview


def facts(number: int) -> dict[str, Any]:
    return {
        "networking": {
            "fqdn": f"web{number}.example.com",
            "hostname": f"web{number}",
            "ip": f"10.0.0.{number}",
            "ip6": f"2001:db8::{number:x}",
            "mac": f"52:54:00:00:00:{number:02x}",
            "interfaces": {
                "lo": {"ip": "127.0.0.1", "ip6": "::1"},
                "eth0": {"ip": f"10.0.0.{number}", "bindings": [{"address": f"10.0.0.{number}"}]},
                "eth1": {"ip": f"10.1.0.{number}", "mac": f"52:54:00:00:01:{number:02x}"},
            },
        }
    }


def change(title: str, **contents: tuple[Any, Any]) -> CatalogDifference:
    parameters = tuple(
        ParameterChange(name=name, before=before, after=after)
        for name, (before, after) in contents.items()
    )
    return CatalogDifference(
        resources=(ResourceChange(action=CHANGED, type="File", title=title, parameters=parameters),)
    )


def of(number: int) -> NodePlaceholders:
    return NodePlaceholders.of(f"web{number}.example.com", facts(number))


def test_differences_that_are_equal_except_for_names_are_one_group() -> None:
    grouping = DifferenceGrouping()
    for number in (10, 2, 1, 12):
        text = f"{{}} web{number}.example.com 10.0.0.{number}:80 10.1.0.{number} 127.0.0.1"
        new = [text, {f"web{number}": f"52:54:00:00:00:{number:02x}"}]
        changes = change(f"/etc/web{number}.conf", content=(text, new))
        role = "web" if number > 1 else None
        grouping.add(f"web{number}.example.com", changes, of(number), role=role)
    (group,) = grouping.groups()
    assert group.nodes == tuple(f"web{number}.example.com" for number in (1, 10, 12, 2))
    assert group.roles == ("web",)
    (resource,) = group.difference.resources
    assert resource.title == "/etc/⟨hostname⟩.conf"
    assert resource.parameters[0].before == "{} ⟨fqdn⟩ ⟨ip⟩:80 ⟨ip of eth1⟩ 127.0.0.1"
    assert isinstance(resource.parameters[0].after, list)
    assert resource.parameters[0].after[1] == {"⟨hostname⟩": "⟨mac⟩"}


def test_other_differences_are_several_groups_with_the_largest_first() -> None:
    grouping = DifferenceGrouping()
    for number in range(1, 10):
        grouping.add(f"web{number}", change("/a", mode=("1", str(number % 3 // 2))), of(number))
    grouping.add("web20", CatalogDifference(), of(20))
    assert [len(group.nodes) for group in grouping.groups()] == [6, 3]


def test_a_name_is_replaced_only_as_a_complete_word() -> None:
    words = NodePlaceholders.of("db1", {"networking": {"hostname": "db1", "ip": "10.0.0.1"}})
    assert words.text("db1 db10 mydb1 my-db1 db1.x 10.0.0.10 10.0.0.1/8 110.0.0.1") == (
        "⟨fqdn⟩ db10 mydb1 my-⟨fqdn⟩ ⟨fqdn⟩.x 10.0.0.10 ⟨ip⟩/8 110.0.0.1"
    )


def test_text_that_looks_like_a_placeholder_is_escaped() -> None:
    grouping = DifferenceGrouping()
    grouping.add("a", change("/⟨ip⟩"), NodePlaceholders.of("a", {"ipaddress": "10.0.0.1"}))
    grouping.add("b", change("/10.0.0.2"), NodePlaceholders.of("b", {"ipaddress": "10.0.0.2"}))
    assert len(grouping.groups()) == 2
    assert NodePlaceholders({}).text("⟨ip⟩") == "⟨⟨ip⟩"


def test_the_only_node_of_a_group_keeps_its_names() -> None:
    grouping = DifferenceGrouping()
    grouping.add("web1.example.com", change("/etc/web1"), of(1))
    assert grouping.groups()[0].difference == change("/etc/web1")


def test_a_node_without_facts_has_a_name() -> None:
    assert NodePlaceholders.of("web1.x", {}).text("web1.x web1") == "⟨fqdn⟩ ⟨hostname⟩"
    odd: dict[str, Any] = {
        "networking": {"ip": "", "mac": "00:00:00:00:00:00", "interfaces": [], "ip6": 7}
    }
    assert NodePlaceholders.of("a", odd).text(" 00:00:00:00:00:00 7") == " 00:00:00:00:00:00 7"


@given(st.lists(st.integers(1, 30), unique=True, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_nodes_does_not_matter(numbers: list[int], shuffled: Any) -> None:
    def groups(order: list[int]) -> Any:
        grouping = DifferenceGrouping()
        for number in order:
            changes = change(f"/etc/web{number}", mode=(None, number % 2))
            grouping.add(f"web{number}.example.com", changes, of(number))
        return grouping.groups()

    assert groups(numbers) == groups(shuffled.sample(numbers, len(numbers)))


def test_a_forbidden_change_of_any_node_is_found() -> None:
    rules = ("changed:File[/etc/web7.conf]", "changed:File::mode", "removed:File")
    grouping = DifferenceGrouping([ForbiddenChange.parse(text) for text in rules])
    for number in range(1, 9):
        grouping.add(
            f"web{number}.example.com", change(f"/etc/web{number}.conf", x=(1, 2)), of(number)
        )
    grouping.add("db", change("/b", mode=(1, 2)), of(99))
    assert [(item.rule, item.reference, item.nodes) for item in grouping.violations()] == [
        (rules[0], "File[/etc/⟨hostname⟩.conf]", ("web7.example.com",)),
        (rules[1], "File[/b]", ("db",)),
    ]
    removed = DifferenceGrouping([ForbiddenChange.parse("removed:Class[Ntp::Config]")])
    removed.add("db", CatalogDifference(classes_removed=("ntp::config",)), of(1))
    assert removed.violations()[0].reference == "Class[Ntp::Config]"


def test_the_differences_in_memory_have_a_limit() -> None:
    grouping = DifferenceGrouping(most=10_000)
    for number in range(100):  # equal ones count once
        grouping.add(f"web{number}", change("a", content=("x", "y" * 6_000)), of(number))
    with pytest.raises(InvalidInputError, match="web1: the differences have more than 10000 bytes"):
        grouping.add("web1", change("a", content=("x", "z" * 6_000)), of(1))


def catalog(number: int, *, resources: int) -> CatalogDifference:
    added = [
        ResourceChange(
            action=ADDED,
            type="File",
            title=f"/{number}/{index:03}",
            parameters=(ParameterChange(name="content", before=None, after="x" * 100),),
        )
        for index in range(resources)
    ]
    return CatalogDifference(classes_added=("ntp",), resources=tuple(added))


def test_nodes_that_compile_only_now_show_a_part_and_never_refuse_the_preview() -> None:
    rules = [ForbiddenChange.parse("added:File[*/049]")]
    grouping = DifferenceGrouping(rules, most=10_000, most_fixed=2_000)
    for number in range(20):
        node = f"web{number}"
        grouping.add(node, catalog(number, resources=50), of(number), fixed=True)
    grouping.add("web1", change("a", content=("x", "y" * 6_000)), of(1))
    *fixed, changed = sorted(grouping.groups(), key=lambda group: (not group.fixed, group.nodes))
    shown = [len(group.difference.resources) for group in fixed]
    assert (len(fixed), min(shown), max(shown) < 50) == (20, 0, True)
    assert [group.left_out + number for group, number in zip(fixed, shown, strict=True)] == [
        50 if group.difference.classes_added else 51 for group in fixed
    ]
    assert (changed.fixed, changed.left_out) == (False, 0)
    assert len(grouping.violations()) == 20, "also of what is not shown"
    revision = PreviewRevision(name="r")
    result = PreviewResult(base=revision, head=revision, nodes=21, groups=grouping.groups())
    (totals, *_) = overview(result)
    assert totals.title == "1,020 to add, 1 to change, 0 to remove"
    assert totals.rows[-1].text == "on 20 nodes"
    for text in (preview_text(result), preview_markdown(result), preview_html(result)):
        assert "that did not compile before, without 51 resources" in text


def test_forbidden_differences_name_their_nodes_a_limited_number_of_times() -> None:
    rules = [ForbiddenChange.parse(text) for text in ("added:File", "added:File[*1]")]
    grouping = DifferenceGrouping(rules, most_violations=30)
    for number in (1, 2):
        grouping.add(f"web{number}", catalog(0, resources=100), of(number))
    violations = grouping.violations()
    assert len(violations) == 32
    assert {item.nodes for item in violations} == {("web1", "web2")}
    assert [item.rule for item in violations if item.reference == "further resources"] == [
        rule.text for rule in rules
    ]


def test_services_that_restart_name_their_nodes_a_limited_number_of_times() -> None:
    services = [f"Service[{number:04}]" for number in range(2_000)]
    grouping = DifferenceGrouping()
    for number in (1, 2):
        node = f"web{number}"
        grouping.add(node, change("/a", x=(1, 2)), of(number), restarts=lambda: tuple(services))
    revision = PreviewRevision(name="r")
    result = PreviewResult(base=revision, head=revision, nodes=2, groups=grouping.groups())
    (_, restarting) = overview(result)
    assert [row.text for row in restarting.rows] == [*services[:500], "further services"]
    assert {tuple(row.nodes) for row in restarting.rows} == {("web1", "web2")}


@pytest.mark.parametrize(
    "place", ["", " (file: x.pp)", " (file: x.pp, line: 2)", " (line: 2, column: 5) on node a.b"]
)
def test_the_place_of_a_failure_is_not_part_of_its_message(place: str) -> None:
    failure = CompileFailure(message=f"Syntax error (of x){place}", file="x.pp")
    assert failure.plain_message == "Syntax error (of x)"
