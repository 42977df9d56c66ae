"""The reads that the engine records: facts, variables, files, and impure functions."""

from pathlib import Path

import pytest

from localpuppet.node.preview.compile_request import ALL, CompileResult, RawReads
from localpuppet.node.preview.release_index import MODULE
from tests.node.preview.rig import FILES, compile_all, make_engine, request, write

pytestmark = pytest.mark.puppet

# Code of a node → paths of the facts that it reads.
FACTS = {
    "$facts['os']['family']": {("os", "family")},
    "$facts[os]": {("os",)},
    "\"x ${facts['os']['name']}\"": {("os", "name")},
    "$facts.dig('os', 'release', 'major')": {("os", "release", "major")},
    "$facts.get('os.family')": {("os", "family")},
    "$facts['os'][$facts['uptime']]": {("os",), ("uptime",)},
    "$facts['absent']": {("absent",)},
    "$facts": {()},
    "$facts.map |$k, $v| { $k }": {()},
    "getvar('facts.os')": {()},
    "$facts[downcase('OS')]": {()},
    'inline_template(\'<%= @facts["os"]["family"] %>\')': {("os", "family")},
    "inline_template('<%= @facts %>')": {()},
    "inline_template(\"<%= scope['facts']['os']['family'] %>\")": {()},
    "inline_template('<%= binding.local_variables %>')": {()},
    "m::ruby()": {()},
    "1": set(),
}
VARIABLES = {
    "$::osfamily": {"osfamily"},
    "$osfamily": {"osfamily"},
    "inline_template('<%= @osfamily %>')": {"osfamily"},
    "getvar('::uptime')": {"uptime"},
    "inline_template('<%= scope.to_hash.keys.sort.first %>')": {ALL},
    "inline_template('<%= scope.lookupvar(\"osfamily\") %>')": {"osfamily"},
    "defined('$osfamily')": {"osfamily"},
    "m::variable()": {"osfamily"},
}
IMPURE = {
    "inline_template('<%= Time.now %>')": "the time",
    "m::now()": "the time",
    "Timestamp()": "the time",
    "m::random()": "a random number",
    "inline_template('<%= [1, 2].shuffle %>')": "a random number",
    "generate('/bin/echo', 'x')": "a program",
    "inline_template('<%= `echo x` %>')": "a program",
    "m::environment()": "the environment",
    "file('/etc/hostname', '/dev/null')": "/etc/hostname",
    "inline_template('<%= Socket.gethostname %>')": "the machine",
    "fqdn_rand(10)": "",
    "strftime('%Y')": "the time",
}


def _ruby(name: str, body: str) -> tuple[str, str]:
    code = f"Puppet::Functions.create_function(:'m::{name}') do\n  def {name}; {body}; end\nend\n"
    return f"modules/m/lib/puppet/functions/m/{name}.rb", code


RUBY = dict(
    [
        _ruby("ruby", "closure_scope['facts']['os'].to_s"),
        _ruby("variable", "closure_scope.lookupvar('::osfamily')"),
        _ruby("now", "Time.now.to_s"),
        _ruby("random", "rand(100).to_s"),
        _ruby("environment", "ENV['PATH'].to_s"),
    ]
)


def compile_codes(tmp_path: Path, codes: list[str]) -> list[CompileResult]:
    nodes = [f"node 'n{i}' {{ notice({code}) }}" for i, code in enumerate(codes)]
    release = write(tmp_path / "r", {"site.pp": "\n".join(nodes), **RUBY})
    engine = make_engine(tmp_path / "e")
    results = compile_all(engine, release, [request(f"n{i}") for i in range(len(codes))])
    return [results[f"n{i}"] for i in range(len(codes))]


def test_the_paths_of_used_facts_are_recorded(tmp_path: Path) -> None:
    results = compile_codes(tmp_path, [*FACTS])
    for (code, paths), result in zip(FACTS.items(), results, strict=True):
        assert result.failure is None or "undef" in code, (code, result.failure)
        assert set(result.reads.facts) == paths, code
        assert result.reads.impure == (), code


def test_used_top_scope_variables_are_recorded(tmp_path: Path) -> None:
    results = compile_codes(tmp_path, [*VARIABLES])
    for (code, names), result in zip(VARIABLES.items(), results, strict=True):
        assert result.failure is None, (code, result.failure)
        assert names <= set(result.reads.parameters), code


def test_impure_functions_are_recorded_with_a_reason(tmp_path: Path) -> None:
    results = compile_codes(tmp_path, [*IMPURE])
    for (code, reason), result in zip(IMPURE.items(), results, strict=True):
        assert bool(result.reads.impure) == bool(reason), (code, result)
        assert reason in " ".join(result.reads.impure), code


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> RawReads:
    """The reads of the first node of a process."""
    path = tmp_path_factory.mktemp("cold")
    release = write(path / "r", FILES)
    (result,) = compile_all(make_engine(path / "e"), release, [request("web1", "web")]).values()
    assert result.failure is None
    return result.reads


