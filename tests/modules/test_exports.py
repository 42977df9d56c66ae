"""Exported resources with the real Puppet: what a catalog exports and what collectors return."""

import json
import os
from collections.abc import Sequence
from typing import Any

import pytest

from localpuppet.base.errors import LocalpuppetError
from localpuppet.fleet.exports.collectors import CollectPolicy, Search, choose
from localpuppet.fleet.exports.resource import Offer
from tests.fleet.make import offer
from tests.rigs.agent_peer import Answer, Peer, Question
from tests.rigs.bench import MODULES, Applied, Bench
from tests.rigs.node import completed

STORECONFIGS = ("--storeconfigs", "--storeconfigs_backend", "localpuppet")
POLICY = "*\tNotify Concat::Fragment Host File Vhost Server\t*\tas-is\n"
RUN = {"LOCALPUPPET_RUN": "20261120T140000.000000Z-00aa"}


def agent(bench: Bench, *offers: Offer, policy: str = POLICY) -> Peer:
    """Answer as the agent of a node with these offers does."""
    rules = CollectPolicy.parse(policy.encode(), where="collect.policy")

    def answer(question: Question) -> Answer:
        if question["verb"] == "export":
            return {"ok": True, "count": 1}
        search = Search.parse(question["filter"])
        try:
            found = choose(offers, question["type"], search, me="me.example.com", policy=rules)
        except LocalpuppetError as error:
            return {"ok": False, "error": str(error)}
        resources = [
            {
                "node": one.node,
                "how": str(one.how),
                "title": one.resource.title,
                "parameters": dict(one.resource.parameters),
                "file": one.resource.file,
                "line": one.resource.line,
            }
            for one in found.taken
        ]
        return {"ok": True, "resources": resources, "warnings": []}

    return bench.listen(answer)


def apply(bench: Bench, code: str, *options: str, **env: str) -> Applied:
    return bench.apply(code, *STORECONFIGS, *options, **env)


def exported(bench: Bench) -> Sequence[dict[str, Any]]:
    """Return the exports that the catalog left with its run."""
    found: list[dict[str, Any]] = json.loads(
        (bench.directory / "public" / "exports.json").read_text("utf-8")
    )["resources"]
    return found


def test_puppet_leaves_the_exports_of_a_catalog_with_its_run(bench: Bench) -> None:
    peer = agent(bench)
    done = apply(
        bench,
        """
        define vhost($port, $names = []) { notify { "vhost ${title} ${port}": } }
        notify { 'n': }
        @@vhost { 'größe.example.com': port => 8080, names => ['a', { 'b' => 1.5 }] }
        @@file { '/tmp/no-such/x':
          content => Binary.new('/wA='),
          mode => '0600', tag => ['Web', 'b'], require => Notify['n'],
        }
        @notify { 'virtual': }
        realize(Notify['virtual'])
        """,
        **RUN,
    )
    assert done.code == 2, done.text
    assert "vhost" not in done.text  # Puppet does not apply an exported resource
    assert done.resource("Notify[virtual]")["changed"]
    file, vhost = sorted(exported(bench), key=lambda one: str(one["type"]))
    assert (vhost["type"], vhost["title"]) == ("Vhost", "größe.example.com")
    assert vhost["parameters"] == {"port": 8080, "names": ["a", {"b": 1.5}]}
    assert file["parameters"] == {
        "content": {"__ptype": "Binary", "__pvalue": "/wA="},
        "mode": "0600",
        "tag": ["Web", "b"],
        "require": "Notify[n]",
    }
    assert {"web", "b", "file"} <= set(file["tags"])
    assert file["line"] == 5
    assert peer.asked("export") == [{"verb": "export", "run": RUN["LOCALPUPPET_RUN"]}]


def test_puppet_without_a_run_publishes_no_exports_and_needs_no_agent(bench: Bench) -> None:
    done = apply(bench, "@@notify { 'x': }", LOCALPUPPET_COMMAND="no-such")
    assert done.code == 0, done.text
    assert not (bench.directory / "public" / "exports.json").exists()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("Sensitive('secret-x')", "its message is Sensitive"),
        ("{ 'a' => [Sensitive('secret-x')] }", "its message is Sensitive"),
        ("Deferred('sprintf', ['secret-x'])", "its message is a Deferred"),
        ("Timestamp()", "its message is a Timestamp"),
        ("{ 1 => 'secret-x' }", "its message has a key that cannot be exported"),
        ("{ '__ptype' => 'Sensitive' }", "its message has a key that cannot be exported"),
    ],
)
def test_an_error_names_the_exported_resource_with_a_value_that_is_not_data(
    bench: Bench, value: str, reason: str
) -> None:
    agent(bench)
    done = apply(bench, f"notify {{ 'before': }}\n@@notify {{ 'x': message => {value} }}", **RUN)
    assert done.code == 1
    assert f"Notify[x] cannot be exported (site.pp:2): {reason}" in done.text.replace(
        f"{bench.directory}/", ""
    )
    assert "Notify[before]" not in done.text  # Puppet applied no resource
    assert "secret-x" not in done.text


