"""The views, as a browser without a script gets them."""

import html
import json
import re
from functools import partial
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.files import ReloadedFiles
from localpuppet.rollout.diagram import Diagram
from localpuppet.rollout.site_file import read_site
from localpuppet.rollout.svg import draw_svg
from localpuppet.web.access.rules import HEADERS
from localpuppet.web.dashboard.inventory_questions import SiteInventory
from tests.fleet.inventory.entries import entry
from tests.web.make import EVIL, EVIL_LINE, MAX_STALE, Site, listed, run_id, status, text


def test_the_overview_links_each_count_to_its_nodes(visitor: TestClient) -> None:
    page = text(visitor, "/")
    assert "5 nodes" in page
    for words in ("database migration", "signed by mallory", "interval 30m"):
        assert words in page
    links = re.findall(r'class="card [^"]*" href="(/nodes[^"]+)"><b>(\d+)</b>', page)
    assert len(links) >= 7
    for url, count in links:
        assert len(listed(text(visitor, url.replace("&amp;", "&")))) == int(count), url


@pytest.mark.parametrize(("count", "shown", "more"), [(2, 2, 0), (5, 2, 3)])
def test_what_fails_besides_nodes_takes_a_bounded_part_of_each_page(
    site: Site, visitor: TestClient, count: int, shown: int, more: int
) -> None:
    site.fleet.note_failing("hook", {f"h{number}": EVIL for number in range(count)})
    page = text(visitor, "/releases")
    assert page.count("</strong> fails:") == shown
    assert re.findall(r"(\d+) more fail", page) == [str(more)] * bool(more)
    assert EVIL not in page


def test_a_failure_is_linked_to_the_change_of_its_release(site: Site, visitor: TestClient) -> None:
    now = site.now()
    site.tell(status("x1", now - 7200, last_run={"release": "web/tags/r6", "outcome": "changed"}))
    failed = {"error": "x", "resource": "", "place": "web/manifests/init.pp:3"}
    last = {"release": "web/tags/r7", "outcome": "failed", "failure_cause": failed}
    site.tell(status("x1", now - 60, last_run=last))
    # It still fails with a later release: another change broke it.
    site.tell(status("x1", now - 30, last_run={**last, "release": "web/tags/r8"}))
    site.tell(status("x2", now - 7200, last_run={"outcome": "changed"}))
    site.tell(status("x2", now - 60, last_run={"outcome": "failed", "reason": "disk full"}))
    link = "/releases/difference?from=web/tags/r6&amp;to=web/tags/r7#file-web/manifests/init.pp"
    for url in ("/", "/failures", "/nodes/x1"):
        assert link in text(visitor, url), url
    assert "with the same release: no release changed" in re.sub(
        r"\s+", " ", text(visitor, "/nodes/x2")
    )
    assert "Last worked" not in text(visitor, "/nodes/web01")


def test_the_overview_has_the_nodes_on_an_old_release(site: Site, visitor: TestClient) -> None:
    now = site.now()
    site.tell(status("x1", now - 7200, last_run={"release": "shop/tags/r9"}))
    site.tell(status("x2", now - 3600, last_run={"release": "shop/tags/r10"}))
    site.tell(status("x3", now - 60, last_run={"release": "shop/tags/r10", "outcome": "failed"}))
    (part,) = re.findall(r'<section id="releases".*?</section>', text(visitor, "/"), re.DOTALL)
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", part))
    assert "shop/tags/r10 newest 2 nodes 1 failed in use since" in words
    assert "shop/tags/r9 1 behind x1 last run" in words
    assert "(1 hour ago)" in words
    (link,) = re.findall(r'href="(/nodes\?[^"]*older=[^"]*)"', text(visitor, "/"))
    assert listed(text(visitor, html.unescape(link))) == ["x1"]


