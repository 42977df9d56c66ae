"""Exported resources from run to run: real Puppet, real keys, one bus."""

import json
import shlex
import tempfile
from pathlib import Path
from typing import Any

from localpuppet.base.machine.own_program import own_command
from localpuppet.fleet.inventory.outbox import Outbox
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member
from tests.rigs.node import Done, shell

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
    done = member.run("apply", *options)
    assert done.code == code, done.out + done.err
    # No agent is running: a separate process brings the entry to the bus.
    member.node.wait_until(Outbox(member.node.state).is_published)
    return done


def recorded(member: Member, name: str) -> dict[str, Any]:
    path: Path = member.node.state / "runs" / member.node.runs()[-1] / name
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def exports(member: Member, *words: str) -> list[str]:
    done = member.run("inventory", "exports", *words, "--json")
    assert done.code == 0, done.err
    return [f"{one['node'][0]} {one['type']}[{one['title']}]" for one in done.json["exports"]]


def test_the_pasted_command_of_another_root_collects_and_purges_nothing(fleet: Fleet) -> None:
    a, b = fleet.add("a", "b", puppet=True)
    directory = b.root / "collected"
    code = f'@@file {{ "{directory}/x": content => "exported" }}'
    a.node.app(code)
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
    code = '@@app::known { "host a": key => "ssh-ed25519 AAAA", path => "/etc/shadow" }'
    exporting(a, code)
    assert a.run("apply", "--noop").code == 0
    assert a.run("apply", "--tags", "nothing").code == 0
    assert Outbox(a.node.state).entry() is None  # not published
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
    assert a.run("apply").code == 1
    assert a.run("inventory", "publish").out == "published before: nothing changed\n"
    assert exports(b) == ["a App::Known[host a]"]

    exporting(b, "App::Known <<| |>>")
    refused = b.run("apply", "--noop")
    assert (refused.code, "no policy line names App::Known" in refused.out) == (1, True)
    assert "no policy line" in recorded(b, "collected.json")["collectors"][0]["reason"]
    lines = b.run("inventory", "exports", "--policy").out
    assert lines == f"# guarded drops path\n{a.name}\tApp::Known\t*\tguarded\n"
    b.node.write("policies/collect.policy", lines)
    done = applied(b)
    assert "host a ssh-ed25519 AAAA /nowhere" in done.out
    edges = a.run("kicks", "--json").json["edges"]
    assert [(one["from"], one["to"], one["by"]) for one in edges] == [(a.name, b.name, "collect")]
    (collected,) = recorded(b, "collected.json")["collectors"]
    assert collected["resources"] == [
        {
            "node": a.name,
            "resource": "App::Known[host a]",
            "how": "guarded",
            "dropped": ["path"],
        }
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


def test_a_forgotten_node_exports_nothing_any_more(fleet: Fleet) -> None:
    a, b = fleet.add("a", "b", puppet=True)
    b.node.write(
        "policies/puppet.policy", f"policy default deny\nallow\tchoria={a.name}\tforget\t*\t*\n"
    )
    exporting(a, '@@server { "web": hostname => "a" }')
    applied(a)
    assert exports(b) == ["a Server[web]"]
    assert a.run("inventory", "forget", str(a.name), "--yes").code == 0
    assert exports(b) == []
    assert b.run("inventory", "exports", str(a.name)).code == 2


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
    assert b.run("keys", "revoke", str(a.name), "--yes").code == 0
    assert exports(b) == []
