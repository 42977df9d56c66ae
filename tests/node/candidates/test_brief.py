"""Differences in the short forms of `release diff` and `rollout plan --release`."""

from localpuppet.base.formats.values import Json
from localpuppet.node.candidates import brief_changes, named_difference
from localpuppet.node.preview.difference import (
    ADDED,
    CHANGED,
    REMOVED,
    CatalogDifference,
    ParameterChange,
    RelationshipChange,
    ResourceChange,
)
from localpuppet.node.releases.comparison import CatalogChanges

BEFORE: dict[str, Json] = {"__ptype": "Sensitive", "mark": "a" * 32}
AFTER: dict[str, Json] = {"__ptype": "Sensitive", "mark": "b" * 32}
DIFFERENCE = CatalogDifference(
    classes_added=("ntp::config",),
    classes_removed=("old",),
    resources=(
        ResourceChange(action=REMOVED, type="File", title="/gone"),
        ResourceChange(
            action=ADDED,
            type="File",
            title="/new",
            parameters=(ParameterChange(name="mode", before=None, after="0644"),),
        ),
        ResourceChange(
            action=CHANGED,
            type="File",
            title="/x",
            parameters=(
                ParameterChange(name="content", before=BEFORE, after=AFTER),
                ParameterChange(name="mode", before="0644", after="0600"),
                ParameterChange(name="owner", before=None, after="me"),
                ParameterChange(name="retries", before=[1], after=None),
            ),
        ),
    ),
    relationships=(
        RelationshipChange(
            action=ADDED, source="File[/x]", relationship="notifies", target="Service[x]"
        ),
        RelationshipChange(
            action=REMOVED, source="Class[A]", relationship="before", target="File[/x]"
        ),
    ),
)


def test_parameter_changes_are_listed_without_secret_values() -> None:
    named = named_difference(DIFFERENCE)
    assert named.added == ("Class[Ntp::Config]", "File[/new]")
    assert named.removed == ("Class[Old]", "File[/gone]")
    assert named.changed == {
        "Class[A]": "-before File[/x]",
        "File[/x]": (
            "content: (sensitive) → (sensitive); mode: 0644 → 0600; +owner=me; -retries=[1]; "
            "+notifies Service[x]"
        ),
    }
    assert not named_difference(CatalogDifference())


def test_brief_changes_are_bounded_and_have_no_values() -> None:
    changes = brief_changes(DIFFERENCE)
    assert changes == CatalogChanges(
        added=("Class[Ntp::Config]", "File[/new]"),
        removed=("Class[Old]", "File[/gone]"),
        changed={
            "Class[A]": ("before",),
            "File[/x]": ("content", "mode", "notifies", "owner", "retries"),
        },
    )
    assert changes.bounded(10_000) == changes
    few = changes.bounded(70)
    assert (few.removed, list(few.changed), few.added) == (changes.removed, ["Class[A]"], ())
    assert (few.left_out, few.count) == (3, 6)
    assert not brief_changes(CatalogDifference()).count
