"""release check: Hiera's data, what a release does not use, and catalogs of given nodes."""

import json
from pathlib import Path

import pytest

from localpuppet.errors import InvalidInputError
from localpuppet.releases.making.compiling import read_facts
from localpuppet.releases.making.data import MAX_WARNINGS, check_data
from localpuppet.releases.making.leftovers import left_of_puppetfile, unused_directories
from localpuppet.releases.manifest import Manifest
from tests.rigs.forge import Forge, make
from tests.rigs.node import Node

HIERA = """\
version: 5
defaults: {datadir: data}
hierarchy:
  - {name: Node, path: "nodes/%{trusted.certname}.yaml"}
  - {name: Role, paths: ["role/%{role}.yaml", "site.yaml"]}
  - {name: Secret, lookup_key: eyaml_lookup_key, path: secret.eyaml}
  - {name: Elsewhere, path: x.yaml, datadir: /etc/puppetlabs/code/data}
  - {name: Each, path: x.yaml, datadir: "%{environment}/data"}
"""
NO_MODULES = Manifest(modulepath=(), modules={})


def tree(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_levels_and_files_that_do_not_meet_are_warnings(tmp_path: Path) -> None:
    data = {
        "hiera.yaml": HIERA,
        "data/nodes/web01.example.com.yaml": "--- {a: 1}\n",
        "data/secret.eyaml": "key: ENC[PKCS7,xyz]\n",
        "data/forgotten.yaml": "# nothing\n",
        "data/README.md": "not data",
    }
    found = check_data(tree(tmp_path, **data), ())
    assert found.files == 3
    assert found.warnings == (
        "hiera.yaml: Elsewhere: datadir /etc/puppetlabs/code/data is not in the release",
        "hiera.yaml: Each: datadir %{environment}/data is another one on each node",
        "hiera.yaml: Role: there is no data/role",
        "hiera.yaml: Role: there is no data/site.yaml",
        "hiera.yaml: no level reads data/forgotten.yaml",
    )


def test_data_in_modules_is_data(tmp_path: Path) -> None:
    files = {
        "site/ntp/hiera.yaml": "version: 5\nhierarchy: [{name: c, path: common.yaml}]\n",
        "site/ntp/data/common.yaml": "ntp::servers: [a\n",
    }
    with pytest.raises(
        InvalidInputError, match=r"data/common.yaml: cannot be parsed: line 1 column 15"
    ):
        check_data(tree(tmp_path, **files), [tmp_path / "site/ntp"])


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("common.yaml", "- a list\n", "is not a mapping of keys"),
        ("common.yaml", "a: [\n", "cannot be parsed"),
        ("common.yaml", "a: *nothing\n", "an alias without its anchor"),
        ("common.yaml", "a text\n", "is not a mapping of keys"),
        ("common.yaml", "[" * 10_000, "cannot be parsed"),
        ("common.json", "{", "cannot be parsed"),
        ("common.json", "[]", "is not a mapping of keys"),
    ],
)
def test_what_hiera_cannot_read_is_refused(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    files = {"hiera.yaml": "version: 5\n", f"data/{name}": text}
    with pytest.raises(InvalidInputError, match=problem):
        check_data(tree(tmp_path, **files), ())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "---\n",
        "--- # nothing yet\n",
        "--- ~\n",
        "a: &x 1\nb: &x 2\nc: *x\n",
        "a: 1\n---\n- b\n",
    ],
)
def test_what_puppet_reads_is_not_refused(tmp_path: Path, text: str) -> None:
    files = {"hiera.yaml": "version: 5\n", "data/common.yaml": text}
    assert check_data(tree(tmp_path, **files), ()).files == 1


def test_many_forgotten_files_are_a_number(tmp_path: Path) -> None:
    files = {f"data/{number}.yaml": "" for number in range(MAX_WARNINGS + 7)}
    found = check_data(tree(tmp_path, **files, **{"hiera.yaml": "version: 5\n"}), ())
    assert found.warnings[-1] == "hiera.yaml: no level reads 7 more files"


