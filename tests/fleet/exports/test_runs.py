"""Exported resources from run to run: real Puppet, real keys, one bus.

Common uses are core types that own a file and are purged (as `nagios_host` and its like), a file of
fragments from many nodes (as concat), virtual and exported resources side by side, and the session
of docs/migrate/puppetdb.md.
"""

import json
import re
import shlex
import tempfile
from pathlib import Path
from typing import Any

from localpuppet.base.machine.own_program import own_command
from localpuppet.fleet.inventory.outbox import Outbox
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member
from tests.rigs.node import Done, shell
from tests.rigs.sessions import plain, session, typed

KNOWN = """
define known($key, $path = '/nowhere') {
  notify { "${title} ${key} ${path}": }
}
"""


def exporting(member: Member, code: str) -> None:
    """Give a node a class that exports; `known` is a type of its module."""
    member.node.app(code)
    defined = KNOWN.replace("define known", "define app::known")
    member.node.write("modules/app/trunk/app/manifests/known.pp", defined)


def applied(member: Member, *options: str, code: int = 0) -> Done:
    done = member.run("apply", *options, code=code)
    # No agent is running: a separate process brings the entry to the bus.
    member.node.wait_until(Outbox(member.node.state).is_published)
    return done


def recorded(member: Member, name: str) -> dict[str, Any]:
    path: Path = member.node.state / "runs" / member.node.runs()[-1] / name
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def exports(member: Member, *words: str) -> list[str]:
    done = member.run("inventory", "exports", *words, "--json", code=0)
    return [f"{one['node'][0]} {one['type']}[{one['title']}]" for one in done.json["exports"]]


def test_the_pasted_command_of_another_root_collects_and_purges_nothing(fleet: Fleet) -> None:
    a, b = fleet.add("a", "b", puppet=True)
    directory = b.root / "collected"
    a.node.app(f'@@file {{ "{directory}/x": content => "exported" }}')
    applied(a)
    b.node.app(
        f"file {{ '{directory}': ensure => directory, recurse => true, purge => true }}\n"
        "File <<| |>>"
    )
    b.node.write("policies/collect.policy", f"{a.name}\tFile\t{directory}/*\n")
    command = applied(b).out.splitlines()[0].removeprefix("# ")
    assert f"LOCALPUPPET_ROOT={b.root} " in command
    (directory / "x").write_text("edited")
    text = shell(f"LOCALPUPPET_COMMAND={shlex.quote(own_command())} {command}")
    assert (directory / "x").read_text() == "exported", text

    # The default root of a machine may have no settings: its empty bus has no answer for this root.
    with tempfile.TemporaryDirectory() as empty:  # its path is short: sockets are below a root
        other = command.replace(f"LOCALPUPPET_ROOT={b.root} ", f"LOCALPUPPET_ROOT={empty} ")
        text = shell(f"LOCALPUPPET_COMMAND={shlex.quote(own_command())} {other}")
        assert f"{empty}/localpuppet.yaml: cannot ask other nodes: no bus is configured" in text
        assert (directory / "x").exists()


def test_a_good_complete_run_publishes_exports_that_others_collect_by_policy(fleet: Fleet) -> None:
    a, b = fleet.add("a", "b", puppet=True)
    exporting(a, '@@app::known { "host a": key => "ssh-ed25519 AAAA", path => "/etc/shadow" }')
    command = applied(a).out.splitlines()[0].removeprefix("# ")
    assert "--storeconfigs --storeconfigs_backend localpuppet" in command
    assert exports(b) == ["a App::Known[host a]"]
    asked = b.run("query", '@@App::Known[~"^host"]{path="/etc/shadow"}')
    assert (asked.code, asked.out) == (0, f"NODE\n{a.name}\n"), asked.err
    shown = b.run("inventory", "exports", str(a.name), "--type", "app::known", "--title", "host a")
    assert shown.out.split() == ["NODE", "TYPE", "TITLE", a.name, "App::Known", "host", "a"]

    # What is pasted publishes nothing, and a failed run changes nothing.
    a.node.app('@@notify { "pasted": }')
    shell(command)
    a.node.app('@@notify { "failed": } exec { "/bin/false": }')
    a.run("apply", code=1)
    assert a.run("inventory", "publish").out == "published before: nothing changed\n"
    assert exports(b) == ["a App::Known[host a]"]

    exporting(b, "App::Known <<| |>>")
    refused = b.run("apply", "--noop")
    assert (refused.code, "no policy line names App::Known" in refused.out) == (1, True)
    assert "no policy line" in recorded(b, "collected.json")["collectors"][0]["reason"]
    lines = b.run("inventory", "exports", "--policy").out
    assert lines == f"# guarded drops path\n{a.name}\tApp::Known\t*\tguarded\n"
    b.node.write("policies/collect.policy", lines)
    assert "host a ssh-ed25519 AAAA /nowhere" in applied(b).out
    edges = a.run("kicks", "--json").json["edges"]
    assert [(one["from"], one["to"], one["by"]) for one in edges] == [(a.name, b.name, "collect")]
    (collected,) = recorded(b, "collected.json")["collectors"]
    assert collected["resources"] == [
        {"node": a.name, "resource": "App::Known[host a]", "how": "guarded", "dropped": ["path"]}
    ]
    for verb in ("why", "report"):
        told = b.run(verb).out
        assert f"1 resource of {a.name}" in told
        assert "    guarded, does not count of them: path\n" in told
    assert b.run("inventory", "exports", "--policy").out == ""

    a.node.app("notify { 'nothing to offer': }")
    applied(a)
    assert exports(b) == []
    assert b.run("inventory", "exports").out == "no node exports that\n"


