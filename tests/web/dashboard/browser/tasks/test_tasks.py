"""What an operator does with the dashboard, with real nodes: how many clicks each task takes."""

from localpuppet.node.cli.command import user
from tests.rigs.long import LONG
from tests.rigs.waiting import wait_until
from tests.web.dashboard.browser.tasks.small_site import Operator, SmallSite

STATUS = ("main [role='status']", "rollout")


def row(name: str) -> str:
    """Return the selector of a node's row."""
    return f"[id='row-{name}.example.com']"


def test_what_is_wrong_takes_no_click(operator: Operator) -> None:
    operator.reads("#failed", "db01.example.com", "site/manifests/db.pp:4", "failing since")
    operator.reads("#failed", "lb01.example.com", "Could not find class", "site/manifests/lb.pp:4")
    operator.reads("#unresponsive", "mon01.example.com", "no agent since", "site/tags/r1")
    operator.reads("#releases", "site/tags/r2", "newest", "4 nodes", "in use since")
    operator.reads("#releases", "site/tags/r1", "2 behind", "mon01.example.com", "last run")
    operator.reads("#counts", "2 older than site/tags/r2")
    operator.reads("#late", "bak01.example.com", "late since", "interval 30m", "site/tags/r1")
    operator.reads("#on-hold", "mon01.example.com", "the disk is replaced", "choria=alice", "since")
    assert operator.clicks == 0
    operator.follow("Nodes")
    operator.reads(row("lb01"), "compile failed", "Could not find class", "1 run")


def test_nodes_on_an_old_release_take_one_click(operator: Operator) -> None:
    operator.follow("older than site/tags/r2")
    operator.reads("h1", "older than site/tags/r2")
    assert operator.clicks == 1
    operator.reads("#list", "1 to 2 of 2", "mon01.example.com", "site/tags/r1")
    operator.begins()
    operator.follow("Nodes")
    operator.types("input[name='older']", "r2")
    operator.follow("Show")
    operator.reads("h1", "older than r2")
    operator.reads("#list", "1 to 2 of 2", "mon01.example.com", "site/tags/r1")


def test_the_change_that_broke_a_node_takes_one_click_and_a_difference_two(
    operator: Operator,
) -> None:
    operator.reads("#failed", "lb01.example.com worked", "with site/tags/r1")
    operator.click("a[href*='difference'][href$='lb.pp']")
    operator.reads("pre:target", "-  file", "+  include site::tls")
    assert operator.clicks == 1
    operator.begins()
    operator.follow("Releases")
    operator.follow("compare with previous")
    operator.reads("#texts", "site/manifests/lb.pp", "-  file", "+  include site::tls")
    assert operator.clicks == 2


def test_two_nodes_are_put_on_hold_and_released_with_one_confirmation_each(
    operator: Operator, site: SmallSite
) -> None:
    web = ("web01.example.com", "web02.example.com")
    operator.follow("Nodes")
    for name in web:
        operator.click(f"input[value='{name}']")
    operator.follow("Put on hold")
    operator.reads("main", "These 2 nodes, and no others", *web)
    operator.types("#message", "the rack moves")
    operator.click("button.do")
    operator.reads("main table", *web)
    assert operator.clicks == 6
    holds = [site.member(name).holds() for name in ("web01", "web02")]
    assert holds == [["the rack moves"]] * 2
    operator.follow("End these holds")
    operator.click("button.do")
    operator.reads("main table", *web)
    assert [site.member(name).holds() for name in ("web01", "web02")] == [[], []]


def test_the_result_of_a_rollout_on_each_node_takes_two_clicks(operator: Operator) -> None:
    operator.follow("Rollouts")
    operator.click("tbody a")
    operator.reads("#rollout", "done", "2 nodes may fail", "choria=alice")
    for name in ("web01", "web02"):
        operator.reads(f"[id='run-1-{name}.example.com']", "done", "changed")
    operator.reads("[id='run-1-db01.example.com']", "failed", "1 resource failed")
    operator.reads("[id='run-1-lb01.example.com']", "failed", "Could not find class")
    assert operator.clicks == 2


def test_runs_and_changes_take_one_click_and_drift_and_the_map_two(operator: Operator) -> None:
    operator.click("#strip rect.failed")
    operator.reads("h1", "Runs")
    operator.reads("#list", "lb01.example.com", "compile failed", "Could not find class")
    operator.begins()
    operator.follow("All runs")
    operator.reads("tbody tr", "web02.example.com", "corrected File[", "web.conf", "web.pp:3")
    operator.reads("tbody tr", "db01.example.com", "failed Exec[", "changed File[", "db.conf")
    operator.begins()
    operator.follow("Activity")
    operator.follow("Drift")
    operator.reads("tbody tr", "File[", "web.conf", "web02.example.com")
    assert operator.clicks == 2
    operator.begins()
    operator.follow("Nodes")
    operator.follow("Map")
    operator.reads("section[aria-label='db']", "1 failed")
    operator.click("a.cell.failed[title^='db01']")
    operator.reads("h1", "db01")
    assert operator.clicks == 3


