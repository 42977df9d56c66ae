"""What a collector takes from the exports of nodes, also of a compromised node.

docs/reference/guarded-lines.md lists what a guarded line drops of the real Puppet's types.
"""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.cli.node_records import SHOWN, collectors
from localpuppet.fleet.exports.collectors import (
    DEFAULT,
    MAX_LEFT_OUT,
    MAX_TAKEN,
    CollectMode,
    CollectorResult,
    CollectPolicy,
    Search,
    choose,
)
from localpuppet.fleet.exports.recording import CollectorRecord, answered
from localpuppet.fleet.exports.resource import OF_TYPES, Offer, is_guarded
from tests import rigs
from tests.fleet.make import offer
from tests.rigs.guarded_page import PAGE, core_types, page

ME = "me.example.com"
EVIL = "evil"


def chosen(*offers: Offer, kind: str, lines: str | None, search: Any = None) -> CollectorResult:
    policy = DEFAULT if lines is None else CollectPolicy.parse(lines.encode(), where="p")
    return choose(offers, kind, Search.parse(search), me=ME, policy=policy)


def refs(choice: CollectorResult) -> list[str]:
    return [f"{one.node.partition('.')[0]} {one.resource.ref}" for one in choice.taken]


def test_own_exports_and_other_types_are_not_collected() -> None:
    offers = [offer("me", "Host", "a"), offer("b", "Host", "b"), offer("b", "File", "/x")]
    assert refs(chosen(*offers, kind="Host", lines="*\tHost\t*")) == ["b Host[b]"]


def test_a_type_without_a_line_stops_the_run_with_the_line() -> None:
    with pytest.raises(InvalidInputError) as caught:
        chosen(offer(EVIL, "Exec", "rm -rf /", command="x"), kind="Exec", lines=None)
    said = str(caught.value)
    assert "Exec[rm -rf /]" in said
    assert "evil.example.com exports it" in said
    assert "evil.example.com<TAB>Exec<TAB>*<TAB>guarded" in said
    # An export that no collector asks for stops no run.
    other = ["tag", "==", "other"]
    nothing = chosen(offer(EVIL, "Exec", "x"), kind="Exec", lines=None, search=other)
    assert nothing == CollectorResult(taken=(), left_out=())


def test_a_signer_without_a_line_is_left_out_before_titles_are_compared() -> None:
    good, evil = (
        offer("web01", "Host", "www", ip="10.0.0.1"),
        offer(EVIL, "Host", "www", ip="6.6.6.6"),
    )
    choice = chosen(good, evil, kind="Host", lines="web01.example.com\tHost\t*")
    assert refs(choice) == ["web01 Host[www]"]
    (left,) = choice.left_out
    assert (left.node, left.resource) == ("evil.example.com", "Host[www]")
    assert "no policy line covers this signer and title" in left.reason


def test_allowed_signers_that_clash_stop_the_run_with_both_places() -> None:
    with pytest.raises(InvalidInputError) as caught:
        chosen(offer("a", "Host", "x"), offer("b", "Host", "x"), kind="Host", lines="*\tHost\t*")
    said = str(caught.value)
    for part in ("Host[x]", "a.example.com (/etc/puppet/modules/app/init.pp:3)", "b.example.com ("):
        assert part in said


def test_guarded_parameters_do_not_count() -> None:
    dangerous: dict[str, Any] = {"name": "root", "alias": "sshd", "provider": "x", "tag": "x"}
    dangerous |= {"require": "File[/x]", "notify": "Service[x]", "target": "/etc/sudoers"}
    dangerous |= {"config_file": "/etc/sudoers", "log_dir": "/", "noop": True}
    dangerous |= {"stage": "last", "loglevel": "debug"}
    kind = "Concat::Fragment"
    fragment = offer(EVIL, kind, "x", order="10", **dangerous)
    (taken,) = chosen(fragment, kind=kind, lines=f"evil.example.com\t{kind}\t*").taken
    assert dict(taken.resource.parameters) == {"order": "10"}
    assert taken.dropped == tuple(sorted(dangerous))
    evil = offer(EVIL, "Host", "x", **dangerous)
    (whole,) = chosen(evil, kind="Host", lines="*\tHost\t*\tas-is").taken
    assert whole.how is CollectMode.AS_IS
    assert dict(whole.resource.parameters) == dangerous