def test_if_the_agent_refuses_the_exports_puppet_applies_no_resource(bench: Bench) -> None:
    bench.listen(lambda _: {"ok": False, "error": "exports: are too many"})
    done = apply(bench, "notify { 'before': } @@notify { 'x': }", **RUN)
    assert (done.code, "exports: are too many" in done.errors[0]) == (1, True), done.text
    assert "Notify[before]" not in done.text


def test_collectors_return_matching_resources(bench: Bench) -> None:
    peer = agent(
        bench,
        offer("web01", "Notify", "one", "web", message="a"),
        offer("web02", "Notify", "two", "web", "eu-1", message="b"),
        offer("db01", "Notify", "three", "db", message="c"),
        offer("me", "Notify", "own", "web", message="never"),
        offer("web01", "Vhost", "v1", port=8080, before="Notify[last]"),
        offer("web01", "File", "/tmp/no-such-directory/x", content="x"),
    )
    done = apply(
        bench,
        """
        define vhost($port) { notify { "vhost ${title} ${port}": } }
        $region = 'eu'
        @@notify { 'own': message => 'mine', tag => 'web' }
        notify { 'first': }
        notify { 'last': }
        Notify['first']
        -> Notify <<| tag == 'Web' and (tag == "${region}-1" or title == 'one') |>>
        Notify <<| tag == 'web' |>> { withpath => true }
        Notify <<| message == 'c' or message == 'nosuch' |>> { message => 'overridden' }
        Vhost <<| port != 80 |>>
        """,
    )
    assert done.code == 2, done.text
    defined = [line for line in done.lines if "/message: defined" in line]
    for part in ("Notify[one]", "Notify[two]", "Notify[three]", "Notify[vhost v1 8080]"):
        assert any(part in line for line in defined), part
    assert "'overridden'" in done.text
    assert sum("Notify[own]" in line for line in defined) == 1
    assert "never" not in done.text
    order = [line.partition("Notify[")[2].partition("]")[0] for line in defined]
    assert order.index("first") < order.index("one")
    assert order.index("vhost v1 8080") < order.index("last")
    # Puppet evaluates collectors repeatedly, but asks the agent once for each.
    asked = [json.dumps([one["type"], one["filter"]]) for one in peer.asked("collect")]
    assert sorted(asked) == sorted(set(asked))


def test_fragments_of_many_nodes_become_one_file(bench: Bench) -> None:
    agent(
        bench,
        *(
            offer(f"web0{n}", "Concat::Fragment", f"lb_web0{n}", "lb", content=f"w{n}", target="/x")
            for n in (2, 1)
        ),
        policy="*.example.com\tConcat::Fragment\tlb_*\n",
    )
    target = bench.directory / "lb.cfg"
    done = apply(
        bench,
        f"""
        define concat::fragment($target, $content, $order = '10') {{
          notify {{ "${{order}} ${{target}} ${{content}}": }}
        }}
        Concat::Fragment <<| tag == 'lb' |>> {{ target => '{target}' }}
        """,
    )
    assert done.code == 2, done.text
    for n in (1, 2):
        assert f"10 {target} w{n}" in done.text


def test_a_collected_resource_is_named_only_by_its_title(bench: Bench) -> None:
    """A policy line covers titles, so other name parameters of a type do not count."""
    types = bench.directory / "modules" / "demo" / "lib" / "puppet" / "type"
    types.mkdir(parents=True)
    (types / "demo_host.rb").write_text(
        "Puppet::Type.newtype(:demo_host) { newparam(:host_name, namevar: true); newparam(:text) }"
    )
    (types / "demo_key.rb").write_text(
        "Puppet::Type.newtype(:demo_key) {\n"
        "  newparam(:name, namevar: true); newparam(:sort, namevar: true)\n"
        "  def self.title_patterns; [[/(.*)/m, [[:name]]]]; end\n}"
    )
    agent(
        bench,
        offer("evil", "Demo_host", "evil", host_name="db01", text="x"),
        offer("web", "Demo_host", "web", host_name="web", text="x"),
        offer("web", "Demo_key", "web", sort="rsa"),
        policy="*\tDemo_host Demo_key\t*\n",
    )
    shown = "inline_template('<%= scope.compiler.catalog.resource(\"Demo_key[web]\")[:sort] %>')"
    done = apply(
        bench,
        f"""
        define last {{ notice("sort ${{{shown}}}") }}
        Demo_host <<| |>> Demo_key <<| |>>
        last {{ 'x': }}
        """,
        "--modulepath",
        f"{MODULES}:{types.parents[3]}",
    )
    assert done.code == 0, done.text
    warnings = [line for line in done.lines if "does not count" in line]
    assert warnings == [
        "Warning: Demo_host[evil] of evil.example.com: its host_name does not count"
    ]
    assert "sort rsa" in done.text


