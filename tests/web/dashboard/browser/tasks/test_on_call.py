"""The tasks of an operator on call, with real nodes: the answer, and how many clicks it takes.

To type into a field counts as one click. Tests that change the site come last.
"""

from collections.abc import Iterator

import pytest

from tests.rigs.waiting import wait_until
from tests.web.dashboard.browser.tasks.small_site import Operator, SmallSite, code

LB, DB, WEB = "lb01.example.com", "db01.example.com", "web01.example.com"
FIND = ".find input"


def clicks(operator: Operator, number: int) -> None:
    """Assert how many clicks the task took, and begin the next one."""
    assert operator.clicks == number
    operator.begins()


def test_which_node_failed_and_why_takes_no_click(operator: Operator) -> None:
    error = "Could not find class ::site::tls for"
    operator.reads("#failed", LB, error, "site/manifests/lb.pp:4", "failing since")
    operator.reads("#failed", DB, "site/manifests/db.pp:4", "instead of one of [0]")
    clicks(operator, 0)
    operator.follow("Nodes")
    operator.reads(f"[id='row-{LB}']", "compile failed", error)
    clicks(operator, 1)


def test_the_full_message_takes_one_click(operator: Operator) -> None:
    operator.click(f"#failed a[href^='/nodes/{LB}'][href*='/runs/']")
    operator.reads("#details .error", f"Could not find class ::site::tls for {LB}")
    operator.reads(".diff .error", "include site::tls")
    operator.reads("main", "Last runs", "Cause", "/rollout/")
    clicks(operator, 1)


def test_what_is_late_and_why_takes_no_click(operator: Operator) -> None:
    operator.reads("#late", "bak01.example.com", "late since", "interval 30m", "site/tags/r1")
    operator.reads("#unresponsive", "mon01.example.com", "no agent since", "site/tags/r1")
    operator.reads("#on-hold", "mon01.example.com", "the disk is replaced", "choria=alice")
    clicks(operator, 0)


def test_who_did_what_takes_one_click(operator: Operator) -> None:
    operator.click("main a[href='/audit']")
    operator.reads("tbody tr", "choria=alice", "Put on hold", "mon01", "the disk is replaced")
    rollout = ("choria=alice", "Start a rollout", "site/tags/r2 →", "and 1 more", "requests")
    operator.reads("tbody tr", *rollout)
    clicks(operator, 1)


def test_what_happened_on_a_node_on_a_day_takes_two_clicks(operator: Operator) -> None:
    operator.click(f"#failed a[href='/nodes/{DB}']")
    operator.reads("#runs", "failed", "changed")
    operator.click("ol.days a.failed")
    operator.reads("h1", "Runs", DB)
    operator.reads("#list", "failed Exec[", "changed File[", "/rollout/", "site/tags/r1")
    clicks(operator, 2)


def test_which_nodes_changed_a_file_takes_one_search(operator: Operator, site: SmallSite) -> None:
    file = site.member("web02").root / "web.conf"
    operator.types(FIND, f"which nodes changed File[{file}]\n")
    operator.reads("h1", "Run of")  # the only match
    operator.reads("main", "web.conf")
    clicks(operator, 1)
    operator.types(FIND, "web.conf\n")
    operator.reads("section", "Resources in runs", f"on {WEB}", "on web02.example.com", "web.pp:3")
    clicks(operator, 1)
    operator.types(FIND, "disk is rep\n")
    operator.reads("h1", "mon01")
    clicks(operator, 1)
    operator.types(FIND, "failed\n")
    operator.reads("main", "Results of last runs", "compile failed 1 node")
    clicks(operator, 1)


def test_two_nodes_side_by_side_take_one_search(operator: Operator) -> None:
    operator.types(FIND, "web01 lb01\n")
    operator.reads("h1", "side by side")
    operator.reads("table", "compile failed", "web", "lb", "site::web", "yes")
    clicks(operator, 1)


def test_what_a_release_does_to_the_balancers_takes_two_clicks(operator: Operator) -> None:
    operator.follow("Releases")
    operator.follow("compare with previous")
    operator.reads("#texts", "site/manifests/lb.pp", "-  file", "+  include site::tls")
    clicks(operator, 2)