def test_a_node_has_facts_runs_and_the_causes_of_runs(site: Site, visitor: TestClient) -> None:
    page = text(visitor, "/nodes/lb01")
    for words in ("database migration", "fqdn", "Debian", "web/tags/r7"):
        assert words in page
    assert re.search(r'cause runs of this node</h3>\s*<p>\s*<a href="/nodes/web01"', page)
    page = text(visitor, "/nodes/lb01?fact=family")
    assert "Debian" in page
    assert "fqdn" not in page
    assert "No fact matches" in text(visitor, "/nodes/lb01?fact=zzz")
    assert "no entry of this node" in text(visitor, "/nodes/db01")
    old = [status("db01", site.now() - number) for number in range(40)]
    for one in reversed(old):
        site.tell(one)
    newest = text(visitor, "/nodes/db01")
    (older,) = re.findall(r'href="(/nodes/db01\?before=[^"#]+)', newest)
    runs = set(re.findall(r"/nodes/db01/runs/[^\"]+", newest))
    assert len(runs | set(re.findall(r"/nodes/db01/runs/[^\"]+", text(visitor, older)))) == 41


def test_details_of_a_run_are_requested_on_demand_and_once(site: Site, visitor: TestClient) -> None:
    url = f"/nodes/web01/runs/{run_id(site.now() - 60)}"
    page = text(visitor, url)
    assert "Request them" in page
    assert ("data-ask" in page, site.asked) == (False, [])  # the run has not failed
    assert "did not answer in time" in text(visitor, f"{url}?details=1")
    assert "Try again" in text(visitor, f"{url}?details=1")
    assert len(site.asked) == 2  # nor is a node without an answer requested by each page
    event: Json = {"message": EVIL}
    resource: Json = {"resource": EVIL, "place": EVIL, "seconds": 1.5, "events": [event]}
    site.reports["web01"] = {"report": True, "failed": [resource], "left_out": 7}
    page = text(visitor, f"{url}?details=again")
    assert "1.50 s" in page
    assert "<script>alert" not in page
    assert text(visitor, f"{url}?details=1") == page
    assert len(site.asked) == 4
    site.reports["web01"] = {}


def test_a_failed_run_shows_its_code_and_what_changed_there(
    site: Site, visitor: TestClient
) -> None:
    place, now = "web/manifests/init.pp", site.now()
    site.manifests[place] = "".join(f"line {number} {EVIL}\n" for number in range(1, 20))
    site.texts[place] = "--- a\n+++ b\n@@ -1 +1 @@\n-old\n+new"
    cause = {"error": "Unknown variable: 'x'", "resource": "", "place": f"{place}:7"}
    for name in ("web01", "web02"):
        failed = {"outcome": "failed", "category": "no_report", "failure_cause": cause}
        site.tell(status(name, now, last_run={**failed, "release": "web/tags/r9"}))
    url = f"/nodes/web01/runs/{run_id(now)}"
    page = text(visitor, url)
    assert "data-ask" in page
    assert site.asked == []  # the page asks, once it is open
    for one in ("line 4 ", "line 10 ", "+new", "-old", "web02</a>", "all 2 with this failure"):
        assert one in page, one
    assert not any(one in page for one in ("line 3 ", "line 11 ", "<script>alert"))
    # A later release fails, too: the earlier run keeps its place, and the first one broke the node.
    site.tell(status("web01", now + 60, last_run={**failed, "release": "web/tags/r10"}))
    assert "line 4 " in text(visitor, url)
    later = text(visitor, f"/nodes/web01/runs/{run_id(now + 60)}")
    assert "line 4 " in later
    assert "from web/<wbr>tags/<wbr>r7 to web/<wbr>tags/<wbr>r9" in later
    site.manifests.clear()
    assert "+new" not in text(visitor, url)
    site.leave("web01")
    assert "data-ask" not in text(visitor, url)


@pytest.mark.parametrize(
    "odd",
    [
        {"failed": 1},
        {"failed": [1]},
        {"failed": [{"resource": None}]},
        {"failed": [{"resource": "File[/x]", "seconds": float("inf")}]},
        {"causes": {}},
        {"left_out": True},
        {"more": 1},
    ],
)
def test_a_bad_report_is_not_shown(site: Site, visitor: TestClient, odd: dict[str, Json]) -> None:
    site.reports["web01"] = odd
    page = text(visitor, f"/nodes/web01/runs/{run_id(site.now() - 60)}?details=1")
    assert "did not send the data" in page