def test_a_collector_compares_with_a_hash(bench: Bench) -> None:
    opts = {"a": [1, {"b": "c"}], "d": True}
    peer = agent(
        bench,
        offer("web01", "Vhost", "same", port=1, opts=opts),
        offer("web02", "Vhost", "other", port=1, opts={**opts, "d": False}),
    )
    done = apply(
        bench,
        """
        define vhost($port, $opts) { notify { "vhost ${title}": } }
        $o = { 'd' => true, 'a' => [1, { 'b' => 'c' }] }
        Vhost <<| opts == $o |>>
        """,
    )
    assert done.code == 2, done.text
    assert "vhost same" in done.text
    assert "vhost other" not in done.text
    assert peer.asked("collect")[0]["filter"] == ["opts", "==", opts]


def test_binary_values_and_texts_arrive_unchanged(bench: Bench) -> None:
    target = bench.directory / "collected"
    binary = {"__ptype": "Binary", "__pvalue": "/wA="}
    agent(
        bench,
        offer("a", "File", f"{target}.bin", content=binary),
        offer("a", "File", f"{target}.txt", content="größe\n"),
    )
    done = apply(bench, "File <<| |>> { mode => '0600' }")
    assert done.code == 2, done.text
    assert (bench.directory / "collected.bin").read_bytes() == b"\xff\x00"
    assert (bench.directory / "collected.txt").read_text("utf-8") == "größe\n"


@pytest.mark.parametrize(
    ("code", "parts"),
    [
        (
            "Notify <<| tag == 'a' |>> Notify <<| tag == 'b' |>>",
            ["Notify[same] is exported by", "a.example.com", "b.example.com", "init.pp:3"],
        ),
        (
            "notify { 'same': } Notify <<| tag == 'a' |>>",
            ["Notify[same] is exported by a.example.com", "declared here", "site.pp:1"],
        ),
        (
            "Notify <<| |>>",
            ["Notify[same]: is exported by a.example.com", "and by b.example.com", "init.pp:3"],
        ),
    ],
)
def test_an_error_names_both_declarations(bench: Bench, code: str, parts: list[str]) -> None:
    agent(bench, offer("a", "Notify", "same", "a"), offer("b", "Notify", "same", "b"))
    done = apply(bench, code)
    assert done.code == 1
    for part in parts:
        assert part in done.text


def test_a_catalog_without_collectors_needs_no_agent(bench: Bench) -> None:
    done = apply(bench, "notify { 'x': }", LOCALPUPPET_COMMAND="no-such", **RUN)
    assert done.code == 2, done.text


def test_puppet_compiles_no_catalog_if_a_collector_gets_no_answer(bench: Bench) -> None:
    done = apply(bench, "Notify <<| |>>", LOCALPUPPET_COMMAND="no-such")
    assert (done.code, "no-such: cannot be run" in done.text) == (1, True)
    bench.listen(lambda _: {"ok": True})
    done = apply(bench, "Notify <<| |>>")
    assert (done.code, "holds no resources" in done.text) == (1, True)


@pytest.mark.puppet
def test_the_agent_of_the_default_root_does_not_answer_for_another_root() -> None:
    ruby = "require 'puppet'; require ARGV.first; PuppetX::Localpuppet::Agent.call('collect', {})"
    library = MODULES / "localpuppet" / "lib" / "puppet_x" / "localpuppet" / "agent"
    path = {"PATH": os.environ["PATH"], "LOCALPUPPET_COMMAND": "no-such"}
    for root, reason in (
        ({}, "no agent listens on /run/localpuppet/agent.sock"),
        ({"LOCALPUPPET_ROOT": "/other"}, "LOCALPUPPET_SOCKET is not set"),
    ):
        done = completed("ruby", "-e", ruby, library, check=False, env={**path, **root})
        assert f"cannot be run: No such file or directory, and {reason}" in done.err


def test_applying_a_server_resource_changes_nothing(bench: Bench) -> None:
    agent(bench, offer("web01", "Server", "web", hostname="web01", ports=[80, 443]))
    done = apply(bench, "server { 'mine': fqdn => 'x', ipaddress => '10.0.0.1' } Server <<| |>>")
    assert done.code == 0, done.text
    assert done.was_left_alone("Server[web]")