def test_a_hold_with_a_reason_takes_four_clicks_and_its_end_two(
    operator: Operator, site: SmallSite
) -> None:
    operator.click(f"#failed a[href='/nodes/{DB}']")
    operator.follow("Put on hold")
    operator.types("#message", "the database is migrated")
    operator.click("button.do")
    operator.reads("main table", DB, "accepted")
    assert site.member("db01").holds() == ["the database is migrated"]
    assert operator.clicks == 4
    operator.follow("End these holds")
    operator.click("button.do")
    operator.reads("main table", DB, "accepted")
    assert site.member("db01").holds() == []
    clicks(operator, 6)
    operator.click("main a[href='/audit']")
    operator.reads("tbody tr", "choria=alice", "Put on hold", "the database is migrated", "db01")
    operator.reads("tbody tr", "choria=alice", "End own hold", "db01")


def test_a_noop_run_takes_three_clicks(operator: Operator, site: SmallSite) -> None:
    member = site.member("db01")
    before = len(member.node.runs())
    operator.click(f"#failed a[href='/nodes/{DB}']")
    operator.follow("Noop run")
    operator.click("button.do")
    operator.reads("main table", DB, "accepted")
    clicks(operator, 3)
    wait_until(lambda: len(member.node.runs()) > before, lambda: f"{member} has no new run")


@pytest.fixture
def waiting(site: SmallSite) -> Iterator[str]:
    """Run a rollout from a terminal that waits for its check; return its id."""
    gate = site.alice.node.write("gate", "")
    check = f"/bin/sh -c 'while [ -e {gate} ]; do sleep 0.05; done'"
    words = (f"{WEB},web02.example.com", "--order", "none", "--canary", "1", "--check", check)
    controller = site.alice.node.start("rollout", "run", *words)
    yield "rollout"
    gate.unlink(missing_ok=True)
    site.alice.node.finish(controller)


@pytest.mark.usefixtures("waiting")
def test_why_a_rollout_waits_and_who_stopped_it_take_one_click_each(
    operator: Operator, site: SmallSite
) -> None:
    operator.click("#rollouts a")
    operator.reads("#rollout", "running")
    operator.reads("main", "being checked")
    clicks(operator, 1)
    site.alice.does("rollout", "pause")
    operator.click("#rollouts a")
    operator.reads("main", "paused by choria=alice")
    clicks(operator, 1)
    site.alice.does("rollout", "stop")
    operator.click("main a[href='/audit']")
    operator.reads(
        "tbody tr", "Start a rollout", "paused by choria=alice", "stopped by choria=alice"
    )
    clicks(operator, 1)


def test_the_change_that_broke_a_node_takes_one_click_also_after_a_later_release(
    operator: Operator, site: SmallSite
) -> None:
    """The release r3 fails as r2 did, which broke the node."""
    site.control.commit(code("r3", "db", "lb"), "r3")
    site.alice.does("stage", "--no-parse", "site/tags/r3")
    options = ("--order", "none", "--release", "site/tags/r3")
    site.alice.does("rollout", "run", LB, *options, code=1)
    operator.begins()
    operator.reads("#failed", LB, "worked", "with site/tags/r1", "compare with r2")
    operator.click("a[href*='difference'][href$='lb.pp']")
    operator.reads("pre:target", "-  file", "+  include site::tls")
    clicks(operator, 1)
    operator.click(f"#failed a[href^='/nodes/{LB}'][href*='/runs/']")
    operator.reads(".diff", "in site/tags/r3", "Changed from site/tags/r1 to site/tags/r2")
    clicks(operator, 1)


def test_a_rollout_is_started_and_seen_with_three_clicks_and_typing(
    operator: Operator, site: SmallSite
) -> None:
    site.control.commit(code("r4"), "r4")
    site.alice.does("stage", "--no-parse", "site/tags/r4")
    site.alice.does("capture", "--node", WEB, str(site.alice.node.root / "captures"))
    operator.begins()
    operator.follow("Start a rollout")
    operator.types("#query", "role=web")
    operator.follow("Show the plan")
    operator.reads("main", "2 nodes will take site/tags/r4")
    file = f"~ File[{site.member('web01').root}/web.conf]"
    operator.reads(".preview", "0 to add, 1 to change", file, "+   content => release = r4")
    operator.reads("main", "Without a capture, and not in the preview: web02.example.com")
    operator.click("button.do")
    operator.reads("#rollout", "done", "→ site/tags/r4", "choria=alice")
    clicks(operator, 4)
