"""The tasks of an operator on call, with real nodes: the answer, and how many clicks it takes.

To type into a field counts as one click. Tests that change the site come last.
"""

from localpuppet.node.cli.command import user
from tests.rigs.waiting import wait_until
from tests.web.dashboard.browser.tasks.small_site import Operator, SmallSite, code

LB, DB, WEB = "lb01.example.com", "db01.example.com", "web01.example.com"
FIND = ".find input"
STATUS = ("main [role='status']", "rollout")


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


def test_what_is_late_behind_or_on_hold_and_why_takes_no_click(operator: Operator) -> None:
    operator.reads("#late", "bak01.example.com", "late since", "interval 30m", "site/tags/r1")
    operator.reads("#unresponsive", "mon01.example.com", "no agent since", "site/tags/r1")
    operator.reads("#on-hold", "mon01.example.com", "the disk is replaced", "choria=alice", "since")
    operator.reads("#releases", "site/tags/r2", "newest", "4 nodes", "in use since")
    operator.reads("#releases", "site/tags/r1", "2 behind", "mon01.example.com", "last run")
    clicks(operator, 0)


def test_who_did_what_takes_one_click_and_on_a_node_two(operator: Operator) -> None:
    operator.click("main a[href='/audit']")
    operator.reads("tbody tr", "choria=alice", "Put on hold", "mon01", "the disk is replaced")
    rollout = ("choria=alice", "Start a rollout", "site/tags/r2 →", "and 1 more", "requests")
    operator.reads("tbody tr", *rollout)
    clicks(operator, 1)
    operator.follow("db01.example.com")
    operator.follow("accepted and refused")
    operator.reads("tbody tr", f"local={user()}", "Put on hold", "checked by hand")
    clicks(operator, 2)


def test_what_happened_on_a_node_on_a_day_takes_two_clicks(operator: Operator) -> None:
    operator.click(f"#failed a[href='/nodes/{DB}']")
    operator.reads("#runs", "failed", "changed")
    operator.click("ol.days a.failed")
    operator.reads("h1", "Runs", DB)
    operator.reads("#list", "failed Exec[", "changed File[", "/rollout/", "site/tags/r1")
    clicks(operator, 2)
    operator.follow("Nodes")
    operator.follow("web02.example.com")
    operator.follow("changed only")
    operator.reads("h1", "Runs", "changed", "web02.example.com")
    operator.reads("#list tbody tr", "corrected File[", "web.conf", "trigger from alice")
    clicks(operator, 3)


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
    clicks(operator, 2)
    operator.follow("Nodes")
    operator.follow("Map")
    operator.reads("section[aria-label='db']", "1 failed")
    operator.click("a.cell.failed[title^='db01']")
    operator.reads("h1", "db01")
    assert operator.clicks == 3


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
    clicks(operator, 8)
    operator.click("main a[href='/audit']")
    operator.reads("tbody tr", "choria=alice", "Put on hold", "the rack moves", "web01")
    operator.reads("tbody tr", "choria=alice", "End own hold", "web01")


def test_a_noop_run_takes_three_clicks(operator: Operator, site: SmallSite) -> None:
    member = site.member("db01")
    before = len(member.node.runs())
    operator.click(f"#failed a[href='/nodes/{DB}']")
    operator.follow("Noop run")
    operator.click("button.do")
    operator.reads("main table", DB, "accepted")
    clicks(operator, 3)
    wait_until(lambda: len(member.node.runs()) > before, lambda: f"{member} has no new run")


def test_why_a_rollout_waits_takes_one_click(operator: Operator, site: SmallSite) -> None:
    """A rollout of a terminal waits for its check; the tests from here on add runs and rollouts."""
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
    operator.begins()
    operator.click("main a[href='/audit']")
    for label in ("Start a rollout", "Resume", "Pause", "Stop"):
        operator.reads("tbody tr", "choria=alice", label, "web01.example.com and 1 more")
    clicks(operator, 1)


def test_nodes_of_a_query_run_after_one_confirmation(operator: Operator, site: SmallSite) -> None:
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


def test_a_rollout_starts_after_one_confirmation(operator: Operator, site: SmallSite) -> None:
    site.returns("mon01", "bak01")
    operator.follow("roll out to nodes behind")
    operator.reads("main", "Group 1: bak01.example.com, mon01.example.com.", "1 canary in each")
    assert operator.clicks == 1
    operator.click("button.do")
    operator.reads("#rollout", "done", "1 canary in each group", "choria=alice")
    operator.reads("#rollout", "site/tags/r1 2 nodes, compare", "→ site/tags/r2")
    operator.reads("#group-1", "2 done")


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


def test_a_rollout_is_started_and_seen_with_few_clicks(operator: Operator, site: SmallSite) -> None:
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
