"""Groups of nodes whose differences are equal except for names and addresses."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.preview.difference import (
    CHANGED,
    CatalogDifference,
    ForbiddenChange,
    ParameterChange,
    ResourceChange,
)
from localpuppet.node.preview.result import DifferenceGrouping, NodePlaceholders


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