def test_who_requested_a_hold_takes_two_clicks(operator: Operator) -> None:
    operator.follow("Activity")
    operator.follow("Audit")
    operator.reads("tbody tr", "choria=alice", "Put on hold", "mon01", "the disk is replaced")
    operator.reads("tbody tr", "choria=alice", "Start a rollout", "web01")
    assert operator.clicks == 2
    operator.begins()
    operator.follow("db01.example.com")
    operator.follow("accepted and refused")
    operator.reads("tbody tr", f"local={user()}", "Put on hold", "checked by hand")
    assert operator.clicks == 2


def test_the_changes_on_a_node_take_two_clicks_and_the_runs_of_a_day_three(
    operator: Operator,
) -> None:
    operator.follow("Nodes")
    operator.follow("web02.example.com")
    operator.reads("#runs tr", "site/tags/r1", "changed File[", "web.conf")
    operator.reads("#runs tr", "site/tags/r2", "corrected File[", "web.conf")
    assert operator.clicks == 2
    operator.click("ol.days a.changed")
    operator.reads("h1", "Runs", "web02.example.com")
    operator.reads("#list tbody tr", "corrected File[", "web.conf")
    assert operator.clicks == 3
    operator.begins()
    operator.follow("Nodes")
    operator.follow("web02.example.com")
    operator.follow("changed only")
    operator.reads("h1", "Runs", "changed", "web02.example.com")
    operator.reads("#list tbody tr", "corrected File[", "trigger from alice")


def test_resuming_pausing_and_stopping_a_rollout_take_two_clicks_each(
    operator: Operator, site: SmallSite
) -> None:
    """The tests from here on add runs and rollouts."""
    gate = site.alice.node.write("gate", "")
    names = "web01.example.com,web02.example.com"
    check = f"/bin/sh -c 'while [ -e {gate} ]; do sleep 0.05; done'"
    options = ("--order", "none", "--canary", "1", "--check", check)
    controller = site.alice.node.start("rollout", "run", names, *options)

    def shows(*words: str) -> None:
        operator.begins()
        operator.click("#rollouts a")
        operator.reads("main", *words)

    def commands(label: str) -> None:
        operator.follow(label)
        assert operator.clicks == 2
        operator.click("button.do")
        operator.reads(*(("#rollout", "choria") if label == "Resume" else STATUS))

    shows("running", "being checked")
    controller.kill()
    site.alice.node.finish(controller)
    shows("interrupted", "to resume it")
    commands("Resume")
    shows("running", "being checked")
    commands("Pause")
    shows("Decisions", "paused by choria=alice")
    gate.unlink()
    shows("paused", "1 done")
    commands("Stop")
    operator.follow("Rollouts")
    operator.reads("tbody tr", "2 nodes: stopped", "web01.example.com and 1 more", "1 not reached")


def test_nodes_that_match_a_query_run_after_one_confirmation(
    operator: Operator, site: SmallSite
) -> None:
    members = [site.member("web01"), site.member("web02")]
    before = [member.node.runs() for member in members]
    operator.follow("Nodes")
    operator.types("#q", "role=web")
    operator.follow("Show")
    operator.click("input[name='all']")
    operator.follow("Trigger a run")
    operator.reads("main", "These 2 nodes, and no others", "web01.example.com")
    assert operator.clicks == 5
    operator.click("button.do")
    for member in members:
        operator.reads("main table tr", str(member.name), "sent")
    wait_until(
        lambda: all(
            len(member.node.runs()) > len(runs)
            for member, runs in zip(members, before, strict=True)
        ),
        lambda: f"{members} have no new run",
    )


def test_starting_a_rollout_takes_one_click_and_a_confirmation(
    operator: Operator, site: SmallSite
) -> None:
    site.returns("mon01", "bak01")
    operator.follow("roll out to nodes behind")
    operator.reads("main", "Group 1: bak01.example.com, mon01.example.com.", "1 canary in each")
    assert operator.clicks == 1
    operator.click("button.do")
    operator.reads("#rollout", "done", "1 canary in each group", "choria=alice")
    operator.reads("#rollout", "site/tags/r1 2 nodes, compare", "→ site/tags/r2")
    operator.reads("#group-1", "2 done")


@LONG
def test_a_rollout_that_is_refused_is_seen_as_refused_with_its_reason(
    operator: Operator, site: SmallSite
) -> None:
    site.member("mon01").kill()
    operator.follow("Start a rollout")
    operator.types("#query", "role=mon")
    operator.follow("Show the plan")
    operator.click("button.do")
    operator.reads("#rollout", "not ready", "mon01.example.com")
    operator.begins()
    operator.reads("#rollouts", "not ready", "mon01.example.com")