def test_a_run_shows_its_causes_its_queries_and_its_slowest_resources_up_to_a_limit(
    site: Site, visitor: TestClient
) -> None:
    rollout = "choria=bob/rollout/20261122T110000Z-00aa"
    causes: list[Json] = [
        {"kind": "trigger", "sender": "lb01", "path": ["db01", "lb01"], "tags": [EVIL]},
        {"kind": "rollout", "path": [rollout]},
        {"kind": "x", "path": ["c=b"]},
    ]
    many: list[Json] = [{"resource": f"File[/x{number:03}]"} for number in range(500)]
    site.reports["web01"] = {
        "report": True,
        "origin": {"input": "/etc/puppet/input.yaml", "input_sha256": "ab" * 32, "by": EVIL},
        "causes": causes,
        "queries": [{"text": 'servers_with_role("db")', "count": 2, "names": ["db01", EVIL]}],
        "collected": [{"text": "Host <<| |>>", "count": 0, "names": [], "reason": EVIL}],
        "slowest": [{"resource": "Package[nginx]", "place": "/x/init.pp:3", "seconds": 12.34}],
        "failed": many,
    }
    page = text(visitor, f"/nodes/web01/runs/{run_id(site.now() - 60)}?details=1")
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", page))
    for one in (
        "trigger: db01 → lb01 → web01",
        "2: db01",
        "12.34 s, /x/init.pp:3",
        "no answer: ",
        "File[/x199]",
        "and 300 more",
        ORIGIN,
    ):
        assert one in words, one
    assert "File[/x200]" not in page
    assert "<script>alert" not in page
    assert f'href="/rollouts/20261122T110000Z-00aa">{rollout}</a>' in page
    assert 'href="/audit?caller=c%3Db"' in page


ORIGIN = "Input/etc/puppet/input.yaml abababababab, the release assigned by &lt;script&gt;"


def test_the_log_of_a_run_is_shown_without_a_report(site: Site, visitor: TestClient) -> None:
    site.logs["web01"] = {"lines": ["Notice: a", f"Error: {EVIL}"], "before": 7, "left_out": 2}
    page = text(visitor, f"/nodes/web01/runs/{run_id(site.now() - 60)}?details=1")
    assert "7 earlier lines" in page
    assert "2 lines of diffs" in page
    assert '<div class="error">Error: &lt;script&gt;' in page
    assert "did not answer in time" in page  # the report
    site.reports["web02"], site.logs["web02"] = {}, {"lines": "no list"}
    page = text(visitor, f"/nodes/web02/runs/{run_id(site.now() - 90)}?details=1")
    assert "did not send the data" in page


def test_the_log_replaces_a_report_that_is_missing(site: Site, visitor: TestClient) -> None:
    site.reports["web01"] = {"report": False}
    site.logs["web01"] = {"lines": ["Error: Could not find class tls"], "before": 0, "left_out": 0}
    url = f"/nodes/web01/runs/{run_id(site.now() - 60)}"
    page = text(visitor, f"{url}?details=1")
    assert "Puppet wrote no report" in page
    assert '<div class="error">Error: Could not find class tls' in page
    assert [line.split()[0] for line in site.asked] == ["report", "log"]


def test_the_picture_is_that_of_the_command_line(visitor: TestClient) -> None:
    page = text(visitor, "/kicks")
    assert '<a href="/nodes/web01"><text' in page
    assert "<style>" not in page  # the policy of a view allows none
    assert (
        '>web</th><td data-label="These run">lb</td><td data-label="Because of">query</td>' in page
    )
    answer = visitor.get("/kicks.svg")
    assert answer.text.startswith("<svg")
    assert "href" not in answer.text
    policy = answer.headers["content-security-policy"]
    assert "style-src 'sha256-" in policy
    assert "unsafe" not in policy
    assert visitor.get("/diagram.css").headers["content-type"].startswith("text/css")


