"""release check: Hiera's data, unused files of a release, and catalogs of given nodes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.releases.author.hiera_data import MAX_WARNINGS, check_data
from localpuppet.node.releases.author.tagging import left_of_puppetfile, unused_code
from localpuppet.node.releases.composing import ReleaseLayout
from localpuppet.node.releases.manifest import Manifest
from localpuppet.node.releases.modules import parse_module
from localpuppet.node.runs.puppet_calls import read_facts
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
  - {name: Machine, paths: [/etc/secrets.yaml, "/srv/%{role}.yaml"]}
  - {name: Each, path: x.yaml, datadir: "%{environment}/data"}
"""
REPOSITORY = "https://git.example.com/ntp"
NO_MODULES = Manifest(modulepath=(), modules={})
CONTROL = Manifest(modulepath=(), modules={}, moduledir="modules")


def tree(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_levels_without_files_and_files_without_a_level_are_warnings(tmp_path: Path) -> None:
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
        "hiera.yaml: Machine: /etc/secrets.yaml is not in the release",
        "hiera.yaml: Machine: /srv/%{role}.yaml is not in the release",
        "hiera.yaml: Each: datadir %{environment}/data differs from node to node",
        "hiera.yaml: Role: there is no data/role",
        "hiera.yaml: Role: there is no data/site.yaml",
        "hiera.yaml: no level reads data/forgotten.yaml",
    )


def test_data_in_modules_is_checked(tmp_path: Path) -> None:
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
def test_unreadable_data_is_refused(tmp_path: Path, name: str, text: str, problem: str) -> None:
    files = {"hiera.yaml": "version: 5\n", f"data/{name}": text}
    with pytest.raises(InvalidInputError, match=problem):
        check_data(tree(tmp_path, **files), ())


@pytest.mark.parametrize(
    "text",
    [
        *("", "---\n", "--- # nothing yet\n", "--- ~\n", "a: &x 1\nb: &x 2\nc: *x\n"),
        "a: 1\n---\n- b\n",
    ],
)
def test_data_that_puppet_reads_is_accepted(tmp_path: Path, text: str) -> None:
    files = {"hiera.yaml": "version: 5\n", "data/common.yaml": text}
    assert check_data(tree(tmp_path, **files), ()).files == 1


def test_many_unused_files_are_counted(tmp_path: Path) -> None:
    files = {f"data/{number}.yaml": "" for number in range(MAX_WARNINGS + 7)}
    found = check_data(tree(tmp_path, **files, **{"hiera.yaml": "version: 5\n"}), ())
    assert found.warnings[-1] == "hiera.yaml: no level reads 7 more files"


def test_entries_that_the_import_left_are_reported(tmp_path: Path) -> None:
    tree(
        tmp_path,
        Puppetfile="mod 'a/one', '1.0.0'\nmod 'two', :svn => 'https://svn.example.com'\n"
        "if x then\n  mod 'a/three'\nend\n",
    )
    assert left_of_puppetfile(tmp_path, NO_MODULES) == [
        "Puppetfile:1: one is not in the manifest (run 'localpuppet release import')",
        "Puppetfile:2: two is not in the manifest: is a Subversion repository",
        "Puppetfile:4: three is not in the manifest: is inside Ruby code ('--evaluate' runs it)",
        "Puppetfile:3: 'if x then' is Ruby code ('--evaluate' runs it)",
    ]
    assert left_of_puppetfile(tmp_path / "elsewhere", NO_MODULES) == []


@pytest.mark.parametrize(
    ("entry", "fields", "is_named"),
    [
        ("mod 'a/ntp', '2.0.0'", {"forge": "a/ntp", "version": "1.0.0"}, True),
        ("mod 'a/ntp', '2.0.0'", {"forge": "a/ntp", "version": "2.0.0"}, False),
        ("mod 'a/ntp', '2.0.0'", {"git": REPOSITORY, "tag": "v2.0.0"}, True),
        (f"mod 'ntp', git: '{REPOSITORY}', tag: 'v2'", {"git": REPOSITORY, "tag": "v1"}, True),
        (f"mod 'ntp', git: '{REPOSITORY}', tag: 'v2'", {"git": REPOSITORY, "tag": "v2"}, False),
        (f"mod 'ntp', git: '{REPOSITORY}x', tag: 'v2'", {"git": REPOSITORY, "tag": "v2"}, True),
        (f"mod 'ntp', git: '{REPOSITORY}', ref: 'v2.0'", {"git": REPOSITORY, "tag": "v1.0"}, True),
        (f"mod 'ntp', git: '{REPOSITORY}', ref: 'x'", {"git": REPOSITORY, "branch": "x"}, False),
        (f"mod 'ntp', git: '{REPOSITORY}'", {"git": REPOSITORY, "branch": "main"}, False),
        (f"mod 'ntp', git: '{REPOSITORY}', branch: 'b'", {"git": REPOSITORY, "branch": "a"}, True),
        (
            f"mod 'ntp', git: '{REPOSITORY}', commit: '{'2' * 40}'",
            {"git": REPOSITORY, "tag": "v1"},
            False,
        ),
    ],
)
def test_a_pin_that_differs_from_the_manifest_is_reported(
    tmp_path: Path, entry: str, fields: dict[str, str], is_named: bool
) -> None:
    module = parse_module("ntp", fields, where="", allow_file=False)
    manifest = replace(NO_MODULES, modules={"ntp": module})
    warnings = left_of_puppetfile(tree(tmp_path, Puppetfile=f"{entry}\n"), manifest)
    assert bool(warnings) is is_named
    if is_named:
        assert warnings[0].startswith("Puppetfile:1: ntp is at ")
        assert "at another version in the manifest (run '" in warnings[0]


