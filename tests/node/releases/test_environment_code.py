"""Functions and data types beside the modules of a control repository, as Puppet has them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.rigs.forge import Forge, klass, make
from tests.rigs.node import Node
from tests.rigs.warm.node import WarmNode

RUBY = "Puppet::Functions.create_function(:{0}) do\n  def {0}(*)\n    {1}\n  end\nend\n"
FILES = {
    "manifest.yaml": "moduledir: modules\n",
    "environment.conf": "modulepath = site-modules:modules\n",
    "functions/plain.pp": "function plain() >> String { 'language' }\n",
    "types/port.pp": "type Port = Integer[1, 65535]\n",
    "lib/puppet/functions/current.rb": RUBY.format("current", "'of Ruby'"),
    "lib/puppet/functions/own_data.rb": RUBY.format("own_data", "{ 'key' => 'by a function' }"),
    "lib/puppet/parser/functions/legacy.rb": (
        "module Puppet::Parser::Functions\n"
        "  newfunction(:legacy, type: :rvalue) { |_| 'of old' }\nend\n"
    ),
    "lib/puppet/datatypes/pair.rb": (
        "Puppet::DataTypes.create_type('Pair') do\n"
        '  interface "attributes => { a => Integer }"\nend\n'
    ),
    # Of these Puppet takes nothing from an environment.
    "lib/puppet/type/thing.rb": "Puppet::Type.newtype(:thing) { newparam(:name, namevar: true) }\n",
    "lib/facter/own_fact.rb": "Facter.add(:own_fact) { setcode { 'set' } }\n",
    "hiera.yaml": "version: 5\nhierarchy: [{name: own, data_hash: own_data}]\n",
    "site-modules/profile/manifests/init.pp": (
        "class profile (Port $port = 80) {\n"
        "  $all = [plain(), current(), legacy(), lookup('key'), Pair(a => 1)]\n"
        "  notify { \"values ${all} ${port} fact ${facts['own_fact']}\": }\n}\n"
    ),
    "manifests/site.pp": 'notify { "site ${plain()} ${current()}": }\ninclude profile\n',
}


def values(text: str) -> list[str]:
    """Return the messages that the resources of a catalog would show."""
    return sorted(re.findall(r"should be (.*) \(noop\)$", text, re.MULTILINE))


@pytest.fixture
def control(node: Node, forge: Forge) -> Path:
    """A control repository that is tagged, and a node whose source it is."""
    repo = forge.repo("control")
    repo.write(FILES)
    node.settings(allow_file_urls=True, sources={"control": {"git": repo.url}})
    assert make(node, "lock", str(repo.path)).code == 0
    repo.commit({}, "r1")
    node.write("input.yaml", "app: control/tags/r1\nclasses: [profile]\n")
    return repo.path


@pytest.fixture
def by_puppet(control: Path, tmp_path: Path) -> list[str]:
    """What `puppet apply --environmentpath` makes of the same tree."""
    environment = tmp_path / "environments/production"
    shutil.copytree(control, environment)
    own = [f"--{name}={tmp_path}/own/{name}" for name in ("confdir", "vardir")]
    own.append(f"--environmentpath={environment.parent}")
    done = subprocess.run(
        ["puppet", "apply", "--noop", "--color=false", *own, environment / "manifests/site.pp"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = values(done.stdout)
    assert len(found) == 2, done.stderr
    return found


def test_a_release_has_them_as_puppet_has_them(
    node: Node, control: Path, by_puppet: list[str]
) -> None:
    checked = make(node, "check", str(control))
    assert checked.code == 0, checked.err
    applied = node.run("apply", "--noop")
    assert applied.code == 0, applied.err
    assert values(applied.out) == by_puppet
    tried = node.run("try", str(control), "--noop")
    assert values(tried.out) == by_puppet
    assert node.run("lookup", "key").out == "by a function\n"


def test_a_warm_run_has_them_too(node: Node, control: Path, by_puppet: list[str]) -> None:
    sources = {"control": {"git": f"file://{control}"}}
    assert node.run("stage").code == 0
    host = WarmNode(node, warm=True)
    try:
        node.settings(agent={"warm": True}, allow_file_urls=True, sources=sources)
        record = host.run("noop")
        assert record["warm"], record["cold_reason"]
        assert values(host.text(record["id"])) == by_puppet
    finally:
        host.end()


def test_the_next_release_has_none_of_those_before(node: Node, forge: Forge, control: Path) -> None:
    assert node.run("apply", "--noop").code == 0
    repo = forge.repo("control")
    repo.git("rm", "-qr", "functions", "types", "site-modules", "manifests")
    repo.commit({"site-modules/profile/manifests/init.pp": klass("profile", "r2")}, "r2")
    node.write("input.yaml", "app: control/tags/r2\nclasses: [profile]\n")
    assert node.run("apply", "--noop").code == 0
    directory = node.state / "environments/production"
    assert [path.name for path in directory.iterdir()] == ["lib"]
    node.app("")
    assert node.run("apply", "--noop").code == 0
    assert not list(directory.iterdir())


def test_what_puppet_cannot_parse_outside_of_modules_is_refused(
    node: Node, forge: Forge, control: Path
) -> None:
    repo = forge.repo("control")
    for name in ("functions/plain.pp", "types/port.pp", "manifests/site.pp"):
        repo.commit({name: FILES[name] + "\n{"})
        refused = make(node, "check", str(control))
        assert refused.code == 2
        assert f"{control}/{name}: Puppet cannot parse it" in refused.err
        repo.git("tag", "-a", "-m", "bad", f"bad-{Path(name).stem}")
        staged = node.run("stage", f"control/tags/bad-{Path(name).stem}")
        assert staged.code == 2
        assert f"/{name}: Puppet cannot parse it" in staged.err
        repo.commit({name: FILES[name]})
