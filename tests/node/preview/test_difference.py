"""The difference between two catalogs has all changes that matter to Puppet, and no others."""

import json
import random
import subprocess
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.preview.difference import (
    ADDED,
    CHANGED,
    REMOVED,
    Action,
    CatalogDifference,
    ForbiddenChange,
    ParameterChange,
    ResourceChange,
    ResourcePattern,
    difference,
    restarts,
    same,
)
from localpuppet.node.puppet.catalog import CanonicalCatalog
from tests.rigs.node import PATIENCE
from tests.rigs.quick import examples

NAMES = ("a", "b", "c", "web1", "é")
scalars = st.none() | st.booleans() | st.integers(-2, 2) | st.floats(0, 2) | st.sampled_from(NAMES)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner),
    max_leaves=6,
)
KINDS = ("File", "Service", "Concat::Fragment")


@st.composite
def raw_catalogs(draw: st.DrawFn) -> dict[str, Any]:
    references = draw(
        st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(NAMES)), unique=True, max_size=8)
    )
    resources = [
        {
            "type": kind,
            "title": title,
            "exported": draw(st.booleans()),
            "tags": draw(st.lists(st.sampled_from(NAMES), max_size=2)),
            "file": draw(st.none() | st.just("/x/manifests/init.pp")),
            "line": draw(st.integers(1, 9)),
            "parameters": {
                **draw(st.dictionaries(st.sampled_from(("mode", "content")), values)),
                **{
                    relation: [f"{kind}[{title}]" for kind, title in targets]
                    for relation in draw(st.sets(st.sampled_from(("require", "notify"))))
                    if (targets := draw(st.lists(st.sampled_from(references), max_size=2)))
                },
            },
        }
        for kind, title in references
    ]
    pairs = st.lists(st.permutations(references).map(lambda x: x[:2]), max_size=3)
    edges = [
        {"source": f"{one[0]}[{one[1]}]", "target": f"{two[0]}[{two[1]}]"}
        for one, two in (draw(pairs) if references[1:] else [])
    ]
    classes = draw(st.lists(st.sampled_from(("ntp", "ntp::config", "web"))))
    named = {"name": "web1", "environment": "production", "classes": classes}
    return {**named, "resources": resources, "edges": edges}


catalogs = raw_catalogs().map(CanonicalCatalog.of)
# Making a catalog takes longer than comparing it.
FEW = examples(50)


@FEW
@given(catalogs)
def test_a_catalog_does_not_differ_from_itself(catalog: CanonicalCatalog) -> None:
    again = CanonicalCatalog.parse(catalog.to_bytes(), where="catalog")
    assert not difference(catalog, again)


@FEW
@given(raw_catalogs(), st.randoms(use_true_random=False))
def test_order_is_no_difference(raw: dict[str, Any], shuffled: random.Random) -> None:
    def other(items: list[Any]) -> list[Any]:
        return shuffled.sample(items, len(items))

    resources = [
        {
            **item,
            "tags": other(item["tags"]),
            "file": None,
            "line": None,
            "parameters": {
                name: other(value) if name in ("require", "notify") else value
                for name, value in other([*item["parameters"].items()])
            },
        }
        for item in other(raw["resources"])
    ]
    mixed = {
        **raw,
        "resources": resources,
        "edges": other(raw["edges"]),
        "classes": other(raw["classes"]),
    }
    assert not difference(CanonicalCatalog.of(raw), CanonicalCatalog.of(mixed))


def mirrored(changes: CatalogDifference) -> CatalogDifference:
    opposite: dict[Action, Action] = {ADDED: REMOVED, REMOVED: ADDED, CHANGED: CHANGED}
    return CatalogDifference(
        classes_added=changes.classes_removed,
        classes_removed=changes.classes_added,
        resources=tuple(
            replace(
                change,
                action=opposite[change.action],
                parameters=tuple(
                    replace(item, before=item.after, after=item.before)
                    for item in change.parameters
                ),
            )
            for change in changes.resources
        ),
        relationships=tuple(
            sorted(
                replace(change, action=opposite[change.action]) for change in changes.relationships
            )
        ),
    )


@FEW
@given(catalogs, catalogs)
def test_the_reverse_is_the_mirror_image(before: CanonicalCatalog, after: CanonicalCatalog) -> None:
    assert difference(after, before) == mirrored(difference(before, after))