def test_without_graphviz_views_offer_dot(site: Site) -> None:
    site.draw = partial(draw_svg, program="/nonexistent/dot")
    with site.visitor() as visitor:
        for view, words in (("/plan", "Group 1"), ("/kicks", "These run")):
            page = text(visitor, view)
            assert "apt install graphviz" in page
            assert words in page
            assert f'href="{view}.dot"' in page
            assert text(visitor, f"{view}.dot").startswith("digraph {\n")
            assert "apt install graphviz" in text(visitor, f"{view}.svg", 503)


def test_a_picture_is_drawn_once(site: Site) -> None:
    drawn: list[Diagram] = []

    def draw(diagram: Diagram, node_page: str) -> str:
        drawn.append(diagram)
        return draw_svg(diagram, node_page)

    site.draw = draw
    with site.visitor() as visitor:
        assert text(visitor, "/plan") == text(visitor, "/plan")
        assert len(drawn) == 1
        assert visitor.get("/plan.svg").text == visitor.get("/plan.svg").text
        assert len(drawn) == 2


def test_the_plan_follows_from_the_inventory(site: Site, visitor: TestClient) -> None:
    page = text(visitor, "/plan")
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", page))
    assert "2 groups, in order 2 nodes" in words
    assert "Group 1 1 web01" in words
    assert "Group 2 1 lb01" in words
    assert "<svg xmlns" in page
    assert visitor.get("/plan.svg").text.startswith("<svg")
    page = text(visitor, "/plan?q=role%3Dweb")
    assert "1 group <small>1 node</small>" in page
    assert '<a href="/plan.svg?q=role%3Dweb"' in page
    assert "lb01" not in page
    assert "no node of the inventory matches" in text(visitor, "/plan?q=role%3Dzzz")
    assert "could not parse" in text(visitor, "/plan?q=role%3D")
    assert text(visitor, "/plan.svg?q=role%3Dzzz", 400)
    site.clock.advance(MAX_STALE + 1)
    assert "There is no plan" in text(visitor, "/plan?q=role%3Dlb")


def test_a_named_site_file_replaces_the_plan_of_the_inventory(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    shop = {
        "Db[1]": {"node": "db01", "produces": ["Sql[1]"]},
        "App[1]": {"node": "lb01", "consumes": ["Sql[1]"]},
    }
    file.write_text(json.dumps({"applications": {"Shop[1]": shop}}))
    read = ReloadedFiles([file], lambda: read_site(str(file), Documents(None)))
    site.known = SiteInventory(name=str(file), read=read)
    with site.visitor() as visitor:
        page = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", text(visitor, "/plan")))
        assert "Group 1 1 db01" in page
        assert "Group 2 1 lb01" in page
        assert f"localpuppet rollout run --site {file}" in page
        page = text(visitor, "/plan?q=role%3Dlb")
        assert "lb01" in page
        assert "db01" not in page
        assert "no node of the site matches" in text(visitor, "/plan?q=role%3Dweb")
        file.write_text("applications: {")
        assert "There is no plan" in text(visitor, "/plan?q=role%3Dlb%20or%20role%3Dweb")


def test_hostile_values_are_text_everywhere(site: Site, visitor: TestClient) -> None:
    hold = {"owner": EVIL, "reason": EVIL, "until": None}
    fault = dict.fromkeys(("error", "resource", "place"), EVIL_LINE)
    last = {"release": EVIL_LINE, "reason": EVIL_LINE, "outcome": "failed", "failure_cause": fault}
    site.tell(status("evil", site.now(), last_run=last, cause=EVIL, holds=[hold], state=EVIL))
    site.list_(entry("evil", at=site.now(), roles=(EVIL,), facts={EVIL: EVIL, "x": {EVIL: EVIL}}))
    urls = [
        "/",
        "/nodes",
        "/failures",
        "/releases",
        "/rollouts",
        "/nodes/evil",
        f"/nodes/evil/runs/{run_id(site.now())}",
        "/kicks",
    ]
    for url in [
        *urls,
        "/nodes?q=%3Cscript%3Ealert",
        "/nodes?name=%3Csvg%20onload",
        "/%3Cscript%3E",
    ]:
        page = visitor.get(url).text
        assert "<script>alert" not in page, url
        assert "<svg onload" not in page, url
        assert "\u202e" not in page, url


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("/nodes/UPPER", 400),
        ("/nodes/..%2f..%2fetc%2fpasswd", 404),
        ("/nodes/absent.example.com", 404),
        ("/nodes/web01/runs/20261120T140000.000000Z-ffff", 404),
        ("/nodes/web01/runs/x", 400),
        ("/nodes/web01?before=x", 400),
        ("/nodes.exe", 404),
        ("/static/..%2fpages.py", 404),
        ("/static/", 404),
        ("/elsewhere", 404),
    ],
)
def test_an_error_has_a_page(visitor: TestClient, url: str, code: int) -> None:
    assert "<h1>" in text(visitor, url, code)