def test_a_hierarchy_of_version_three_is_named(tmp_path: Path) -> None:
    found = check_data(tree(tmp_path, **{"hiera.yaml": ":backends: [yaml]\n"}), ())
    assert found.warnings == ("hiera.yaml: is not of version 5: Puppet 8 does not read it",)


def test_what_import_left_is_said_again(tmp_path: Path) -> None:
    tree(
        tmp_path,
        Puppetfile="mod 'a/one', '1.0.0'\nmod 'two', :svn => 'https://svn.example.com'\n"
        "if x then\n  mod 'a/three'\nend\n",
    )
    assert left_of_puppetfile(tmp_path, NO_MODULES) == [
        "Puppetfile:1: one is not in the manifest: run localpuppet release import",
        "Puppetfile:2: two is not in the manifest: is a Subversion repository",
        "Puppetfile:4: three is not in the manifest: stands inside Ruby, which decides:"
        " --evaluate has Ruby read it",
        "Puppetfile:3: 'if x then' is Ruby: --evaluate has Ruby read it",
    ]
    assert left_of_puppetfile(tmp_path / "elsewhere", NO_MODULES) == []


def test_directories_of_modules_that_nobody_uses_are_named(tmp_path: Path) -> None:
    tree(tmp_path, **{"sites/role/manifests/init.pp": "", "site/a/manifests/init.pp": ""})
    manifest = Manifest(modulepath=(), modules={}, moduledir="modules")
    assert unused_directories(tmp_path, manifest, ("site",)) == [
        "modulepath: there is no directory modules",
        "sites has modules and is not on the modulepath: name it in environment.conf",
    ]
    assert unused_directories(tmp_path, NO_MODULES, ("",)) == []


def test_facts_say_which_node_they_are_of(tmp_path: Path) -> None:
    networking = {"networking": {"fqdn": "Web01.example.com"}}
    for text, name in (
        (json.dumps(networking), "web01.example.com"),
        (json.dumps({"name": "db01", "values": {"a": 1}}), "db01"),
        (json.dumps({"a": 1}), "facts"),
    ):
        file = tmp_path / "facts.json"
        file.write_text(text)
        assert read_facts(file).name == name
    for text in ("[]", "{", '{"values": 1}'):
        file.write_text(text)
        with pytest.raises(InvalidInputError):
            read_facts(file)


def test_given_nodes_compile_or_say_why_not(node: Node, forge: Forge, tmp_path: Path) -> None:
    code = (
        "class app {\n  notify { \"${facts['os']['family']} ${trusted['certname']}\": }\n"
        "  if $facts['os']['family'] == 'Solaris' { fail('never on Solaris') }\n}\n"
    )
    repo = forge.repo("web")
    repo.commit({"manifest.yaml": "", "app/manifests/init.pp": code, "data/x.yaml": ""})
    node.settings(allow_file_urls=True)
    assert make(node, "lock", str(repo.path)).code == 0
    given = node.write("web.yaml", "app: web/tags/r9\nclasses: [app]\n")
    facts = []
    for name, family in (("web01", "Debian"), ("sun01", "Solaris")):
        values = {"os": {"family": family}, "networking": {"fqdn": f"{name}.example.com"}}
        facts += ["--facts", str(node.write(f"{name}.json", json.dumps(values)))]
    done = make(node, "check", str(repo.path), "--compile", str(given), *facts, "--json")
    assert done.code == 2, done.err
    first, second = done.json["catalogs"]
    assert first["node"] == "web01.example.com"
    assert first["problem"] is None
    assert first["resources"] > 0
    assert "never on Solaris" in second["problem"]
    assert "sun01.example.com" in second["problem"]
    usage = make(node, "check", str(repo.path), *facts)
    assert usage.code == 2
    assert "--facts goes with --compile" in usage.err