@FEW
@given(catalogs, catalogs)
def test_without_difference_all_is_equal(before: CanonicalCatalog, after: CanonicalCatalog) -> None:
    if difference(before, after):
        return
    first, second = (
        {item.reference: item.parameters for item in side.resources} for side in (before, after)
    )
    assert first.keys() == second.keys()
    assert before.classes == after.classes
    for reference, parameters in first.items():
        for name in ("mode", "content"):
            assert same(parameters.get(name), second[reference].get(name))


@FEW
@given(catalogs, catalogs)
def test_a_difference_omits_ignored_resources_and_parameters(
    before: CanonicalCatalog, after: CanonicalCatalog
) -> None:
    ignore = [ResourcePattern.parse(text) for text in ("File", "*[web?]", "Service[*]::mode")]
    changes = difference(before, after, ignore=ignore)
    for change in changes.resources:
        assert change.type != "File"
        assert change.title != "web1"
        if change.action == CHANGED and change.type == "Service":
            assert "mode" not in [item.name for item in change.parameters]
    for relation in changes.relationships:
        assert "File[" not in relation.source + relation.target


def catalog(*resources: dict[str, Any], **more: Any) -> CanonicalCatalog:
    raw = {"name": "web1", "environment": "production", "classes": [], "edges": []}
    return CanonicalCatalog.of({**raw, "resources": [*resources], **more})


def a_file(title: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "File", "title": title, "tags": [], "parameters": parameters}


def test_a_text_of_several_lines_is_shown_as_a_unified_diff() -> None:
    lines = [f"line {number}\n" for number in range(20)]
    before, after = "".join(lines), "".join([*lines[:10], "new\n", *lines[11:]])
    (change,) = difference(
        catalog(a_file("/a", content=before)), catalog(a_file("/a", content=after))
    ).resources
    (parameter,) = change.parameters
    assert parameter.text is not None
    assert parameter.text.splitlines()[:1] == ["@@ -8,7 +8,7 @@"]
    assert "-line 10\n+new\n" in parameter.text
    assert ParameterChange(name="mode", before="0644", after="0600").text is None
    added = ParameterChange(name="content", before=None, after="a\nb\n")
    assert added.text == "@@ -0,0 +1,2 @@\n+a\n+b"


def test_two_notations_of_a_relationship_are_equal() -> None:
    both = a_file("/a"), a_file("/b")
    required = catalog(both[0], a_file("/b", require="File[/a]"))
    listed = catalog(both[0], a_file("/b", require=["File[/a]"]))
    before = catalog(a_file("/a", before=["File[/b]"]), both[1])
    assert not difference(required, listed)
    assert not difference(required, before)
    (relation,) = difference(catalog(*both), before).relationships
    assert (relation.action, relation.relationship) == (ADDED, "before")
    assert (relation.source, relation.target) == ("File[/a]", "File[/b]")
    notified = catalog(a_file("/a", notify="File[/b]"), both[1])
    changes = difference(before, notified).relationships
    assert [item.relationship for item in changes] == ["notifies", "before"]


def test_relationships_of_an_added_resource_are_listed_with_it() -> None:
    changes = difference(
        catalog(a_file("/a")), catalog(a_file("/a"), a_file("/b", require="File[/a]", mode="0600"))
    )
    assert changes == CatalogDifference(
        resources=(
            ResourceChange(
                action=ADDED,
                type="File",
                title="/b",
                parameters=(
                    ParameterChange(name="mode", before=None, after="0600"),
                    ParameterChange(name="require", before=None, after=["File[/a]"]),
                ),
            ),
        )
    )


def test_services_restart_if_what_notifies_them_changes() -> None:
    """A class notifies for what it contains, and a notified resource for what it notifies."""

    def of(content: str, *more: dict[str, Any]) -> CanonicalCatalog:
        edges = (
            *(("Class[Web]", "File[/a]"), ("Class[Front]", "Service[front]")),
            *(("Class[Web]", "Service[own]"), ("Stage[main]", "Class[Web]")),
        )
        resources: list[dict[str, Any]] = [
            {"type": "Stage", "title": "main"},
            {"type": "Class", "title": "Web", "parameters": {"notify": "Class[Front]"}},
            {"type": "Class", "title": "Front"},
            a_file("/a", content=content, notify="Exec[reload]"),
            a_file("/b", notify="Service[quiet]"),
            {"type": "Exec", "title": "reload", "parameters": {"notify": "Service[far]"}},
            *({"type": "Service", "title": name} for name in ("front", "own", "far", "quiet")),
        ]
        listed = [{"source": source, "target": target} for source, target in edges]
        return catalog(*resources, *more, edges=listed)

    before, after = of("1"), of("2")
    changes = difference(before, after)
    assert restarts(changes, after) == ("Service[far]", "Service[front]")
    assert restarts(difference(before, before), before) == ()
    new = of("1", {"type": "Service", "title": "new"}, a_file("/n", notify="Service[new]"))
    assert restarts(difference(before, new), new) == (), "it starts, and does not restart"


