"""The interface of a release, which Puppet's parser reads, and the check of inputs with it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import PuppetMissingError
from localpuppet.base.machine.processes import SystemProcesses
from localpuppet.node.puppet.installation import Installation
from localpuppet.node.runs.interface_reader import Parser
from tests.rigs.applied import SavedSites
from tests.rigs.forge import Forge, release
from tests.rigs.node import REPOSITORY, Node
from tests.rigs.puppet_wrapper import OTHER_VERSION, make_wrapper, probe

WEB = """\
# Serves.
class web (
  Integer[1, 65535] $port,
  Enum['http', 'https'] $scheme = 'http',
  Optional[Array[String[1]]] $aliases = undef,
  Sensitive[String] $password = Sensitive('x'),
) {
  notify { "web ${port}": }
}
"""


@pytest.fixture(scope="module")
def sites_with_r3(saved_sites: SavedSites) -> SavedSites:
    """The site with the staged release r3, which has a class with parameters."""
    node, forge = saved_sites.restore("0"), saved_sites.forge
    forge.repo("web").write({"web/manifests/extra.pp": "class web::extra($anything = 1) { }\n"})
    release(node, forge, "r2")
    forge.repo("web").commit({"web/manifests/init.pp": WEB}, "r3")
    node.run("stage", "web/tags/r3", code=0)
    saved_sites.save("interface")
    return saved_sites


@pytest.fixture
def web(sites_with_r3: SavedSites) -> Node:
    return sites_with_r3.restore("interface")


@pytest.fixture
def forge(saved_sites: SavedSites) -> Forge:
    return saved_sites.forge


def say(node: Node, classes: str, parameters: str = "{}") -> None:
    node.write("input.yaml", f"app: web/tags/r3\nclasses: {classes}\nparameters: {parameters}\n")


def test_an_input_that_fits_the_interface_is_applied(web: Node) -> None:
    say(web, "{web: {port: 8080, scheme: https, aliases: [a], stage: main}, ntp: , platform: }")
    web.run("check", "--parse", code=0)
    done = web.run("apply", code=0)
    assert "web 8080" in done.out


@pytest.mark.parametrize(
    ("classes", "texts"),
    [
        ("{wbe: {}}", ["classes.wbe: the release has no class 'wbe'", "did you mean 'web'?"]),
        ("[web::none]", ["no class 'web::none'"]),
        (
            "[other::sub]",
            ["no class 'other::sub'", "no directory of the modulepath has other/manifests/sub.pp"],
        ),
        (
            "{web: {prot: 1}}",
            ["classes.web.prot: the class web has no parameter 'prot'", "did you mean 'port'?"],
        ),
        (
            "{web: {}}",
            ["classes.web: the class web needs the parameter 'port' (Integer[1, 65535])"],
        ),
        (
            "{web: {port: secret}}",
            [
                "classes.web.port: the parameter 'port'",
                "must be Integer[1, 65535], and this string",
            ],
        ),
        ("{web: {port: 0}}", ["must be Integer[1, 65535], and this number is not"]),
        (
            "{web: {port: 1, scheme: ftp}}",
            ["classes.web.scheme", "must be Enum['http', 'https'], and this string is not"],
        ),
        ("{web: {port: 1, aliases: [a, '']}}", ["Optional[Array[String[1]]]", "this list is not"]),
        ("{web: {port: '%{port}'}}", ["must be Integer[1, 65535], and this string is not"]),
    ],
)
def test_an_input_that_does_not_fit_the_interface_is_refused_before_puppet_starts(
    web: Node, classes: str, texts: list[str]
) -> None:
    say(web, classes, "{port: '1'}")
    for verb in ("check", "apply"):
        refused = web.run(verb, code=2)
        assert refused.err.startswith(f"localpuppet: error: {web.root}/input.yaml: classes")
        assert len(refused.err.splitlines()) == 1
        for text in texts:
            assert text in refused.err
        if "class web" in refused.err:
            file = "modules/web/tags/r3/web/manifests/init.pp:2"
            assert f"see {web.root}/{file}" in refused.err
        assert "secret" not in refused.err
    assert not (web.root / "node.yaml").exists()


def test_classes_and_data_of_the_site_satisfy_the_check(web: Node) -> None:
    web.write("manifests/default.pp", "class mine { notify { 'mine': } }\nnode default { }\n")
    say(web, "{mine: {}, web: {port: 1}}")
    done = web.run("apply", code=0)
    assert "Notice: mine" in done.out
    say(web, "[web]")
    web.run("check", "--parse", code=2)
    conf = web.root / "puppet/conf"
    config = web.write("puppet/conf/hiera.yaml", "---\n# hierarchy:\nversion: 5\nhierarchy: []\n")
    assert web.run("check", "--parse").code == 2, "the hiera.yaml of Debian has no data"
    config.write_text(
        f"version: 5\nhierarchy:\n  - {{name: x, path: x.yaml, datadir: {conf}/data}}\n"
    )
    web.write("puppet/conf/data/x.yaml", "web::port: 99\n")
    done = web.run("apply", code=0)
    assert "web 99" in done.out


def test_data_in_a_module_or_a_release_may_set_a_parameter(web: Node, forge: Forge) -> None:
    files = {
        "web/hiera.yaml": "version: 5\nhierarchy: [{name: c, path: c.yaml}]\n",
        "web/data/c.yaml": "web::port: 77\n",
    }
    forge.repo("web").commit(files, "r4")
    web.write("input.yaml", "app: web/tags/r4\nclasses: [web]\n")
    web.run("stage", code=0)
    done = web.run("apply", code=0)
    assert "web 77" in done.out


def test_a_release_that_puppet_cannot_parse_is_not_staged(web: Node, forge: Forge) -> None:
    broken = {
        "web/manifests/extra.pp": "class web::extra {\n  $x = \n}\n",
        "web/functions/f.pp": "function web::f( { }\n",
        "web/examples/init.pp": "not { parsed",
        "web/plans/p.pp": "plan web::p() { apply('x') { } }",
    }
    forge.repo("web").commit(broken, "r5")
    refused = web.run("stage", "web/tags/r5", code=2)
    file = web.root / "modules/web/tags/r5/web/functions/f.pp"
    assert f"error: {file}:1: Puppet cannot parse it: Syntax error" in refused.err
    assert "(and 1 more)" in refused.err
    assert not file.parents[2].exists(), "the release is not named"
    assert len(list((web.state / "interfaces").iterdir())) == 1, "only that of r3"
    assert len(list((web.state / "releases").iterdir())) == 1
    assert web.run("stage", "web/tags/r5").code == 2, "the second attempt is refused, too"
    assert web.run("stage", "web/tags/r5", "--no-parse").code == 0, (
        "the option allows an inspection"
    )
    assert file.exists()
    web.run("stage", "web/tags/r5", code=2)
    web.write("input.yaml", "app: web/tags/r5\nclasses: {web: {port: 1}}\n")
    web.run("apply", code=2)
    web.write("input.yaml", "app: web/tags/r3\nclasses: {web: {port: 1}}\n")
    web.run("apply", code=0)


def test_a_run_reads_the_stored_interface(web: Node) -> None:
    say(web, "{web: {port: 1}}")
    kept = list((web.state / "interfaces").iterdir())
    assert len(kept) == 1
    value = json.loads(kept[0].read_text())
    assert value["classes"]["web"]["parameters"]["aliases"] == {
        "type": "Optional[Array[String[1]]]",
        "required": False,
        "default": "undef",
    }
    value["classes"]["web"]["parameters"]["port"]["type"] = "String"
    kept[0].write_text(json.dumps(value))
    assert "must be String" in web.run("apply").err
    kept[0].write_text("{")
    assert web.run("apply").code == 0, "without a stored interface, Puppet checks"
    web.run("stage", "web/tags/r3", code=0)
    assert json.loads(kept[0].read_text())["classes"]["web"]["place"]["line"] == 2


def test_the_interface_of_a_mutable_release_is_read_only_by_check(node: Node) -> None:
    node.app("notify { 'x': }")
    node.write("input.yaml", "app: app/trunk\nclasses: {app: {nope: 1}}\n")
    refused = node.run("check", "--parse", code=2)
    assert "the class app has no parameter 'nope' (there are none; see" in refused.err
    assert not (node.state / "interfaces").exists()
    failed = node.run("apply", code=1)
    assert "Puppet" not in failed.err


def test_without_puppet_a_warning_names_the_missing_checks(web: Node) -> None:
    web.settings(
        allow_file_urls=True,
        sources={"web": {"git": "file:///nowhere"}, "dist": {"git": "file:///nowhere"}},
        puppet={"command": "none"},
    )
    say(web, "[web]")
    checked = web.run("check", "--parse", code=0)
    assert "classes and parameters were not checked" in checked.err
    staged = web.run("stage", code=0)
    assert "not parsed" in staged.err


def test_ruby_is_found_beside_puppet_or_in_the_first_line_of_puppet(tmp_path: Path) -> None:
    from localpuppet.node.puppet.installation import find_ruby

    def program(name: str, text: str = "#!/bin/sh\n") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    vendor = program("vendor/ruby")
    wrapper = program("vendor/wrapper.sh")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/puppet").symlink_to(wrapper)
    assert find_ruby(tmp_path / "bin/puppet", "") == vendor
    gem = program("gem/puppet", f"#!{vendor} -w\n")
    assert find_ruby(gem, "") == vendor
    env = program("gem/other", "#!/usr/bin/env ruby\n")
    assert find_ruby(env, f"/nowhere:{tmp_path}/vendor") == vendor
    assert find_ruby(env, "/nowhere") is None


def parser_of(installation: Installation) -> Parser:
    return Parser(
        ruby=installation.interpreter("/usr/bin:/bin") or Path("/usr/bin/ruby"),
        load_path=installation.load_path,
        script=REPOSITORY / "localpuppet/base/share/interface.rb",
        own_modules=REPOSITORY / "modules/localpuppet",
        env={"PATH": "/usr/bin:/bin"},
        version=installation.version,
        processes=SystemProcesses(),
    )


@pytest.mark.puppet
def test_foreign_modules_are_parsed(tmp_path: Path) -> None:
    """The modules of this repository and, if installed, those of Debian's packages."""
    directories = [REPOSITORY / "modules/foo/trunk", Path("/usr/share/puppet/modules")]
    directories = [directory for directory in directories if directory.is_dir()]
    parser = parser_of(probe(tmp_path, Path("/usr/bin/puppet")))
    found = parser.ask(directories, names=list(map(str, directories)), own_code={})
    assert not found.problems
    assert "foo" in found.classes


@pytest.mark.puppet
def test_the_parser_is_that_of_the_command_even_behind_a_wrapper(tmp_path: Path) -> None:
    installation = probe(tmp_path, make_wrapper(tmp_path))
    assert installation.version == OTHER_VERSION
    parser = parser_of(installation)
    assert parser.ask([], names=[], own_code={}).puppet == OTHER_VERSION
    with pytest.raises(PuppetMissingError, match=rf"runs use {OTHER_VERSION}.*puppet\.command"):
        replace(parser, load_path=()).ask([], names=[], own_code={})
