"""The engine with the real Puppet: catalogs, failures, and the isolation of compiles."""

from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.formats.values import Json
from localpuppet.node.preview.compile_request import CapturedQuery, CompileResult
from localpuppet.node.preview.difference import difference
from tests.node.preview.rig import compile_all, make_engine, request, write

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


# What Ruby code asks Facter → the answer. The machine of the tests is no Rocky.
ASKED = {
    "Facter.value(:os)['family']": "RedHat",
    "Facter.value('OS.release.major')": "9",
    "Facter.value(:osfamily)": "RedHat",
    "Facter.value('operatingsystemmajrelease')": "9",
    "Facter.fact('osfamily').value": "RedHat",
    "Facter[:os].value['name']": "Rocky",
    "Facter.core_value('os.name')": "Rocky",
    "Facter.value('processors.models.1')": "B",
    "Facter.value(:processor1)": "B",
    "Facter.value(:ipaddress_eth0_1)": "192.0.2.7",
    "Facter.value(:memorysize_mb)": 1.5,
    "Facter.to_hash['os']['name']": "Rocky",
    "Facter.list": ["clientcert", "clientnoop", "clientversion", "memory", "networking"],
    "Facter.each { |name, value| (@all ||= {})[name] = value } && @all['os']['name']": "Rocky",
    "Facter.resolve('os')['os']['name']": "Rocky",
    "Puppet.runtime[:facter].value(:osfamily)": "RedHat",
    "Puppet::Node::Facts.indirection.find('x').values['os']['name']": "Rocky",
    "Puppet[:certname]": "n17",
    "Facter.value(:kernel)": None,
    "Facter[:kernel]": None,
    "Facter.value('os.nothing.x')": None,
    "Facter.add(:mine) { setcode { 'machine' } }; Facter.value(:mine)": None,
    "Facter.define_fact(:mine) { add { setcode { 'machine' } } }.value": None,
    "Facter.add(:osfamily) { setcode { 'x' } }; Facter.value(:osfamily)": "RedHat",
    "Facter::Core::Execution.execute('echo x', on_fail: 'failed')": "failed",
    "Facter::Core::Execution.execute('echo x') rescue $!.class.name": (
        "Facter::Core::Execution::ExecutionFailure"
    ),
    "Facter::Core::Execution.exec('echo x')": None,
    "Facter::Core::Execution.execute_command('echo x')": None,
    "Facter::Core::Execution.which('sh')": None,
    "Facter::Util::Resolution.exec('echo x')": None,
    "Facter.value(:os)['name'].upcase!; closure_scope['facts']['os']['name']": "Rocky",
    "Facter.to_user_output({}, 'os.name')": ["Rocky", 0],
    "Facter.to_user_output({}, 'kernel')": ["", 0],
    "Facter.to_user_output({}).first.include?('Rocky')": True,
    "Facter::FactManager.instance.resolve_facts(['os.name', 'kernel']).map(&:value)": [
        "Rocky",
        None,
    ],
    "Facter::FactManager.instance.resolve_fact('os.name').first.value": "Rocky",
    "Facter::FactManager.instance.resolve_core(['os.name']).first.value": "Rocky",
    "Facter::Resolvers::Uname.resolve(:kernelrelease)": None,
}
ROCKY: dict[str, Json] = {
    "os": {"family": "RedHat", "name": "Rocky", "release": {"full": "9.3", "major": "9"}},
    "processors": {"models": ["A", "B"]},
    "networking": {"interfaces": {"eth0.1": {"ip": "192.0.2.7"}}},
    "memory": {"system": {"total_bytes": 1_572_864}},
}


