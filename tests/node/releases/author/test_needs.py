"""release check and check: names that the release uses but a node lacks."""

from tests.rigs.forge import Forge, make
from tests.rigs.node import Node

# Types of the Mac: Debian 13's Puppet bundles all other modules of Puppet's own packages.
NEEDS = """\
class profile {
  # a computer { here would be one
  @@computer { 'a': realname => 'b' }
  ::macauthorization { 'c': timeout => 1 }
  sshkey { 'd': }
  file { 'computer { x': }
  $found = puppetdb_query('nodes[certname] { }')
}
"""


def test_types_and_functions_that_not_every_node_has_are_reported(node: Node, forge: Forge) -> None:
    repo = forge.repo("control")
    files = {
        "manifest.yaml": "moduledir: modules\n",
        "environment.conf": "modulepath = site:modules:$basemodulepath\n",
        "site/profile/manifests/init.pp": NEEDS,
        "site/sshkeys_core/lib/puppet/type/sshkey.rb": "Puppet::Type.newtype(:sshkey) { }\n",
        "manifests/site.pp": "mcx { 'tank': }\n",
    }
    repo.write(files)
    settings = {"allow_file_urls": True, "sources": {"control": {"git": repo.url}}}
    node.settings(**settings)
    make(node, "lock", str(repo.path), code=0)
    repo.commit({}, "r1")

    def lines(release: str) -> list[str]:
        return [
            f"{release}/site/profile/manifests/init.pp:3: neither the release nor ",
            f"{release}/site/profile/manifests/init.pp:4: neither the release nor ",
            f"{release}/site/profile/manifests/init.pp:7: puppetdb_query queries the bus, ",
            f"{release}/manifests/site.pp:1: neither the release nor ",
        ]

    def matching(warnings: list[str], release: str) -> list[str]:
        return [
            next((text for text in warnings if text.startswith(line)), f"nothing of {line}")
            for line in lines(release)
        ]

    checked = make(node, "check", str(repo.path), "--json").json["warnings"]
    assert [text.partition(" here has ")[2] for text in checked if " here has " in text] == [
        "the type computer (name puppetlabs/macdslocal_core in manifest.yaml)",
        "the type macauthorization (name puppetlabs/macdslocal_core in manifest.yaml)",
        "the type mcx (name puppetlabs/macdslocal_core in manifest.yaml)",
    ]
    assert matching(checked, str(repo.path)) == [text for text in checked if " (" in text][-4:]
    node.write("input.yaml", "app: control/tags/r1\nclasses: [profile]\n")
    node.run("stage", code=0)
    known = node.run("check", "--json").json["warnings"]
    assert matching(known, f"{node.root}/modules/control/tags/r1") == known
    node.write("base/macdslocal_core/lib/puppet/type/computer.rb", "")
    node.settings(**settings, basemodulepath=["base"])
    done = node.run("check", "--json", code=0)
    assert [text for text in done.json["warnings"] if "the type" in text] == []


USED = """\
class profile (Strings::Name $word) inherits profile::absent {
  include nginx, profile::present
  nginx::vhost { 'one line for a module': }
  class { ['::ntp::server', 'ntp::client']: }
  vcs { '/srv': }
  $words = [split_words('a b'), profile::words(), site_words(), environment::more(), split('a', '')]
  $words.join_words
  contain web, "${word}"
  web::site { 'a': }
  trigger { 'b': hosts => query_nodes('a') }
  if $word =~ Profile::Name { fail('none of these is missing') }
}
"""


def test_undefined_names_are_reported(node: Node, forge: Forge) -> None:
    repo, web = forge.repo("control"), forge.repo("web")
    web.commit(
        {
            "manifests/init.pp": "class web { include optional }\n",
            "manifests/site.pp": "define web::site { computer { 'a': realname => 'b' } }\n",
        },
        "r1",
    )
    repo.write(
        {
            "manifest.yaml": "moduledir: modules\nmodules:\n"
            f"  web: {{git: '{web.url}', tag: r1}}\n",
            "environment.conf": "modulepath = site:modules:$basemodulepath\n",
            "site/profile/manifests/init.pp": USED,
            "site/profile/manifests/present.pp": "class profile::present { }\n",
            "site/profile/functions/words.pp": "function profile::words() { [] }\n",
            "site/profile/types/name.pp": "type Profile::Name = String\n",
            "lib/puppet/functions/site_words.rb": "# a function of the environment\n",
            "functions/more.pp": "function environment::more() { [] }\n",
            "manifests/site.pp": "node default { include role::missing }\n",
            "hiera.yaml": "version: 5\ndefaults: {lookup_key: vault_key, datadir: data}\n"
            "hierarchy:\n  # data_hash: a_comment\n  - {name: a, data_hash: yaml_data, path: a}\n",
        }
    )
    settings = {"allow_file_urls": True, "sources": {"control": {"git": repo.url}}}
    node.settings(**settings)
    make(node, "lock", str(repo.path), code=0)
    repo.commit({}, "r1")

    def missing(warnings: list[str], release: str) -> list[str]:
        named = [text.partition(": neither ") for text in warnings if ": neither " in text]
        return [
            f"{where.removeprefix(f'{release}/')} {text.partition(' here has the ')[2]}"
            for where, _, text in named
        ]

    checked = make(node, "check", str(repo.path), "--json").json["warnings"]
    init, cure = "site/profile/manifests/init.pp", "(name its module in manifest.yaml)"
    expected = [
        f"{init}:1 data type Strings::Name {cure}",
        f"{init}:1 class profile::absent (correct the name, or lock another version of the module"
        " profile)",
        f"{init}:2 class nginx {cure}",
        f"{init}:4 class ntp::server {cure}",
        f"{init}:5 type vcs {cure}",
        f"{init}:6 function split_words {cure}",
        "modules/web/manifests/site.pp:1 type computer (name puppetlabs/macdslocal_core in"
        " manifest.yaml)",
        f"manifests/site.pp:1 class role::missing {cure}",
    ]
    backend = f"hiera.yaml function vault_key {cure}"
    assert sorted(missing(checked, str(repo.path))) == sorted([*expected, backend])
    node.write("input.yaml", "app: control/tags/r1\n")
    node.run("stage", code=0)
    done = node.run("check", "--json")
    release = f"{node.root}/modules/control/tags/r1"
    assert sorted(missing(done.json["warnings"], release)) == sorted(expected)
    node.write("base/nginx/manifests/init.pp", "class nginx { }\n")
    node.settings(**settings, basemodulepath=["base"])
    known = node.run("check", "--json").json["warnings"]
    assert [text for text in missing(known, release) if "type computer" not in text] == []