@pytest.mark.parametrize(
    ("target", "search", "counts"),
    [
        ("/etc/motd", ["target", "==", "/etc/motd"], True),
        ("/etc/motd", [["tag", "==", "app"], "and", ["target", "==", "/etc/motd"]], True),
        ("/etc/shadow", [["target", "==", "/etc/motd"], "or", ["tag", "==", "app"]], False),
        ("/etc/shadow", ["target", "!=", "/etc/motd"], False),
    ],
)
def test_guarded_takes_a_target_only_if_the_collector_asks_for_its_exact_value(
    target: Any, search: Any, *, counts: bool
) -> None:
    lines = "*\tConcat::Fragment\t*"
    evil = offer(EVIL, "Concat::Fragment", "x", target=target)
    (taken,) = chosen(evil, kind="Concat::Fragment", lines=lines, search=search).taken
    assert dict(taken.resource.parameters) == ({"target": target} if counts else {})


@pytest.mark.parametrize(
    ("title", "parameters", "reason"),
    [
        ("a..b", {}, "title"),
        ("x", {"content": "a\nroot ALL"}, "content"),
        ("x", {"content": ["a", {"b": "../../etc"}]}, "content"),
        ("x", {"content": {"a\rb": 1}}, "content"),
        ("x", {"content": {"__ptype": "Binary", "__pvalue": "YQpi"}}, "content"),
    ],
)
def test_guarded_values_neither_leave_their_line_nor_their_directory(
    title: str, parameters: dict[str, Any], reason: str
) -> None:
    good = offer("web01", "Host", "good")
    choice = chosen(good, offer(EVIL, "Host", title, **parameters), kind="Host", lines="*\tHost\t*")
    assert refs(choice) == ["web01 Host[good]"]
    assert reason in choice.left_out[0].reason


RUNS = "/bin/sh -c evil"


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        # They run no program of their exporter.
        ("File", "validate_cmd", RUNS),
        ("Concat", "validate_cmd", RUNS),
        ("Service", "start", RUNS),
        ("Package", "install_options", RUNS),
        ("Exec", "environment", RUNS),
        ("Nagios_command", "command_line", RUNS),
        ("Service", "flags", RUNS),
        ("Service", "pattern", RUNS),
        ("Service", "hasstatus", RUNS),
        ("Augeas", "changes", RUNS),
        # They stay within their title.
        ("Host", "host_aliases", ["db01", "ldap"]),
        ("Sshkey", "host_aliases", ["db01"]),
        ("Augeas", "incl", "/etc/sudoers"),
        ("Augeas", "context", "/files/etc/sudoers"),
        ("Augeas", "lens", "Sudoers.lns"),
        ("File", "recurse", True),
        ("File", "purge", True),
        ("File", "force", True),
        ("Tidy", "recurse", True),
        ("User", "allowdupe", True),
        # A line for titles below /srv does not allow /etc/motd as their path, though asked for.
        *(("File", name, "web") for name in ("path", "name", "tag", "alias", "command")),
        pytest.param("Host", "target", "../\n", id="it may hold anything: it does not count"),
    ],
)
def test_guarded_drops_dangerous_parameters(kind: str, name: str, value: Any) -> None:
    evil = offer(EVIL, kind, "/srv/x", "web", comment="a", **{name: value})
    asked = [["tag", "==", "web"], "and", [[name, "==", value], "or", ["tag", "!=", "x"]]]
    for search in (None, asked):
        (taken,) = chosen(evil, kind=kind, lines=f"*\t{kind}\t/srv/*", search=search).taken
        assert taken.dropped == (name,)
        assert dict(taken.resource.parameters) == {"comment": "a"}
    (whole,) = chosen(evil, kind=kind, lines=f"*\t{kind}\t/srv/*\tas-is").taken
    assert dict(whole.resource.parameters) == {"comment": "a", name: value}


