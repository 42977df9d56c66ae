"""Ruby code of a release that reads files, time and the machine in unusual ways."""

from pathlib import Path

import pytest

from localpuppet.node.preview.compile_request import CompileRequest, CompileResult, RawReads
from localpuppet.node.preview.read_set import ReadSet
from localpuppet.node.preview.release_index import ReleaseIndex
from tests.node.preview.rig import compile_all, make_engine, request, write

pytestmark = pytest.mark.puppet

_FILES = {"d.txt": "one\n", "d.rb": "'one'", "conf": "a = 1\n", ".hidden/x1": "", "sub/x1": ""}
_TOP = "TOP = File.expand_path('../../../../files', __dir__)"
# Body of a function → the file or directory that it reads.
CONTENTS = {
    "f = File.new('/dev/null'); f.reopen(\"#{TOP}/d.txt\"); f.read": "d.txt",
    'RubyVM::InstructionSequence.compile_file("#{TOP}/d.rb").eval': "d.rb",
    "$LOAD_PATH.unshift(TOP); load 'd.rb'; 'x'": "d.rb",
    "o = Object.new; o.define_singleton_method(:to_str) { TOP + '/d.txt' }; File.read(o)": "d.txt",
    "OpenSSL::Config.load(\"#{TOP}/conf\")['default'].to_s": "conf",
    "Zlib::GzipReader.open(\"#{TOP}/d.txt\") rescue 'x'": "d.txt",
    'Dir.glob("#{TOP}/*/x*", File::FNM_DOTMATCH).join': ".hidden",
    'Dir.glob("#{TOP}/S*/x*", File::FNM_CASEFOLD).join': "sub",
}
# Body of a function → the reason why its catalog is never stored.
IMPURE = {
    'File.stat("#{TOP}/d.txt").size.to_s': "times, mode or size",
    'File::Stat.new("#{TOP}/d.txt").mtime.to_s': "times, mode or size",
    'File.open("#{TOP}/d.txt") { |f| f.mtime.to_s }': "times, mode or size",
    'test(?M, "#{TOP}/d.txt").to_s': "times, mode or size",
    'File.executable?("#{TOP}/d.txt").to_s': "times, mode or size",
    'File.symlink?("#{TOP}/d.txt").to_s': "times, mode or size",
    'ARGV.replace(["#{TOP}/d.txt"]); ARGF.read': "ARGF",
    "OpenSSL::Random.random_bytes(4).unpack1('H*')": "a random number",
    "OpenSSL::Cipher.new('aes-128-cbc').encrypt.random_iv.unpack1('H*')": "a random number",
    "OpenSSL::PKey::RSA.new(1024).to_pem": "a random number",
    "Date.parse('Mon').to_s": "the time",
    "DateTime.strptime('12:00', '%H:%M').to_s": "the time",
    "IPSocket.getaddress('localhost')": "the machine",
    "ENV.each_value.to_a.size.to_s": "the environment",
    "ENV['TZ'].to_s": "the environment",
    "ENV.fetch('HOME').to_s": "the environment",
    "require 'pty'; 'x'": "loads pty",
    "(File.read(\"#{Puppet[:confdir]}/keys/private.pem\") rescue 'x')": "private.pem",
}
PURE = [
    "Date.parse('2020-01-01').to_s",
    'File.read("#{TOP}/d.txt").size.to_s',
    "ENV['STDLIB_LOG_DEPRECATIONS'].to_s",
    "ENV['TERM'] = 'dumb'",
    "require 'open-uri'; require 'shellwords'; 'x'",
]


