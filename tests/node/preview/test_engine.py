"""The engine with the real Puppet: catalogs, failures, and the isolation of compiles."""

from pathlib import Path

import pytest

from localpuppet.base.formats.values import Json
from localpuppet.node.preview.ports import CapturedQuery, CompileResult
from tests.node.preview.engine_rig import compile_all, make_engine, request, write

pytestmark = pytest.mark.puppet


def parameter(result: CompileResult, reference: tuple[str, str], name: str) -> object:
    assert result.catalog is not None, result.failure
    resources = {item.reference: item for item in result.catalog.resources}
    return resources[reference].parameters.get(name)


def test_each_node_gets_its_catalog(tmp_path: Path) -> None:
    release = write(
        tmp_path / "r",
        {
            "site.pp": "node 'web1.example.com' { include web } node default { }",
            "modules/web/manifests/init.pp": "class web { notify { $facts['os']['family']: } }",
        },
    )
    results = compile_all(make_engine(tmp_path / "e"), release, [request(), request("db1")])
    first, second = results["web1.example.com"], results["db1"]
    assert parameter(first, ("Notify", "Debian"), "message") is None
    assert second.catalog is not None
    assert "web" not in second.catalog.classes
    (notify,) = [item for item in first.catalog.resources if item.type == "Notify"]  # type: ignore[union-attr]
    assert (notify.file, notify.line) == ("modules/web/manifests/init.pp", 1)


def test_a_failure_names_its_place_and_does_not_affect_other_nodes(tmp_path: Path) -> None:
    release = write(
        tmp_path / "r",
        {
            "site.pp": "node 'odd' { include bad } node default { }",
            "modules/bad/manifests/init.pp": "class bad {\n  fail('too bad')\n}",
        },
    )
    results = compile_all(make_engine(tmp_path / "e"), release, [request("odd"), request("good")])
    failure = results["odd"].failure
    assert failure is not None
    assert "too bad" in failure.message
    assert (failure.file, failure.line) == ("modules/bad/manifests/init.pp", 2)
    assert results["good"].failure is None


def test_a_class_that_another_node_loaded_stays_unknown(tmp_path: Path) -> None:
    release = write(
        tmp_path / "r",
        {
            "site.pp": "node 'a' { include m } node 'b' { include m::hidden }",
            "modules/m/manifests/init.pp": "class m { include m::hidden } class m::hidden { }",
        },
    )
    both = compile_all(make_engine(tmp_path / "e"), release, [request("a"), request("b")])
    alone = compile_all(make_engine(tmp_path / "e"), release, [request("b")])
    assert both["a"].failure is None
    assert both["b"] == alone["b"]


def test_ruby_code_of_one_node_does_not_affect_another(tmp_path: Path) -> None:
    helper = "module PuppetX; SECRET = 'x'; end\nclass String; def blank?; true; end; end\n"
    uses = "Puppet::Functions.create_function(:'m::uses') { def uses; PuppetX::SECRET; end }\n"
    loads = (
        "require_relative '../../../puppet_x/helper'\n"
        "Puppet::Functions.create_function(:'m::loads') { def loads; PuppetX::SECRET; end }\n"
    )
    release = write(
        tmp_path / "r",
        {
            "site.pp": "node 'a' { notify { m::loads(): } } node 'b' { notify { m::uses(): } }",
            "modules/m/lib/puppet_x/helper.rb": helper,
            "modules/m/lib/puppet/functions/m/uses.rb": uses,
            "modules/m/lib/puppet/functions/m/loads.rb": loads,
        },
    )
    results = compile_all(make_engine(tmp_path / "e"), release, [request("a"), request("b")])
    assert results["a"].failure is None
    assert results["b"].failure is not None
    assert "SECRET" in results["b"].failure.message
    assert "modules/m/lib/puppet_x/helper.rb" in results["a"].reads.files


def test_queries_get_the_answers_of_the_capture(tmp_path: Path) -> None:
    release = write(
        tmp_path / "r",
        {"site.pp": "$n = localpuppet::query_nodes('a=b', 'fqdn') notify { join($n, ' '): }"},
    )
    query = CapturedQuery(function="query_nodes", arguments=("a=b", "fqdn"), answer=["one", "two"])
    asked = request("a", queries=(query,))
    results = compile_all(make_engine(tmp_path / "e"), release, [asked, request("b")])
    assert results["a"].failure is None
    assert results["a"].reads.queries == (query,)
    assert parameter(results["a"], ("Notify", "one two"), "message") is None
    failure = results["b"].failure
    assert failure is not None
    assert "query_nodes" in failure.message
    assert "no answer to this query" in failure.message
    assert results["b"].reads.impure != ()


def test_a_collector_and_a_lease_get_the_answers_of_the_capture(tmp_path: Path) -> None:
    code = "@@notify { 'own': tag => 'web' } Notify <<| tag == 'web' |>> notify { leader('db'): }"
    release = write(tmp_path / "r", {"site.pp": code})
    taken: dict[str, Json] = {"node": "b", "how": "as-is", "title": "other"}
    collected = CapturedQuery(
        function="collect",
        arguments=("Notify", ["tag", "==", "web"]),
        answer=[{**taken, "file": "f.pp", "line": 3, "parameters": {"message": "of b"}}],
    )
    lease = CapturedQuery(function="leader", arguments=("db", 60), answer="db1.example.com")
    requests = [request("a", queries=(collected, lease)), request("b", queries=(lease,))]
    results = compile_all(make_engine(tmp_path / "e"), release, requests)
    assert parameter(results["a"], ("Notify", "other"), "message") == "of b"
    assert parameter(results["a"], ("Notify", "db1.example.com"), "message") is None
    assert {query.function for query in results["a"].reads.queries} == {"collect", "leader"}
    assert results["a"].reads.impure == ()
    alone = results["b"].catalog
    assert alone is not None
    assert [item.title for item in alone.resources if item.type == "Notify"] == [
        "db1.example.com",
        "own",
    ]
    assert [item.exported for item in alone.resources if item.title == "own"] == [True]


def test_a_collector_without_an_answer_collects_no_resource(tmp_path: Path) -> None:
    release = write(tmp_path / "r", {"site.pp": "@@notify { 'out': } Notify <<| |>>"})
    (result,) = compile_all(make_engine(tmp_path / "e"), release, [request()]).values()
    assert result.catalog is not None
    (notify,) = [item for item in result.catalog.resources if item.type == "Notify"]
    assert notify.exported