@pytest.mark.parametrize(
    ("content", "counts"),
    [("a\n", True), ("a\n\n", False), ("a\nb\n", False), ("a\r\n", False), (["a\n"], False)],
)
def test_guarded_content_may_end_in_one_newline(content: Any, *, counts: bool) -> None:
    fragment = offer("web01", "Concat::Fragment", "x", content=content)
    choice = chosen(fragment, kind="Concat::Fragment", lines="*\tConcat::Fragment\t*")
    assert bool(choice.taken) is counts
    if counts:
        assert choice.taken[0].resource.parameters["content"] == content
    other = offer("web01", "Host", "x", ip="10.0.0.1\n")
    assert chosen(other, kind="Host", lines="*\tHost\t*").taken == ()


def test_guarded_takes_parameters_that_are_dangerous_only_for_other_types() -> None:
    service = offer("web01", "Nagios_service", "x", status="1", environment="a")
    (taken,) = chosen(service, kind="Nagios_service", lines="*\tNagios_service\t*").taken
    assert taken.dropped == ()


@pytest.mark.parametrize("ensure", ["/etc/cron.d", "sub/dir", ["/etc"]])
def test_a_guarded_file_is_no_link_to_elsewhere(ensure: Any) -> None:
    """With one at /srv/d, the title /srv/d/evil would be within the line and not below /srv."""
    evil = offer(EVIL, "File", "/srv/d", ensure=ensure)
    choice = chosen(evil, kind="File", lines="*\tFile\t/srv/*")
    assert choice.taken == ()
    assert choice.left_out[0].reason.startswith("its ensure is a path, which a guarded line")
    good = offer("web01", "File", "/srv/d", ensure="directory")
    assert len(chosen(good, kind="File", lines="*\tFile\t/srv/*").taken) == 1


@pytest.mark.parametrize(
    ("names", "guarded"),
    [
        (["path", "mode", "conf_dir", "subscribe", "command", "onlyif"], True),
        (["content", "paths", "dir", "ports", "ensure"], False),
    ],
)
def test_names_of_guarded_parameters(names: list[str], *, guarded: bool) -> None:
    assert {name: is_guarded(name) for name in names} == dict.fromkeys(names, guarded)


def test_nodes_without_a_line_fill_only_a_limited_list() -> None:
    many = [offer(EVIL, "Host", f"h{n}") for n in range(MAX_LEFT_OUT + 2)]
    choice = chosen(*many, kind="Host", lines="a.example.com\tHost\t*\n")
    assert (choice.taken, len(choice.left_out), choice.more_left_out) == ((), MAX_LEFT_OUT, 2)
    noted = answered(CollectorRecord(type="Host", filter=None, at="2026-11-20T14:00:00Z"), choice)
    assert CollectorRecord.from_dict(noted.to_dict()) == noted
    assert f"and {MAX_LEFT_OUT + 2 - SHOWN} more are left out" in "\n".join(collectors([noted]))


def test_too_large_exports_are_an_error_that_names_the_largest_node() -> None:
    half = MAX_TAKEN // 2
    small, *large = (
        replace(offer(node, "Host", title), size=size)
        for node, title, size in (("a", "1", 100), ("b", "2", half), ("b", "3", half))
    )
    lines = "*\tHost\t*\n"
    with pytest.raises(InvalidInputError, match=r"more than 64 MiB of Host.* 65536 KiB \(b\."):
        chosen(small, *large, kind="Host", lines=lines)
    assert refs(chosen(*large, kind="Host", lines=lines)) == ["b Host[2]", "b Host[3]"]


RUBY = Path(rigs.__file__).with_name("core_types.rb")


def test_the_page_describes_what_the_guard_does() -> None:
    assert PAGE.read_text("utf-8") == page(), "run scripts/guarded"


@pytest.mark.puppet
def test_the_page_has_every_parameter_of_the_installed_puppets_types() -> None:
    done = subprocess.run(["ruby", RUBY], capture_output=True, check=True)
    known = core_types()
    for kind, names in json.loads(done.stdout).items():
        assert set(names) <= set(known[kind]), kind


@pytest.mark.parametrize("kind", sorted(OF_TYPES))
def test_guarded_parameters_of_a_type_exist(kind: str) -> None:
    assert OF_TYPES[kind] <= set(core_types()[kind])


def test_a_type_lists_no_parameter_that_is_guarded_for_all_types() -> None:
    assert [name for names in OF_TYPES.values() for name in names if is_guarded(name)] == []
