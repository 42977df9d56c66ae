"""Common uses of exported resources with a real Puppet: nodes a and b, one run each.

Core types that own a file and are purged (as `nagios_host` and its like), a file of fragments from
many nodes (as concat), virtual and exported resources side by side.
"""

import re
from pathlib import Path

from tests.fleet.exports.test_runs import applied, recorded
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member

# As nagios' types: a record in a file that many resources share; `target` names the file.
TYPE = """
Puppet::Type.newtype(:app_check) do
  ensurable
  newparam(:name, namevar: true)
  newproperty(:address)
  newproperty(:target) { defaultto { @resource.class.defaultprovider.default_target } }
end
"""
PROVIDER = """
require 'puppet/provider/parsedfile'
Puppet::Type.type(:app_check).provide(
  :parsed, parent: Puppet::Provider::ParsedFile, default_target: '%s', filetype: :flat
) do
  record_line :parsed, fields: %%w[name address], separator: ' ', joiner: ' '
end
"""
FRAGMENT = """
define app::fragment(String $target, String $order, String $content, String $directory = '/nowhere')
{
  file { "${directory}/${order}-${title}": content => "${content}\\n" }
}
"""
CONCAT = """
define app::concat(String $directory) {
  App::Fragment <<| target == $title |>> { directory => $directory }
  ~> exec { "/bin/sh -c 'cat ${directory}/*-* > ${directory}/all'": refreshonly => true }
}
"""
EXPORTING = """
@@app_check { 'a': ensure => present, address => '10.0.0.1', target => '/etc/shadow' }
@@app::fragment { 'of a': target => 'all', order => '2', content => 'a says Grüße ☃' }
@@app::fragment { 'elsewhere': target => 'other', order => '3', content => 'x' }
@@notify { 'of a': tag => 'told', loglevel => 'debug' }
@@notify { ['hidden 1', 'hidden 2', 'hidden 3', 'hidden 4']: tag => 'told' }
"""
COLLECTING = """
@@app_check {{ 'b': ensure => present, address => '10.0.0.2' }}
@@app::fragment {{ 'of b': target => 'all', order => '1', content => 'b says hello' }}
App_check <<| |>>
resources {{ 'app_check': purge => true }}
app::concat {{ 'all': directory => '{directory}' }}

@notify {{ 'virtual': }}
@notify {{ 'virtual by tag': tag => 'told' }}
@@notify {{ 'own, exported': tag => 'told' }}
@@notify {{ 'own, realized': }}
@@notify {{ 'own, only exported': }}
realize(Notify['virtual'], Notify['own, realized'])
notify {{ 'last': }}
Notify <<| tag == 'told' |>> {{ loglevel => 'warning' }} -> Notify['last']
"""


def give(member: Member, code: str, checks: Path) -> None:
    """Give a node a class, and the module's types."""
    member.node.app(code)
    lib = "modules/app/trunk/app"
    member.node.write(f"{lib}/lib/puppet/type/app_check.rb", TYPE)
    member.node.write(f"{lib}/lib/puppet/provider/app_check/parsed.rb", PROVIDER % checks)
    member.node.write(f"{lib}/manifests/fragment.pp", FRAGMENT)
    member.node.write(f"{lib}/manifests/concat.pp", CONCAT)


def test_purged_types_fragments_and_virtual_resources(fleet: Fleet, tmp_path: Path) -> None:
    a, b = fleet.add("a", "b", puppet=True)
    checks, directory = tmp_path / "checks", tmp_path / "fragments"
    directory.mkdir()
    checks.write_text("stale 10.9.9.9\na 10.6.6.6\n")
    give(a, EXPORTING, checks)
    give(b, COLLECTING.format(directory=directory), checks)
    lines = "*\tApp::Fragment Notify\t*of*\n*\tApp_check\t*\n"
    b.node.write("policies/collect.policy", lines)
    applied(a)
    assert checks.read_text() == "stale 10.9.9.9\na 10.6.6.6\n"  # exporting applies nothing

    out = applied(b).out
    # From many nodes in one file, at the place that this node wants, and nothing else stays there.
    left = [line for line in checks.read_text().splitlines() if not line.startswith("#")]
    assert sorted(left) == ["a 10.0.0.1", "b 10.0.0.2"]
    assert (directory / "all").read_text() == "b says hello\na says Grüße ☃\n"
    told = re.findall(r"Notify\[(.*?)\]/message: defined", out)
    assert sorted(told) == ["last", "of a", "own, exported", "own, realized", "virtual"]
    assert "Warning: /Stage[main]/App/Notify[of a]/message" in out
    assert out.index("Notify[of a]/message") < out.index("Notify[last]/message")
    taken = {
        one["type"]: [(got["resource"], got["dropped"]) for got in one["resources"]]
        for one in recorded(b, "collected.json")["collectors"]
    }
    assert taken == {
        "App_check": [("App_check[a]", ["target"])],
        "App::Fragment": [("App::Fragment[of a]", [])],
        "Notify": [("Notify[of a]", ["loglevel", "tag"])],
    }
    shown = " ".join(b.run("status").out.split())
    named = ", ".join(f"Notify[hidden {number}] of {a.name}" for number in (1, 2, 3))
    assert f"Left out {named}, 1 more: 'localpuppet why' says the reasons" in shown
    hidden = b.run("status", "--json").json["left_out"]
    assert [one["resource"] for one in hidden] == [
        f"Notify[hidden {number}]" for number in (1, 2, 3, 4)
    ]
    assert {one["reason"] for one in hidden} == {"no policy line covers this signer and title"}
    assert "Left out" not in a.run("status").out