def test_each_resource_is_notified_once_however_many_notify_it() -> None:
    """Each of a chain of resources contains the next one, and notifies the first."""
    count = 10_000

    def of(value: int) -> CanonicalCatalog:
        names = [("Service" if number % 2 else "Exec", str(number)) for number in range(count)]
        resources: list[dict[str, Any]] = [
            {"type": kind, "title": title, "parameters": {"x": value, "notify": ["Exec[0]"]}}
            for kind, title in names
        ]
        edges = [
            {"source": "{}[{}]".format(*one), "target": "{}[{}]".format(*other)}
            for one, other in pairwise(names)
        ]
        return catalog(*resources, edges=edges)

    before, after = of(1), of(2)
    assert len(restarts(difference(before, after), after)) == count / 2


def test_values_of_different_types_differ() -> None:
    kinds: list[Any] = [1, "1", True, 1.0, [1], ["1"], {"a": 1}, {"a": True}]
    for one in kinds:
        for two in kinds:
            assert same(one, two) == (one is two)
            changes = difference(catalog(a_file("/a", x=one)), catalog(a_file("/a", x=two)))
            assert bool(changes) == (one is not two)


def test_secrets_differ_by_their_marks() -> None:
    first, second, again = (
        a_file("/a", content={"__ptype": "Sensitive", "mark": mark * 16})
        for mark in ("0a", "0b", "0a")
    )
    (change,) = difference(catalog(first), catalog(second)).resources
    assert [item.name for item in change.parameters] == ["content"]
    assert not difference(catalog(first), catalog(again))


def test_an_exported_resource_keeps_its_relationships() -> None:
    plain = {**a_file("/a"), "exported": True, "virtual": True}
    related = {**a_file("/a", require="File[/b]"), "exported": True, "virtual": True}
    (change,) = difference(catalog(plain), catalog(related)).resources
    assert [item.name for item in change.parameters] == ["require"]
    (change,) = difference(catalog(a_file("/a")), catalog(plain)).resources
    assert [item.name for item in change.parameters] == ["(exported)"]


def test_a_class_is_listed_by_name_and_its_parameters_as_a_resource() -> None:
    ntp = {"type": "Class", "title": "Ntp", "tags": [], "parameters": {"servers": ["a"]}}
    with_ntp = catalog(ntp, classes=["ntp"])
    assert difference(catalog(), with_ntp) == CatalogDifference(classes_added=("ntp",))
    changed = catalog({**ntp, "parameters": {"servers": ["b"]}}, classes=["ntp"])
    (change,) = difference(with_ntp, changed).resources
    assert change.reference == "Class[Ntp]"
    ignore = [ResourcePattern.parse("Class[Ntp]")]
    assert not difference(catalog(), with_ntp, ignore=ignore)


def test_served_contents_join_the_difference_of_their_resource() -> None:
    changes = difference(catalog(a_file("/a", mode="1")), catalog(a_file("/a", mode="2")))
    served = ParameterChange(name="content of source", before="old\n", after="new\n")
    with_contents = changes.with_resources(
        ResourceChange(action=CHANGED, type="File", title=title, parameters=(served,))
        for title in ("/b", "/a")
    )
    assert [
        (item.reference, [parameter.name for parameter in item.parameters])
        for item in with_contents.resources
    ] == [("File[/a]", ["content of source", "mode"]), ("File[/b]", ["content of source"])]


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("Service", ResourcePattern(type="Service")),
        ("File[*]::mtime", ResourcePattern(type="File", title="*", parameter="mtime")),
        ("File::mtime", ResourcePattern(type="File", parameter="mtime")),
        ("Concat::Fragment[a]", ResourcePattern(type="Concat::Fragment", title="a")),
        ("Exec[[ -f /x ]::y]", ResourcePattern(type="Exec", title="[ -f /x ]::y")),
        ("*[/etc/*]", ResourcePattern(type="*", title="/etc/*")),
        ("A[]", ResourcePattern(type="A", title="")),
    ],
)
def test_a_pattern_has_a_type_a_title_and_a_parameter(text: str, pattern: ResourcePattern) -> None:
    assert ResourcePattern.parse(text) == pattern


