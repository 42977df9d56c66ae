"""A preview compiles nodes without a stored result, and compares catalogs."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json
from localpuppet.node.preview import previewing
from localpuppet.node.preview.cache import BATCH_BYTES, MAX_ENTRIES, CacheFiller, request_of
from localpuppet.node.preview.compile_request import CompileRequest, CompileResult, RawReads
from localpuppet.node.preview.difference import ADDED, CHANGED, ForbiddenChange
from localpuppet.node.preview.previewing import PreviewOptions, ServedFiles, choose_shard
from localpuppet.node.preview.read_set import ReadSet
from localpuppet.node.preview.release_index import index_roots
from localpuppet.node.preview.result import BOTH, FIXED, NEW, SAME, UNREADABLE, ResealedGroup
from localpuppet.node.preview.wording import notices
from localpuppet.node.puppet.catalog import CatalogResource
from localpuppet.node.releases.release import Release
from tests.doubles.compile_engine import (
    FakeCompileEngine,
    ProgramError,
    RecordedRelease,
    resource,
    write_capture,
)
from tests.node.preview.rig import PreviewRig, captured, release_in, side, write_release

SITE = {
    "manifests/site.pp": "v1",
    "data/common.yaml": "motd: hello\nother: 1\n",
    "data/web.yaml": "port: 80\n",
    "modules/x/files/motd": "served\n",
}


def program(view: RecordedRelease) -> Iterator[CatalogResource]:
    """Yield the motd from the data and, for a web server, a service with its port."""
    text = view.read("manifests/site.pp")
    if text and "fail" in text and view.fact("role") == "web":
        raise ProgramError(f"the web is broken: {text}")
    yield resource("File", "/etc/motd", content=view.lookup("data/common.yaml", "motd"))
    yield resource("File", "/etc/served", source="puppet:///modules/x/motd")
    own = view.lookup(f"data/nodes/{view.request.node}.yaml", "own")
    if own is not None:
        yield resource("File", "/etc/own", content=own)
    if view.fact("role") == "web":
        yield resource("Service", "web", port=view.lookup("data/web.yaml", "port"))
    if view.fact("clock"):
        view.impure.add("Time.now")


@pytest.fixture
def rig(tmp_path: Path) -> PreviewRig:
    rig = PreviewRig(tmp_path, program)
    for number in range(4):
        role = "web" if number % 2 else "db"
        name = f"n{number}"
        facts: dict[str, Json] = {"role": role, "uptime": number, "hostname": name}
        write_capture(rig.nodes, f"{name}.example.com", facts)
    return rig


def releases(rig: PreviewRig, **changes: str | None) -> tuple[Path, Path]:
    """Return two releases; the second has changed, new (text) and missing (`None`) files."""
    base = write_release(rig.directory / "base", SITE)
    after = {**SITE, **{name.replace("__", "/"): text for name, text in changes.items()}}
    return base, write_release(
        rig.directory / "head", {name: text for name, text in after.items() if text is not None}
    )


def test_a_node_is_compiled_once_for_two_equal_releases(rig: PreviewRig) -> None:
    result = rig.preview(*releases(rig))
    assert (result.unaffected, result.statistics.compiled) == (4, 4)
    assert rig.preview(rig.directory / "base", rig.directory / "head").statistics.compiled == 0


def test_only_nodes_that_looked_up_a_changed_key_are_compiled_again(rig: PreviewRig) -> None:
    base, head = releases(rig, **{"data/web.yaml": "port: 8080\n"})
    rig.preview(base, base)
    result = rig.preview(base, head)
    assert rig.engine.compiled == ["n1.example.com", "n3.example.com"]
    (group,) = result.groups
    assert (group.nodes, group.roles) == (("n1.example.com", "n3.example.com"), ("web",))
    (change,) = group.difference.resources
    assert (change.reference, change.action) == ("Service[web]", CHANGED)
    assert [(item.before, item.after) for item in change.parameters] == [(80, 8080)]


def test_results_of_an_untrusted_revision_serve_it_alone(rig: PreviewRig) -> None:
    base, head = releases(rig, **{"data/web.yaml": "port: 8080\n"})
    rig.preview(base, base)
    webs = ["n1.example.com", "n3.example.com"]
    compiled = []
    for scope in ("a", "a", "b", "", "c"):
        rig.preview(base, head, scope=scope)
        compiled.append(rig.engine.compiled.copy())
    assert compiled == [webs, [], webs, webs, []], "trusted results serve every revision"


def test_untrusted_revisions_displace_no_trusted_result(rig: PreviewRig) -> None:
    base, head = releases(rig, **{"data/web.yaml": "port: 8080\n"})
    rig.preview(base, base)
    for number in range(MAX_ENTRIES + 1):
        rig.preview(base, head, scope=str(number))
        assert rig.engine.compiled == ["n1.example.com", "n3.example.com"]
    rig.preview(base, base)
    assert rig.engine.compiled == []
    rig.preview(base, head, scope="0")
    assert rig.engine.compiled != [], "the oldest of the untrusted ones is gone"


@pytest.mark.parametrize(
    ("file", "text", "compiled", "changed"),
    [
        pytest.param(
            "data/common.yaml",
            "motd: hello\nother: 2\nnew: 1\n",
            "",
            [],
            id="a key that no node read",
        ),
        pytest.param(
            "data/nodes/n2.example.com.yaml", "own: hi\n", "2", ["File[/etc/own]"], id="a new file"
        ),
        pytest.param(
            "enc.yaml", "parameters: {a: 1}\n", "", [], id="a parameter that no node read"
        ),
        pytest.param("enc.yaml", "classes: {ntp: {}}\n", "0123", [], id="a class of the release"),
    ],
)
def test_a_changed_file_compiles_the_nodes_that_read_it(
    rig: PreviewRig, file: str, text: str, compiled: str, changed: list[str]
) -> None:
    base, head = releases(rig, **{file: text})
    rig.preview(base, base)
    result = rig.preview(base, head)
    assert rig.engine.compiled == [f"n{number}.example.com" for number in compiled]
    resources = [change for group in result.groups for change in group.difference.resources]
    assert [change.reference for change in resources] == changed


def test_a_new_capture_compiles_only_nodes_that_read_a_changed_fact(rig: PreviewRig) -> None:
    base, _ = releases(rig)
    rig.preview(base, base)
    write_capture(rig.nodes, "n0.example.com", {"role": "db", "uptime": 99, "hostname": "n0"})
    write_capture(rig.nodes, "n2.example.com", {"role": "web", "uptime": 2, "hostname": "n2"})
    rig.preview(base, base)
    assert rig.engine.compiled == ["n2.example.com"]


def test_failures_are_named_by_side(rig: PreviewRig) -> None:
    base, head = releases(rig, **{"manifests/site.pp": "fail"})
    for sides, kind in (((base, head), NEW), ((head, base), FIXED), ((head, head), SAME)):
        result = rig.preview(*sides)
        assert [(item.node, item.kind) for item in result.failures] == [
            ("n1.example.com", kind),
            ("n3.example.com", kind),
        ]
        assert result.exit_code(detailed=False) == (0 if kind == FIXED else 1)
    tolerant = rig.preview(head, head, options=PreviewOptions(tolerates=True))
    assert tolerant.exit_code(detailed=False) == 0
    assert rig.engine.compiled == []  # the cache has failures, too


def test_a_node_that_compiles_with_the_change_only_shows_and_checks_its_whole_catalog(
    rig: PreviewRig,
) -> None:
    broken, changes = {"manifests/site.pp": "fail"}, {"data/web.yaml": "port: 22\n"}
    code = {"modules/x/lib/facter/role.rb": "", "modules/x/files/motd": "hostile\n"}
    base = write_release(rig.directory / "base", {**SITE, **broken})
    head = write_release(rig.directory / "head", {**SITE, **changes, **code})
    rules = ("added:Service[web]::port", "changed:File[/etc/served]", "removed:Service")
    options = PreviewOptions(forbidden=[ForbiddenChange.parse(text) for text in rules])
    result = rig.preview(base, head, options=options)
    webs = ("n1.example.com", "n3.example.com")
    groups = {group.nodes: group for group in result.groups}
    fixed = groups.pop(webs)
    assert fixed.fixed
    assert [one.fixed for one in groups.values()] == [False], "the others serve another motd"
    assert (fixed.roles, fixed.restarts, fixed.difference.classes_added) == (
        ("web",),
        (),
        ("main",),
    )
    assert [(one.action, one.reference) for one in fixed.difference.resources] == [
        (ADDED, "File[/etc/motd]"),
        (ADDED, "File[/etc/served]"),
        (ADDED, "Service[web]"),
    ]
    served, port = (one.parameters[0] for one in fixed.difference.resources[1:])
    assert (served.before, served.after, port.after) == ("served\n", "hostile\n", 22)
    assert [(item.rule, item.reference, item.nodes) for item in result.violations] == [
        (rules[0], "Service[web]", webs),
        (rules[1], "File[/etc/served]", tuple(sorted((*webs, "n0.example.com", "n2.example.com")))),
    ]
    assert [len(spot.nodes) for spot in result.blind_spots] == [4]
    assert (result.unaffected, result.changed, result.failing(FIXED)) == (0, 2, 2)
    assert result.exit_code(detailed=False) == 1
    assert rig.preview(base, head).exit_code(detailed=True) == 5


def test_different_errors_in_both_releases_are_not_a_failure_as_before(rig: PreviewRig) -> None:
    base, head = releases(rig, **{"manifests/site.pp": "fail otherwise"})
    first = write_release(rig.directory / "first", {**SITE, "manifests/site.pp": "fail"})
    options = PreviewOptions(tolerates=True)
    result = rig.preview(first, head, options=options)
    assert [item.kind for item in result.failures] == [BOTH, BOTH]
    assert result.exit_code(detailed=False) == 1
    assert base != head


def test_an_unreadable_capture_is_not_reported_as_a_failure_of_the_code(rig: PreviewRig) -> None:
    file = rig.nodes / "n2.example.com.json"
    whole = file.read_text()
    file.write_text("{")
    base, head = releases(rig, **{"data/web.yaml": "port: 8080\n"})
    for _ in range(2):  # the cache does not store it
        result = rig.preview(base, head)
        (failure,) = result.failures
        assert (failure.node, failure.kind) == ("n2.example.com", UNREADABLE)
        assert failure.message.startswith(f"{file}: is not JSON")
        assert (result.unaffected, result.changed) == (1, 2)
        assert result.exit_code(detailed=True) == 1
    file.write_text(whole)
    assert rig.preview(base, head).failures == ()


def test_an_invalid_node_document_fails_only_its_node(rig: PreviewRig) -> None:
    write_capture(rig.nodes, "n1.example.com", {"role": "web"}, layers=["missing"])
    result = rig.preview(*releases(rig))
    assert [(item.node, item.kind) for item in result.failures] == [("n1.example.com", SAME)]
    assert "no layer 'missing'" in result.failures[0].message


def test_an_impure_result_is_not_used_again(rig: PreviewRig) -> None:
    write_capture(rig.nodes, "n0.example.com", {"role": "db", "clock": True})
    base, _ = releases(rig)
    for _ in range(2):
        result = rig.preview(base, base)
        assert [(item.node, item.reasons) for item in result.impure] == [
            ("n0.example.com", ("Time.now",))
        ]
    assert rig.engine.compiled == ["n0.example.com", "n0.example.com"]


def test_contents_that_modules_serve_are_compared_as_files(rig: PreviewRig) -> None:
    base, head = releases(rig, **{"modules/x/files/motd": "changed\n"})
    result = rig.preview(base, head)
    (group,) = result.groups
    assert len(group.nodes) == 4
    (change,) = group.difference.resources
    assert change.reference == "File[/etc/served]"
    (content,) = change.parameters
    assert (content.name, content.text) == ("content of puppet:///modules/x/motd", None)
    assert (content.before, content.after) == ("served\n", "changed\n")


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("File", "puppet:/modules/x//motd"),
        ("File", "PUPPET:///modules/x/./motd?a"),
        ("Concat_fragment", "puppet:///modules/x/motd"),
    ],
)
def test_contents_are_compared_in_any_notation(tmp_path: Path, kind: str, source: str) -> None:
    rig = PreviewRig(tmp_path, lambda _view: iter([resource(kind, "a[b]", source=source)]))
    write_capture(rig.nodes, "n0.example.com", {})
    base, head = releases(rig, **{"modules/x/files/motd": "changed\n"})
    (group,) = rig.preview(base, head).groups
    assert [change.reference for change in group.difference.resources] == [f"{kind}[a[b]]"]


def test_a_served_link_that_leads_nowhere_is_shown_as_one(rig: PreviewRig) -> None:
    base, head = releases(rig, **{"modules/x/files/motd": None})
    (head / "modules/x/files").mkdir(parents=True)
    (head / "modules/x/files/motd").symlink_to("nothing")
    ((change,),) = [group.difference.resources for group in rig.preview(base, head).groups]
    assert change.parameters[0].after == "a link that leads nowhere"


def test_a_change_that_no_catalog_shows_is_a_blind_spot_of_its_nodes(rig: PreviewRig) -> None:
    base, head = releases(
        rig,
        **{
            "modules/x/lib/facter/role.rb": "",
            "modules/x/lib/puppet/provider/service/mine.rb": "",
            "modules/x/lib/puppet/type/unused.rb": "",
        },
    )
    spots = rig.preview(base, head).blind_spots
    assert [(spot.files, len(spot.nodes)) for spot in spots] == [
        (("modules/x/lib/facter/role.rb",), 4),
        (("modules/x/lib/puppet/provider/service/mine.rb",), 2),
    ]


def test_files_that_concern_the_same_nodes_for_one_reason_are_one_blind_spot(
    rig: PreviewRig,
) -> None:
    """A change of thousands of facts would else name each node thousands of times."""
    facts = [f"modules/x/lib/facter/{number}.rb" for number in range(5)]
    base, head = releases(rig, **dict.fromkeys([*facts, "modules/x/lib/other.rb"], ""))
    result = rig.preview(base, head)
    assert [(spot.files, len(spot.nodes)) for spot in result.blind_spots] == [
        (tuple(facts), 4),
        (("modules/x/lib/other.rb",), 4),
    ]
    assert [len(one["files"]) for one in result.to_dict()["blind_spots"]] == [5, 1]
    (notice,) = notices(result)
    assert [row.label for row in notice.rows] == [*facts, "modules/x/lib/other.rb"]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *(("lib/facter/a\nb.rb", 4), ("facts.d/a\nb", 4)),
        *(("lib/puppet/provider/service/a\nb.rb", 2), ("lib/puppet/type/service/a\nb.rb", 2)),
        # The module has a type that the nodes with a service use.
        *(("lib/other.rb", 2), ("lib/other/a\nb", 2), ("lib/puppet/feature/x.rb", 2)),
        *(("lib/other/lib/deep.rb", 2), ("lib/other/functions/x.rb", 2)),
        *(("lib/puppet/provider/service/lib/puppet/provider/unused/x.rb", 2), ("templates/x", 0)),
        *(("lib/puppet/functions/x.rb", 0), ("lib/puppet/parser/functions/x.rb", 0)),
    ],
)
def test_any_code_that_a_node_may_load_is_a_blind_spot(
    rig: PreviewRig, name: str, count: int
) -> None:
    own = {"modules/x/lib/puppet/type/service.rb": ""}
    base = write_release(rig.directory / "base", {**SITE, **own})
    head = write_release(rig.directory / "head", {**SITE, **own, f"modules/x/{name}": "changed"})
    spots = rig.preview(base, head).blind_spots
    assert [(spot.files, len(spot.nodes)) for spot in spots] == (
        [((f"modules/x/{name}",), count)] if count else []
    )


@pytest.mark.parametrize(
    "use",
    [
        "require 'puppet_x/shared/client'",
        'require File.expand_path("../../../../../shared/lib/puppet_x/shared/client.rb", __FILE__)',
        "require_relative '../../../../../shared/lib/puppet_x/shared/client'",
        "require 'puppet_x/between'",
    ],
)
def test_code_that_another_module_loads_is_a_blind_spot_of_that_module(
    rig: PreviewRig, use: str
) -> None:
    own = {
        "modules/shared/lib/puppet_x/shared/client.rb": "",
        "modules/shared/lib/puppet_x/shared/other.rb": "",
        "modules/between/lib/puppet_x/between.rb": "require 'puppet_x/shared/client'",
        "modules/x/lib/puppet/provider/service/mine.rb": use,
    }
    base = write_release(rig.directory / "base", {**SITE, **own})
    changed = dict.fromkeys([*own][:2], "changed")
    head = write_release(rig.directory / "head", {**SITE, **own, **changed})
    (spot,) = rig.preview(base, head).blind_spots
    webs = ("n1.example.com", "n3.example.com")
    assert (spot.files, spot.nodes) == (("modules/shared/lib/puppet_x/shared/client.rb",), webs)


def test_code_with_too_many_users_concerns_all_nodes(
    rig: PreviewRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(previewing, "MAX_USES", 2)
    names = [f"modules/x/lib/puppet_x/{number}.rb" for number in range(3)]
    own = dict.fromkeys(names, "".join(f"require 'puppet_x/{number}'\n" for number in range(3)))
    base = write_release(rig.directory / "base", {**SITE, **own})
    head = write_release(rig.directory / "head", {**SITE, **own, names[0]: "changed"})
    (spot,) = rig.preview(base, head).blind_spots
    assert (spot.files, len(spot.nodes)) == ((names[0],), 4)


def test_a_provider_that_others_inherit_is_a_blind_spot_of_their_types(rig: PreviewRig) -> None:
    parent = "modules/ini/lib/puppet/provider/ini_setting/ruby.rb"
    child = "modules/x/lib/puppet/provider/service/ini.rb"
    own = {child: "provide(:ini, :parent => Puppet::Type.type(:ini_setting).provider(:ruby)) {}"}
    base = write_release(rig.directory / "base", {**SITE, **own, parent: ""})
    head = write_release(rig.directory / "head", {**SITE, **own, parent: "changed"})
    (spot,) = rig.preview(base, head).blind_spots
    assert (spot.files, len(spot.nodes)) == ((parent,), 2)


@pytest.mark.parametrize(
    ("name", "is_shown"),
    [
        *(("lib/puppet/functions/x.rb", True), ("functions/x.pp", True)),
        *(("templates/x.epp", True), ("files/x", True), ("manifests/x.pp", False)),
    ],
)
def test_what_a_deferred_call_may_use_is_a_blind_spot_of_nodes_with_one(
    tmp_path: Path, name: str, *, is_shown: bool
) -> None:
    def deferring(view: RecordedRelease) -> Iterator[CatalogResource]:
        yield from program(view)
        if view.fact("role") == "web":
            yield resource("File", "/x", content=[{"a": {"__ptype": "Deferred", "mark": "0" * 32}}])

    rig = PreviewRig(tmp_path, deferring)
    for role in ("web", "db"):
        write_capture(rig.nodes, f"{role}.example.com", {"role": role, "hostname": role})
    base, head = releases(rig, **{f"modules/x/{name}": "changed"})
    for _ in range(2):  # compiled, and from the cache
        spots = rig.preview(base, head).blind_spots
        assert [spot.nodes for spot in spots] == [("web.example.com",)] * is_shown


@pytest.mark.parametrize("name", ["@localpuppet/x", "@site/site.pp", "@layout"])
def test_a_revision_with_a_name_that_reads_have_is_refused(rig: PreviewRig, name: str) -> None:
    base, head = releases(rig, **{name: "changed"})
    with pytest.raises(InvalidInputError, match="is a name that previews use") as raised:
        rig.preview(base, head)
    assert raised.value.where == name.partition("/")[0]


def test_a_release_chooses_no_name_of_a_tree_in_the_store(tmp_path: Path) -> None:
    """The states of trees in the store are remembered by their names, for all releases."""
    own, digest = tmp_path / "objects" / ("a" * 64), "b" * 64
    release = release_in(write_release(own, {f"objects/{digest}/x": "", "manifest.yaml": ""}))
    stored = write_release(tmp_path / "objects" / digest, {"x": ""})
    trees = {"objects/b": own / "objects" / digest, "modules/b": stored}
    roots = index_roots(replace(release, trees={**release.trees, **trees}), tmp_path / "none")
    assert {root.prefix: root.digest for root in roots} == {
        "": "",
        "objects/b": "",
        "modules/b": digest,
    }


def test_shards_are_parts_of_all_nodes() -> None:
    nodes = {f"n{number}" for number in range(100)}
    parts = [choose_shard(nodes, number, 3) for number in (1, 2, 3)]
    assert set.union(*parts) == nodes
    assert sum(map(len, parts)) == 100
    assert all(parts)


def test_served_texts_have_a_limit_in_total(rig: PreviewRig) -> None:
    sides = []
    for name in ("base", "head"):
        files = {f"modules/x/files/{number}": f"{name} {number}" * 100 for number in range(20)}
        sides.append(side(write_release(rig.directory / name, files), rig.cache()))
    served = ServedFiles(sides[0], sides[1], left=10_000)
    texts = [
        text
        for change in served._changes.values()
        for text in (change.before, change.after)
        if isinstance(text, str)
    ]
    assert len(texts) == 40
    assert sum(not text.startswith("{sha256}") for text in texts) == 15


def test_large_results_are_stored_before_others_arrive(rig: PreviewRig) -> None:
    """A result has at most 64 MiB, and 32 of them would be in memory at a time."""
    base, _ = releases(rig)
    alive: list[int] = []

    class LargeResults(FakeCompileEngine):
        def compile(
            self, release: Release, requests: Iterable[CompileRequest]
        ) -> Iterator[CompileResult]:
            for result in super().compile(release, requests):
                alive.append(1)
                yield replace(result, size=BATCH_BYTES)

    filler = CacheFiller(cache=rig.cache(), engine=LargeResults(program))
    for _ in filler.compile(side(base, rig.cache()), captured(rig.nodes)):
        assert len(alive) == 1
        alive.clear()


def test_no_number_of_paths_makes_a_read_set_large(rig: PreviewRig) -> None:
    """Code of a release may claim to have read all facts very often."""
    base, _ = releases(rig)
    (node,) = captured(rig.nodes)[:1]
    asked = replace(
        request_of(node.load(), release_in(base).enc), facts={"a": "x" * 1_000_000, "b": {"c": 1}}
    )
    index = side(base, rig.cache()).index
    paths = tuple(("a", str(number)) for number in range(50_000))
    made = ReadSet.of(RawReads(facts=(*paths, (), ("b", "c"))), asked, index)
    assert isinstance(made, ReadSet)
    other = replace(asked, facts={**asked.facts, "b": {"c": 2}})
    assert made.node.values(other) != made.values == made.node.values(asked)


def test_values_that_were_only_sealed_again_are_one_line_a_group(rig: PreviewRig) -> None:
    form = 'schema: 1\ngroup: "{}"\nserial: {}\nnumber: {}\ntype: string\nage: {}\n'
    before = {
        "a": form.format("role=db", 1, 7, "YWdl"),
        "b": form.format("role=db", 1, 7, "YWdl"),
        "c": form.format("role=web", 1, 7, "YWdl"),
        "d": form.format("role=web", 1, 7, "YWdl"),
    }
    after = {
        "a": form.format("role=db", 2, 7, "YWdlMQ"),
        "b": form.format("role=db", 2, 7, "YWdlMQ"),
        "c": form.format("role=web", 2, 8, "YWdlMQ"),
        "e": form.format("role=web", 1, 1, "YWdl"),
    }
    sides = [
        {f"sealed/values/common/{key}.yaml": text for key, text in side.items()}
        for side in (before, after)
    ]
    base = write_release(rig.directory / "base", {**SITE, **sides[0]})
    head = write_release(rig.directory / "head", {**SITE, **sides[1]})
    assert rig.preview(base, head).resealed == (ResealedGroup(group="role=db", values=2),)