def touch(root: Path, *names: str) -> Path:
    return tree(root, **dict.fromkeys(names, ""))


def test_directories_of_modules_outside_the_modulepath_are_reported(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "sites/role/manifests/init.pp",
        "site/a/manifests/init.pp",
        "site/a/spec/fixtures/modules/b/manifests/init.pp",
        "spec/fixtures/modules/b/manifests/init.pp",
        "puppet/more/c/lib/facter/c.rb",
        "alone/types/t.pp",
        "kept/r10k/manifests/init.pp",
    )
    found = unused_code(tmp_path, CONTROL, ReleaseLayout(modulepath=("site",)), but=("kept",))
    cure = "it is not on the modulepath (name it in environment.conf)"
    assert found == [
        "modulepath: there is no directory modules",
        f"alone: its modules are not used: {cure}",
        f"puppet/more: its modules are not used: {cure}",
        f"sites: its modules are not used: {cure}",
    ]


def test_a_release_without_a_moduledir_has_its_modules_at_the_top(tmp_path: Path) -> None:
    touch(tmp_path, "web/manifests/init.pp", "web/files/a/manifests/b.pp")
    assert unused_code(tmp_path, NO_MODULES, ReleaseLayout(modulepath=("",))) == []
    touch(tmp_path, "site/role/manifests/init.pp", "manifests/site.pp")
    touch(tmp_path, "functions/f.pp", "lib/puppet/functions/g.rb")
    cure = "the manifest has no moduledir (write 'moduledir: modules' into manifest.yaml)"
    assert unused_code(tmp_path, NO_MODULES, ReleaseLayout(modulepath=("",))) == [
        f"site: its modules are not used: {cure}",
        f"manifests/site.pp: not used: {cure}",
        f"functions/f.pp, lib/puppet/functions/g.rb: not used: {cure}",
    ]


def test_code_beside_modules_that_puppet_does_not_load_is_reported(tmp_path: Path) -> None:
    touch(tmp_path, "functions/f.pp", "lib/puppet/functions/g.rb", "lib/puppet/type/t.rb")
    touch(tmp_path, "lib/facter/f.rb", "facts.d/f.txt", "templates/t.epp", "modules/.keep")
    touch(tmp_path, "manifests/site.pp", "manifests/nodes.pp")
    touch(tmp_path, "files/ntp/lib/facter/n.rb")  # a directory of modules under another name
    used = ReleaseLayout(
        modulepath=("files",), code=("functions", "lib", "types"), site_manifest="manifests/site.pp"
    )
    assert unused_code(tmp_path, CONTROL, used) == [
        "manifests/nodes.pp: not used: the site manifest is manifests/site.pp",
        "facts.d/f.txt, lib/facter/f.rb, lib/puppet/type/t.rb, templates/t.epp: not used: Puppet"
        " takes such files from modules alone (move them into one)",
    ]


def test_data_without_a_usable_hierarchy_is_reported(tmp_path: Path) -> None:
    files = {"data/common.yaml": "a: 1\n", "hieradata/old.eyaml": "a: 1\n", "data/x.md": ""}
    tree(tmp_path, **files, **{"site/ntp/data/common.yaml": "ntp::a: 1\n"})
    found = check_data(tmp_path, [tmp_path / "site/ntp"])
    assert found.warnings == (
        "data: not used: there is no hiera.yaml beside it",
        "hieradata: not used: there is no hiera.yaml beside it",
        "site/ntp/data: not used: there is no hiera.yaml beside it",
    )
    tree(tmp_path, **{"hiera.yaml": "version: 5\ndefaults: {datadir: ./data/}\n"})
    found = check_data(tmp_path, ())
    assert found.warnings == ("hieradata: not used: no level of hiera.yaml reads it",)
    found = check_data(tree(tmp_path / "old", **{"hiera.yaml": ":backends: [yaml]\n"}), ())
    assert found.warnings == (
        "hiera.yaml: is not of version 5: Puppet 7 reads its datadir on the node, not in the"
        " release; Puppet 8 does not read it (convert it to version 5)",
    )


def test_the_name_of_a_node_is_read_from_its_facts(tmp_path: Path) -> None:
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


def test_the_catalogs_of_given_nodes_are_compiled(node: Node, forge: Forge, tmp_path: Path) -> None:
    code = (
        "class app {\n  notify { \"${facts['os']['family']} ${trusted['certname']}\": }\n"
        "  if $facts['os']['family'] == 'Solaris' { fail('never on Solaris') }\n}\n"
    )
    repo = forge.repo("web")
    repo.commit({"manifest.yaml": "", "app/manifests/init.pp": code, "data/x.yaml": ""})
    node.settings(allow_file_urls=True)
    make(node, "lock", str(repo.path), code=0)
    given = node.write("web.yaml", "app: web/tags/r9\nclasses: [app]\n")
    facts = []
    for name, family in (("web01", "Debian"), ("sun01", "Solaris")):
        values = {"os": {"family": family}, "networking": {"fqdn": f"{name}.example.com"}}
        facts += ["--facts", str(node.write(f"{name}.json", json.dumps(values)))]
    done = make(node, "check", str(repo.path), "--compile", str(given), *facts, "--json", code=2)
    first, second = done.json["catalogs"]
    assert first["node"] == "web01.example.com"
    assert first["problem"] is None
    assert first["resources"] > 0
    assert "never on Solaris" in second["problem"]
    assert "sun01.example.com" in second["problem"]
    usage = make(node, "check", str(repo.path), *facts, code=2)
    assert "--facts requires --compile" in usage.err