def test_every_answer_has_the_headers(visitor: TestClient) -> None:
    for url in ("/", "/nodes.csv", "/static/page.css", "/static/page.js", "/elsewhere", "/events?"):
        with visitor.stream(
            "HEAD" if url != "/events?" else "GET", "/" if "?" in url else url
        ) as it:
            for name, value in HEADERS.items():
                assert it.headers[name] == value, url
    assert "'unsafe" not in HEADERS["content-security-policy"]


def test_a_visitor_without_a_session_learns_what_to_do(site: Site) -> None:
    with site.visitor(enters=False) as client:
        page = text(client, "/", 403)
        assert "Open the link that" in page
        assert "web01" not in page
        assert "This link is invalid" in text(client, "/enter?key=guess", 403)
        answer = client.get(site.link)
        assert answer.status_code == 200
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert text(client, "/")
        assert "This link is invalid" in text(client, site.link, 403)
        assert client.post("/").status_code == 405


def test_a_history_that_still_loads_is_on_each_page(site: Site, visitor: TestClient) -> None:
    site.fleet.answered()
    for days, words in ((2, "2 days are not complete"), (1, "1 day is not complete")):
        site.fleet.miss_history(days)
        for path in ("/", "/runs", "/bus"):
            page = text(visitor, path)
            assert "The history is still loading" in page
            assert words in page
    site.fleet.miss_history(None)
    assert "The bus denies reading the history of nodes" in text(visitor, "/audit")
    site.fleet.miss_history(0)
    page = text(visitor, "/runs")
    assert "still loading" not in page
    assert "denies" not in page


def test_an_unreachable_bus_is_shown_with_the_last_update(site: Site, visitor: TestClient) -> None:
    site.fleet.lost("connection refused")
    site.clock.advance(3600)
    page = text(visitor, "/nodes")
    assert re.search(r"Last updated <time [^>]*>14:00:00 UTC</time>, the bus is unreachable", page)
    assert "connection refused" in page
    assert len(listed(page)) == 5


def test_a_dashboard_without_a_bus_says_so(site: Site, visitor: TestClient) -> None:
    assert "No bus is configured" not in text(visitor, "/")
    site.fleet.has_no_bus = True
    assert "No bus is configured: other nodes cannot be seen here" in text(visitor, "/nodes")


def test_an_empty_fleet_has_a_note(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with site.visitor() as client:
        assert "The bus has not answered yet" in text(client, "/")
        assert "The bus is unreachable" in text(client, "/bus")
        site.fleet.answered()
        assert "No node has published anything yet" in text(client, "/")
        assert "No node has published anything yet" in text(client, "/nodes")
        assert "No node kicks" in text(client, "/kicks")
        assert "No run of these days corrected a resource." in text(client, "/drift")
        assert "No release is staged on this machine." in text(client, "/releases/difference")


@pytest.mark.parametrize("at", [1e18, 1e300])
def test_an_impossible_time_breaks_no_view(at: float, site: Site, visitor: TestClient) -> None:
    site.list_(entry("web01", at=at))
    assert "at an invalid time" in text(visitor, "/nodes/web01")
    text(visitor, "/")