def test_revoking_a_key_removes_the_exports_of_its_node(fleet: Fleet) -> None:
    a, b = fleet.add("a", "b", puppet=True)
    exporting(a, '@@server { "web": ipaddress => "10.0.0.1", ports => 8080 }')
    applied(a)
    assert exports(b) == ["a Server[web]"]
    b.node.app(
        """
        $web = servers_with_role('web')
        notify { "to ${web[0]['hostname']} ${web[0]['ipaddress']}:${web[0]['ports'][0]}": }
        Server <<| |>>
        """
    )
    assert "to a 10.0.0.1:8080" in applied(b).out
    b.run("keys", "revoke", str(a.name), "--yes", code=0)
    assert exports(b) == []


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


def give_types(member: Member, code: str, checks: Path) -> None:
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
    give_types(a, EXPORTING, checks)
    give_types(b, COLLECTING.format(directory=directory), checks)
    b.node.write("policies/collect.policy", "*\tApp::Fragment Notify\t*of*\n*\tApp_check\t*\n")
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
    plain: dict[str, Any] = {"App::Fragment": [("App::Fragment[of a]", [])]}
    guarded = {"App_check": [("App_check[a]", ["target"])]}
    assert taken == {**plain, **guarded, "Notify": [("Notify[of a]", ["loglevel", "tag"])]}
    shown = " ".join(b.run("status").out.split())
    named = ", ".join(f"Notify[hidden {number}] of {a.name}" for number in (1, 2, 3))
    assert f"Left out {named}, 1 more: 'localpuppet why' says the reasons" in shown
    hidden = b.run("status", "--json").json["left_out"]
    found = [one["resource"] for one in hidden]
    assert found == [f"Notify[hidden {number}]" for number in (1, 2, 3, 4)]
    assert {one["reason"] for one in hidden} == {"no policy line covers this signer and title"}
    assert "Left out" not in a.run("status").out


# The manifests that the page supposes.
MEMBER = """
define shop::member(Integer $port, Optional[String] $service = undef) {
  notify { "${service}: ${title}:${port}": }
}
"""
WEB = "@@shop::member { 'web01': port => 8080, tag => 'shop' }"
BALANCER = "Shop::Member <<| tag == 'shop' |>> { service => 'shop' }"


def give(member: Member, code: str) -> None:
    member.node.app(code, name="shop")
    member.node.write("modules/shop/trunk/shop/manifests/member.pp", MEMBER)
    (member.root / "policies").mkdir()


def test_the_session_is_true(fleet: Fleet) -> None:
    web, balancer = fleet.add("web01", "lb01", puppet=True)
    give(web, WEB)
    give(balancer, BALANCER)
    applied(web)
    node = balancer.node
    for _, command, said in session("migrate/puppetdb.md", ["lb01# "]):
        told = typed(node, command, root=node.root, directory=node.root)
        assert plain(told.splitlines()) == plain(said), command


def test_a_forgotten_node_exports_nothing_any_more(fleet: Fleet) -> None:
    a, b = fleet.add("a", "b", puppet=True)
    b.node.write(
        "policies/puppet.policy", f"policy default deny\nallow\tchoria={a.name}\tforget\t*\t*\n"
    )
    exporting(a, '@@server { "web": hostname => "a" }')
    applied(a)
    assert exports(b) == ["a Server[web]"]
    a.run("inventory", "forget", str(a.name), "--yes", code=0)
    assert exports(b) == []
    b.run("inventory", "exports", str(a.name), code=2)