def test_ruby_code_that_asks_facter_sees_the_facts_of_the_capture(tmp_path: Path) -> None:
    release = write(
        tmp_path / "r",
        {
            "site.pp": "\n".join(
                f"node 'n{number}' {{ notify {{ 'x': message => m::f{number}() }} }}"
                for number in range(len(ASKED))
            ),
            **{
                f"modules/m/lib/puppet/functions/m/f{number}.rb": (
                    f"Puppet::Functions.create_function(:'m::f{number}') do\n  def f{number}\n"
                    f"    {code}\n  end\nend\n"
                )
                for number, code in enumerate(ASKED)
            },
        },
    )
    engine = make_engine(tmp_path / "e", processes=2)
    requests = [request(f"n{number}", facts=ROCKY) for number in range(len(ASKED))]
    results = compile_all(engine, release, requests)
    for number, (code, expected) in enumerate(ASKED.items()):
        result = results[f"n{number}"]
        answer = parameter(result, ("Notify", "x"), "message")
        assert (answer[:5] if isinstance(answer, list) else answer) == expected, code
        # Output for users depends on Facter's configuration on this machine, too.
        assert bool(result.reads.impure) == ("to_user_output" in code), code
    assert ("os", "release", "major") in results["n1"].reads.facts
    assert {("osfamily",), ("os", "family")} <= {*results["n2"].reads.facts}
    assert () in results["n11"].reads.facts


def test_types_and_providers_load_with_the_facts_of_the_capture(tmp_path: Path) -> None:
    system = "Facter.value(:os)['name'].downcase + Facter.value('os.release.major')"
    release = write(
        tmp_path / "r",
        {
            "site.pp": "thing { 'a': source => 'x' } package { 'p': }",
            "modules/m/lib/puppet/type/thing.rb": "Puppet::Type.newtype(:thing) do\n"
            f"  newparam(:name)\n  newparam(:source)\n  newparam(({system}).to_sym)\nend\n",
            "modules/m/lib/puppet/provider/package/own.rb": (
                f"Puppet::Type.type(:package).provide(:own) {{ NAME = {system} }}\n"
            ),
        },
    )
    requests = [request("a", facts=ROCKY), request("b", facts={"networking": {}, "virtual": "x"})]
    results = compile_all(make_engine(tmp_path / "e"), release, requests)
    assert results["a"].catalog is not None, results["a"].failure
    assert {("os",), ("os.release.major",)} <= {*results["a"].reads.facts}
    assert results["a"].reads.impure == ()
    failure = results["b"].failure
    assert failure is not None
    assert failure.message.endswith(
        "(the capture lacks what code asked Facter for: os; capture the node again if it has it)"
    )


# Two values of a resource that look alike in a form that is not exact.
ALIKE = {
    "a key that marks a secret": (
        "{ '__ptype' => 'Sensitive', 'a' => 'x' }",
        "{ '__ptype' => 'Sensitive', 'a' => 'y' }",
    ),
    "a key beside a type": (
        "{ '__ptype' => 'X', 'mark' => 'x' }",
        "{ '__ptype' => 'X', 'mark' => 'y' }",
    ),
    "two keys with one text": ("{ 1 => 'x', '1' => 'z' }", "{ 1 => 'y', '1' => 'z' }"),
    "bytes that are no text": ("file('m/x')", "file('m/y')"),
    "a secret of such bytes": ("Sensitive(file('m/x'))", "Sensitive(file('m/y'))"),
}


def test_two_values_in_a_catalog_are_never_alike(tmp_path: Path) -> None:
    catalogs = []
    for side in (0, 1):
        nodes = [
            f"node 'n{number}' {{ notify {{ 'a': message => {pair[side]} }} }}"
            for number, pair in enumerate(ALIKE.values())
        ]
        release = write(tmp_path / str(side), {"site.pp": "\n".join(nodes)})
        files = release.directory / "modules/m/files"
        files.mkdir(parents=True)
        for name, data in (("x", b"a\xff"), ("y", b"a\xfe")):
            (files / name).write_bytes(data)
        release = replace(release, modulepath=(release.directory / "modules",))
        engine = replace(make_engine(tmp_path / "e"), mark_key="0" * 64)
        results = compile_all(engine, release, [request(f"n{n}") for n in range(len(ALIKE))])
        catalogs.append([results[f"n{number}"].catalog for number in range(len(ALIKE))])
    for case, before, after in zip(ALIKE, *catalogs, strict=True):
        assert before is not None
        assert after is not None
        (change,) = difference(before, after).resources
        (parameter,) = change.parameters
        assert (
            parameter.to_dict()["before"] != parameter.to_dict()["after"]
            or case == "a secret of such bytes"
        )