def compile_bodies(tmp_path: Path, bodies: list[str]) -> list[CompileResult]:
    files = {f"modules/m/files/{name}": text for name, text in _FILES.items()}
    nodes = []
    for number, body in enumerate(bodies):
        files[f"modules/m/lib/puppet/functions/m/f{number}.rb"] = (
            f"Puppet::Functions.create_function(:'m::f{number}') do\n"
            f"  {_TOP.replace('TOP =', 'top =')}\n"
            f"  define_method(:f{number}) {{ {body.replace('TOP', 'top')} }}\nend\n"
        )
        nodes.append(f"node 'n{number}' {{ notice(m::f{number}()) }}")
    release = write(tmp_path / "r", {"site.pp": "\n".join(nodes), **files})
    requests = [request(f"n{number}") for number in range(len(bodies))]
    results = compile_all(make_engine(tmp_path / "e"), release, requests)
    return [results[each.node] for each in requests]


def test_unusual_reads_of_contents_are_recorded(tmp_path: Path) -> None:
    results = compile_bodies(tmp_path, [*CONTENTS])
    for (body, name), result in zip(CONTENTS.items(), results, strict=True):
        names = {*result.reads.files, *result.reads.listed}
        assert f"modules/m/files/{name}" in names, (body, result)


def test_reads_beyond_file_contents_are_impure(tmp_path: Path) -> None:
    results = compile_bodies(tmp_path, [*IMPURE, *PURE])
    for (body, reason), result in zip(IMPURE.items(), results, strict=False):
        assert reason in " ".join(result.reads.impure), (body, result)
    for body, result in zip(PURE, results[len(IMPURE) :], strict=True):
        assert result.failure is None, body
        assert result.reads.impure == (), body


def test_reads_of_a_modules_provider_count_and_of_no_other(tmp_path: Path) -> None:
    # The compile loads Puppet's type, whose providers search for programs and ask Facter when they
    # are loaded. Only the reads of the module's provider count.
    provider = "Puppet::Type.type(:package).provide(:own) { %s }\n"
    files = {
        "modules/m/lib/puppet/provider/package/own.rb": provider % "require 'pty'",
        "site.pp": "package { 'a': ensure => installed }\n",
    }
    reads = {**files, "modules/m/lib/puppet/provider/package/own.rb": provider % "`/bin/true`"}
    for name, texts in (("pure", files), ("impure", reads)):
        release = write(tmp_path / name, texts)
        (result,) = compile_all(make_engine(tmp_path / "e"), release, [request()]).values()
        assert result.failure is None
        assert result.reads.impure == (() if name == "pure" else ("starts a program",))
        assert "modules/m/lib/puppet/provider/package/own.rb" in result.reads.files


def test_a_template_with_a_node_document_and_an_escaped_end_compiles(tmp_path: Path) -> None:
    templates = {
        "a": "<%= scope.compiler.node.to_data_hash.size %>",
        "b": "<% x = '%%>'; y = @zone %><%= y %>",
    }
    files = {f"modules/m/templates/{name}": text for name, text in templates.items()}
    nodes = [f"node '{name}' {{ notice(template('m/{name}')) }}" for name in templates]
    release = write(tmp_path / "r", {"site.pp": "\n".join(nodes), **files})
    results = compile_all(make_engine(tmp_path / "e"), release, [request(n) for n in templates])
    assert () in results["a"].reads.facts
    assert "zone" in results["b"].reads.parameters


@pytest.mark.parametrize(
    ("reads", "before", "after"),
    [
        # $facts['a']['b'] fails without 'a', and has no value without 'b'.
        (RawReads(facts=(("a", "b"),)), {}, {"a": {}}),
        # A template reads the fact 'my-zone' as @my_zone.
        (RawReads(parameters=("my_zone",)), {"my-zone": 1}, {"my-zone": 2}),
        (RawReads(parameters=("my_zone",)), {}, {"my.zone": 2}),
    ],
)
def test_a_changed_fact_changes_the_digest(
    reads: RawReads, before: dict[str, int], after: dict[str, int]
) -> None:
    index = ReleaseIndex({}, lambda _: b"")
    first = CompileRequest(node="n", facts=before)
    read_set = ReadSet.of(reads, first, index)
    assert isinstance(read_set, ReadSet)
    assert read_set.node.values(first) == read_set.values
    assert read_set.node.values(CompileRequest(node="n", facts=after)) != read_set.values