def test_keys_of_data_files_are_recorded_one_by_one(cold: RawReads) -> None:
    assert set(cold.keys["data/common.yaml"]) >= {"web::port", "web::place", "lookup_options"}
    assert "unused" not in cold.keys["data/common.yaml"]
    assert "from_json" in cold.keys["data/common.json"]
    assert {"data/own.txt", "hiera.yaml", "site.pp"} <= set(cold.files)
    assert "data/common.yaml" not in cold.files
    assert "data/extra" in cold.listed


def test_read_code_and_absent_files_are_recorded(cold: RawReads) -> None:
    module = {name for name in FILES if name.startswith("modules/web/")}
    assert module <= set(cold.files)
    assert {"modules/web/manifests/optional.pp", "data/nodes"} <= set(cold.absent)
    assert cold.impure == ()


@pytest.mark.parametrize("processes", [1, 2])
def test_the_order_of_nodes_and_the_number_of_processes_change_no_reads(
    tmp_path: Path, processes: int, cold: RawReads
) -> None:
    release = write(tmp_path / "r", FILES)
    engine = make_engine(tmp_path / "e", processes=processes)
    names = ["other", "web3", "web1", "another", "web2"]
    requests = [request(name, *(["web"] if "web" in name else [])) for name in names]
    results = compile_all(engine, release, requests)
    assert [result.failure for result in results.values()] == [None] * 5
    reads = [results[name].reads for name in ("web1", "web2", "web3")]
    for each in reads:
        assert each == cold
    assert results["other"].reads == results["another"].reads
    catalogs = [results[name].catalog for name in ("web1", "web2")]
    assert catalogs[0] is not None
    assert catalogs[1] is not None
    assert catalogs[0].resources == catalogs[1].resources


def test_metadata_of_modules_count_as_a_whole_only_for_code_that_reads_them(tmp_path: Path) -> None:
    metadata = '{"name": "x-m", "version": "1.0.0", "author": "x", "license": "x", "source": "x",'
    metadata += ' "dependencies": []}'
    module = "closure_scope.environment.module('m')"
    functions = [
        _ruby("version", f"{module}.version"),
        _ruby("unmet", f"{module}.unmet_dependencies.length"),
        _ruby("requirements", "closure_scope.environment.module_requirements.length"),
    ]
    codes = ["include m", "notice(m::version())", "notice(m::unmet())", "notice(m::requirements())"]
    files = {
        "site.pp": "\n".join(f"node 'n{i}' {{ {code} }}" for i, code in enumerate(codes)),
        "modules/m/manifests/init.pp": "class m { }",
        "modules/m/metadata.json": metadata,
        "modules/n/manifests/init.pp": "class n { }",
        **dict(functions),
    }
    release = write(tmp_path / "r", files)
    nodes = [request(f"n{i}") for i in range(len(codes))]
    results = compile_all(make_engine(tmp_path / "e"), release, nodes)
    assert [result.failure for result in results.values()] == [None] * len(codes)
    own, other = "modules/m/metadata.json", "modules/n/metadata.json"
    whole = {"n0": (False, False), "n1": (True, False), "n2": (True, True), "n3": (True, True)}
    for node, expected in whole.items():
        reads = results[node].reads
        assert (reads.keys[own], reads.keys[other]) == ((MODULE,), (MODULE,))
        assert (own in reads.files, other in reads.absent) == expected, node


def test_data_of_another_format_than_its_ending_says_counts_as_a_whole(tmp_path: Path) -> None:
    files = {
        "hiera.yaml": (
            "version: 5\n"
            "hierarchy:\n"
            "  - {name: a, datadir: data, path: a.json, data_hash: yaml_data}\n"
            "  - {name: b, datadir: data, path: b.yaml, data_hash: json_data}\n"
            "  - {name: c, datadir: '@localpuppet-data', path: c.yaml, data_hash: yaml_data}\n"
        ),
        "@localpuppet-data/c.yaml": "c: from c\n",
        "data/a.json": '{"a": "from a"} # YAML\n',
        "data/b.yaml": '{"b": "from b"}\n',
        "site.pp": "notice(lookup('a'), lookup('b'), lookup('c'))\n",
    }
    release = write(tmp_path / "r", files)
    result = compile_all(make_engine(tmp_path / "e"), release, [request()])["web1.example.com"]
    assert result.failure is None
    assert {"data/a.json", "data/b.yaml"} <= {*result.reads.files}
    assert {*result.reads.keys} == {"@localpuppet-data/c.yaml"}, "it belongs to the release"
