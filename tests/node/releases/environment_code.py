"""A control repository with functions, types, facts and Hiera data beside its modules."""

import re
import shutil
import subprocess
from pathlib import Path

from tests.rigs.forge import Forge, make
from tests.rigs.node import Node

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
    # Puppet does not load these from an environment.
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
    """Return the messages of a catalog's resources from the output of a noop run.

    Puppet 8.10 writes "defined 'message' as" where Puppet 7 writes "current_value … should be".
    """
    shown = re.findall(r"(?:should be |/message: defined .* as )(.*) \(noop\)$", text, re.MULTILINE)
    return sorted(shown)


def tag_control(node: Node, forge: Forge) -> Path:
    repo = forge.repo("control")
    repo.write(FILES)
    node.settings(allow_file_urls=True, sources={"control": {"git": repo.url}})
    make(node, "lock", str(repo.path), code=0)
    repo.commit({}, "r1")
    node.write("input.yaml", "app: control/tags/r1\nclasses: [profile]\n")
    return repo.path


def values_by_puppet(control: Path, directory: Path) -> list[str]:
    """Return the messages that `puppet apply --environmentpath` shows for the same tree."""
    environment = directory / "environments/production"
    shutil.copytree(control, environment)
    own = [f"--{name}={directory}/own/{name}" for name in ("confdir", "vardir")]
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
