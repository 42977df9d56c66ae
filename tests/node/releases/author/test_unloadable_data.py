"""release check: Hiera data that Puppet's Ruby refuses, compared with Puppet itself."""

import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from localpuppet.base.machine.own_program import shared_file
from localpuppet.base.machine.processes import SystemProcesses
from localpuppet.node.releases.author.hiera_data import check_data
from localpuppet.node.runs.interface_reader import Parser
from tests.node.releases.author.test_hiera_data import tree
from tests.rigs.forge import Forge, manifest
from tests.rigs.node import Node

# A value → its type, if Puppet refuses the whole file because of it.
LOADED: Mapping[str, str | None] = {
    "'2024-01-02'": None,
    "2024-01-02": "Date",
    "2024-1-2": "Date",
    "2024-13-45": None,
    "[1, {a: 2024-02-30}]": "Date",
    "{2024-01-02: x}": "Date",
    "!!timestamp 2024-01-02": "Date",
    "!!str 2024-01-02": None,
    "2024-01-02 10:00:00": "Time",
    "2001-12-14t21:59:43.10-05:00": "Time",
    "12:30:00": None,
    "1:30": None,
    "0o17": None,
    "017": None,
    "08": None,
    "1_000": None,
    ".inf": None,
    "0b12": None,
    "!!int abc": None,
    "!!float abc": "ArgumentError",
    "!!binary aGk=": None,
    "!!set {a, b}": "Psych::Set",
    "!!omap [a: 1]": None,
    "!local text": None,
    "!ruby/regexp /a/": "Regexp",
    "!ruby/range 1..2": "Range",
    "!ruby/object:OpenStruct {}": "OpenStruct",
    "!ruby/object:Gem::Installer {i: x}": "Gem::Installer",
    "!ruby/hash:Thing {a: 1}": "Thing",
    "!ruby/array:Thing [a]": "Thing",
    "!ruby/struct:Thing {a: 1}": "Thing",
    "!ruby/exception:Thing {message: a}": "Thing",
    "!ruby/string:Thing text": "Thing",
    "!ruby/class String": "String",
}
# Puppet loads these, and refuses to look them up.
ODD: Mapping[str, str] = {
    ":text": "Symbol",
    "[!ruby/symbol text]": "Symbol",
    "{~: 1}": "key of NilClass",
    "{no: norway}": "key of FalseClass",
    "{[a]: 1}": "key of Array",
    "!!binary /////w==": "Binary",
    "18446744073709551616": "Integer of more than 64 bits",
}
_PUPPET = """
require 'puppet/util/yaml'
ARGV.each do |file|
  Puppet::Util::Yaml.safe_load_file(file, [Symbol])
  puts
rescue Puppet::Util::Yaml::YamlLoadError => e
  puts e.message.lines.first
end
"""


def parser() -> Parser:
    share = Path(shared_file("interface.rb"))
    return Parser(
        ruby=Path("/usr/bin/ruby"),
        script=share,
        own_modules=Path("/nonexistent"),
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        version="",
        processes=SystemProcesses(),
    )


def values(root: Path, texts: Iterable[str]) -> list[Path]:
    files = [root / f"{number}.yaml" for number, _ in enumerate(texts)]
    for file, text in zip(files, texts, strict=True):
        file.write_text(f"a: first\nkey: {text}\n")
    return files


@pytest.mark.puppet
def test_files_that_puppet_refuses_are_found_with_line_and_type(tmp_path: Path) -> None:
    files = values(tmp_path, LOADED)
    command = ["/usr/bin/ruby", "-rpuppet", "-e", _PUPPET, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answers = done.stdout.splitlines()
    found = {refused.file: refused for refused in parser().refused_data(files)}
    for file, answer, (text, expected) in zip(files, answers, LOADED.items(), strict=True):
        refused = found.get(file)
        assert (refused is None) == (answer == ""), (text, answer)
        assert (refused and (refused.type, refused.line)) == (expected and (expected, 2)), text
        assert refused is None or refused.key is None


@pytest.mark.puppet
def test_values_that_puppet_does_not_look_up_are_found_by_their_key(tmp_path: Path) -> None:
    files = values(tmp_path, ODD)
    found = [(refused.key, refused.type) for refused in parser().refused_data(files)]
    assert found == [("key", expected) for expected in ODD.values()]


@pytest.mark.puppet
def test_an_alias_in_its_own_value_is_refused_and_a_nest_of_aliases_is_read(tmp_path: Path) -> None:
    nest = "a: &a0 [x]\n" + "".join(f"b{n}: &a{n + 1} [*a{n}, *a{n}, *a{n}]\n" for n in range(60))
    tree(tmp_path, **{"ring.yaml": "a: &a\n  b: [*a]\n", "nest.yaml": nest})
    found = parser().refused_data([tmp_path / "nest.yaml", tmp_path / "ring.yaml"])
    assert [(item.file.name, item.type, item.key) for item in found] == [
        ("ring.yaml", "alias in its own value", None)
    ]


def test_only_files_of_puppets_own_yaml_readers_are_judged(tmp_path: Path) -> None:
    levels = (
        "  - {name: a, path: own.yaml}\n"
        "  - {name: b, path: e.yaml, lookup_key: eyaml_lookup_key}\n"
        "  - {name: c, path: other.yaml, data_hash: site::read}\n"
    )
    files = {f"data/{name}.yaml": "a: 1\n" for name in ("own", "e", "other", "unread")}
    tree(tmp_path, **files, **{"hiera.yaml": f"version: 5\nhierarchy:\n{levels}"})
    names = ["hiera.yaml", "data/e.yaml", "data/own.yaml"]
    assert [*check_data(tmp_path, ()).yaml] == [tmp_path / name for name in names]
    defaults = "version: 5\ndefaults: {datadir: data, data_hash: site::read}\nhierarchy:\n"
    tree(tmp_path, **{"hiera.yaml": defaults + levels})
    assert [*check_data(tmp_path, ()).yaml] == [tmp_path / "hiera.yaml", tmp_path / "data/e.yaml"]


def test_a_date_is_refused_but_a_warning_in_a_locked_module(site: Node, forge: Forge) -> None:
    hiera = "version: 5\nhierarchy: [{name: c, path: common.yaml}]\n"
    forge.repo("ntp").commit(
        {"hiera.yaml": hiera, "data/common.yaml": "ntp::a: 2024-01-02\nntp::b: :x\n"}, "v2"
    )
    web = forge.repo("web")
    own = {"web/hiera.yaml": hiera, "web/data/common.yaml": "web::a: '2024-01-02'\n"}
    web.write({"manifest.yaml": manifest(forge, ntp="v2"), **own})
    site.run("release", "lock", str(web.path), code=0)
    done = site.run("release", "check", str(web.path), code=0)
    assert "ntp/data/common.yaml: line 1: Puppet refuses the whole file" in done.err
    web.write({"web/data/common.yaml": "web::a: ok\nweb::b:\n  - 2024-01-02\n"})
    refused = site.run("release", "check", str(web.path), code=2)
    assert f"{web.path}/web/data/common.yaml: line 3: Puppet refuses the whole" in refused.err
    assert "2024" not in refused.err