@pytest.mark.parametrize("text", ["", "file", "File[", "[x]", "File[a]::", "x:File", "A" * 2000])
def test_an_invalid_pattern_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"--ignore: .*'File\[\*\]::mtime'"):
        ResourcePattern.parse(text)


def test_stars_match_any_text_and_brackets_match_literally() -> None:
    pattern = ResourcePattern.parse("File[/etc/[a]*.d/?]")
    assert pattern.fits("File", "/etc/[a]\n/x.d/y")
    assert not pattern.fits("File", "/etc/a.d/y")
    assert not pattern.fits("Filebucket", "/etc/[a].d/y")
    assert ResourcePattern.parse("Nginx::*").fits("Nginx::Vhost", "x")


@given(st.text("ab*?", max_size=8), st.text("ab", max_size=8))
def test_stars_match_as_in_a_shell(pattern: str, text: str) -> None:
    fits = ResourcePattern(type="File", title=pattern).fits("File", text)
    assert fits == fnmatchcase(text, pattern)


def test_a_pattern_with_many_stars_is_fast() -> None:
    pattern = ResourcePattern.parse(f"File[{'*a' * 100}*b]")
    assert not pattern.fits("File", "a" * 1_000_000)


def test_a_forbidden_change_starts_with_an_action() -> None:
    change = ForbiddenChange.parse("removed:Service[nginx]")
    assert (change.action, change.pattern) == (
        "removed",
        ResourcePattern(type="Service", title="nginx"),
    )
    for text in ("Service[nginx]", "gone:Service", ":Service", "removed"):
        with pytest.raises(InvalidInputError, match=r"--fail-on: .*'removed:Service\[nginx\]'"):
            ForbiddenChange.parse(text)


BEFORE = """
class web($port = 80) {
  file { '/etc/web.conf': content => "Listen ${port}\\nName ${facts['networking']['fqdn']}\\n" }
  service { 'web': ensure => running, require => File['/etc/web.conf'] }
  exec { 'old': command => '/bin/true' }
  file { '/etc/key': content => Sensitive('one'), mode => '0600' }
}
class old { notify { 'old': } }
include web
include old
"""
AFTER = """
class web($port = 80) {
  file { '/etc/key': mode => '0600', content => Sensitive('one') }
  file { '/etc/web.conf':
    content => "Listen 8080\\nName ${facts['networking']['fqdn']}\\n",
    tag     => 'x',
  }
  ~> service { 'web': ensure => running }
  package { ['web', 'web-doc']: require => File['/etc/key'] }
}
include web
"""


def compiled(directory: Path, manifest: str) -> CanonicalCatalog:
    directory.mkdir()
    file = directory / "site.pp"
    file.write_text(manifest)
    done = subprocess.run(
        [
            *("puppet", "catalog", "compile", "web1", "--render-as", "json"),
            *("--manifest", str(file), "--confdir", str(directory), "--vardir", str(directory)),
            *("--log_level", "err"),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    return CanonicalCatalog.of(json.loads(done.stdout[done.stdout.index("{") :]))


def lines(changes: CatalogDifference) -> list[str]:
    return [
        *(f"- class {name}" for name in changes.classes_removed),
        *(f"+ class {name}" for name in changes.classes_added),
        *(
            " ".join([item.action, item.reference, *(change.name for change in item.parameters)])
            for item in changes.resources
        ),
        *(
            f"{item.action} {item.source} {item.relationship} {item.target}"
            for item in changes.relationships
        ),
    ]


@pytest.mark.puppet
def test_the_difference_of_two_compiled_catalogs(tmp_path: Path) -> None:
    before = compiled(tmp_path / "before", BEFORE)
    after = compiled(tmp_path / "after", AFTER)
    changes = difference(before, after)
    assert lines(changes) == [
        "- class old",
        "removed Exec[old] command",
        "changed File[/etc/web.conf] content",
        "removed Notify[old]",
        "added Package[web] require",
        "added Package[web-doc] require",
        "added File[/etc/web.conf] notifies Service[web]",
        "removed File[/etc/web.conf] before Service[web]",
    ]
    (content,) = next(
        item for item in changes.resources if item.title == "/etc/web.conf"
    ).parameters
    assert content.text is not None
    assert content.text.splitlines()[1:3] == ["-Listen 80", "+Listen 8080"]
    assert not difference(before, compiled(tmp_path / "again", BEFORE))
