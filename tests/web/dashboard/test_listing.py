"""Lists: their URLs, as pages, and as files."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from starlette.testclient import TestClient

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName, RolloutId
from localpuppet.fleet.inventory.presence import NodeRow
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.rollout.events import Event, NodeResult, NodeRun
from localpuppet.web.access.http_limits import MAX_LIST_WORDS
from localpuppet.web.dashboard import listing
from localpuppet.web.dashboard.differences import changes_table
from localpuppet.web.dashboard.list_query import FAILURES, ListQuery
from tests.fleet.make import a_row
from tests.rollout.make import run_ended, runs_started
from tests.web.dashboard.test_actions import NOOP, hidden
from tests.web.make import (
    EVIL,
    MAX_STALE,
    MOTD,
    ROLLOUT,
    PlayedActor,
    Site,
    a_rollout,
    begin_rollout,
    decided,
    listed,
    run_id,
    staged,
    status,
    summarise,
    summary,
    text,
)


def test_a_filter_is_a_query_and_part_of_the_url(visitor: TestClient) -> None:
    assert listed(text(visitor, "/nodes?q=role%3Dweb")) == ["web01"]
    page = text(visitor, "/?q=role%3Dweb")
    assert "1 node <small>that match</small>" in page
    assert "/nodes?q=role%3Dweb&amp;outcome=changed" in page


def test_a_failed_query_is_not_an_empty_list(site: Site, visitor: TestClient) -> None:
    for url in ("/?q=role%3D", "/nodes?q=role%3D"):
        page = text(visitor, url)
        assert "could not parse the query" in page
        assert "0 nodes" not in page
        assert "No node" not in page
    site.clock.advance(MAX_STALE + 1)
    assert "cannot answer the query" in text(visitor, "/nodes?q=role%3Dweb")
    assert "cannot answer the query" in text(visitor, "/nodes.csv?q=role%3Dweb", 503)
    assert len(listed(text(visitor, "/nodes"))) == 5  # the last known state is still shown
    assert "cannot answer the query" in text(visitor, "/kicks")
    node = text(visitor, "/nodes/db01")
    assert "cannot answer the query" in node
    assert "make this node run" not in node  # "none" is another answer


def test_lists_are_sorted_by_the_server_and_the_same_url_is_a_file(visitor: TestClient) -> None:
    url = "?sort=-finished_at&outcome=unchanged"
    assert listed(text(visitor, f"/nodes{url}")) == ["lb01", "db01"]
    (head, *rows) = csv.reader(io.StringIO(text(visitor, f"/nodes.csv{url}")))
    assert [row[head.index("node")] for row in rows] == ["lb01", "db01"]
    assert text(visitor, f"/nodes.txt{url}") == "lb01\ndb01\n"
    assert [one["node"] for one in json.loads(text(visitor, f"/nodes.json{url}"))["nodes"]] == [
        "lb01",
        "db01",
    ]
    answer = visitor.get("/nodes.csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="nodes.csv"'


def test_the_list_of_nodes_shows_its_selected_filters(visitor: TestClient) -> None:
    page = text(visitor, "/nodes?outcome=compile+failed&release=web%2Ftags%2Fr7")
    assert listed(page) == ["web02"]
    assert re.findall(r"<option[^>]* selected>(.*?)</option>", page) == ["compile failed"]
    # Other filters stay.
    assert '<input type="hidden" name="release" value="web/tags/r7">' in page
    assert 'type="hidden" name="outcome"' not in page
    assert re.findall(r"<option[^>]* selected>(.*?)</option>", text(visitor, "/nodes?is=late")) == [
        "late"
    ]


def test_failures_have_a_row_for_each_cause_with_its_nodes(site: Site, visitor: TestClient) -> None:
    fault = {"error": "Could not find class …", "resource": "", "place": "web/init.pp:7"}
    failed = {"outcome": "failed", "category": "no_report", "failure_cause": fault}
    site.tell(*(status(f"n{number:03}", site.now(), last_run=failed) for number in range(120)))
    page = text(visitor, "/failures")
    assert len(listed(page)) == 2  # and web02, of which nothing more is known
    assert page.index("<b>120</b>") < page.index("<b>1</b>")
    (url,) = re.findall(r'href="(/nodes\?failure_cause=[0-9a-f]+)"><b>120</b>', page)
    assert "1 to 100 of 120" in text(visitor, url)
    assert len(text(visitor, url.replace("/nodes", "/nodes.txt")).splitlines()) == 120
    (one, other) = json.loads(text(visitor, "/failures.json"))["failures"]
    assert (one["count"], one["place"], len(one["nodes"])) == (120, "web/init.pp:7", 120)
    assert text(visitor, "/failures.txt?name=web") == "web02\n"
    assert other["nodes"] == ["web02"]
    assert "could not parse" in text(visitor, "/failures?q=role%3D")
    assert "No last run failed" in text(visitor, "/failures?name=db01")
    assert "Could not find class …" in text(visitor, "/nodes/n001")
    assert ">117 more</a>" in text(visitor, "/")


def test_releases_show_their_nodes_and_different_bytes(site: Site, visitor: TestClient) -> None:
    rollback = {"input_release": "web/tags/r8", "release": "web/tags/r7", "user": "root"}
    site.tell(
        *(status(f"n{number}", site.now(), release_digest="aa" * 32) for number in range(3)),
        status("odd", site.now(), release_digest="bb" * 32),
        status("back", site.now(), release_digest="aa" * 32, rollback=rollback),
    )
    site.staged = [staged("web/tags/r7", "aa" * 32), staged("web/tags/r9", "dd" * 32)]
    page = text(visitor, "/releases")
    assert listed(page) == ["web/tags/r9", "web/tags/r7"]
    for words in (
        "bbbbbbbbbbbb",
        "4, as here",
        "1 with wrong release",
        "https://git.example.com/web.git",
    ):
        assert words in re.sub(r"<[^>]+>", "", page), words
    (url,) = re.findall(r'href="(/nodes\?is=wrong\+release[^"]*)"', page)
    assert listed(text(visitor, url.replace("&amp;", "&"))) == ["odd"]
    assert listed(text(visitor, "/nodes?is=rolled+back")) == ["back"]
    overview = text(visitor, "/")
    assert "its web/tags/r7 is bbbbbbbbbbbb; most nodes have aaaaaaaaaaaa" in overview
    assert "rolled back by root to web/tags/r7; its input names web/tags/r8" in overview
    assert 'class="card rolled-back"' in overview
    (other, record) = json.loads(text(visitor, "/releases.json"))["releases"]
    assert (record["count"], record["wrong_release"], other["count"]) == (9, 1, 0)
    assert text(visitor, "/releases.txt?name=r9") == ""
    assert listed(text(visitor, "/releases?q=role%3Dweb")) == ["web/tags/r7"]


SHOP = RolloutId.parse("20261122T110000Z-00aa")
NODES = tuple(NodeName.parse(f"web{number}.example.com") for number in range(4))


def rolled_out(site: Site, *events: Event) -> None:
    began = a_rollout(id=SHOP, groups=(NODES[:2], NODES[2:]), title=f"shop {EVIL}")
    begin_rollout(site, began, *events).close()


def test_a_rollout_is_shown_group_by_group(site: Site, visitor: TestClient) -> None:
    assert "No rollout has started on this machine" in text(visitor, "/rollouts")
    first, second = NodeRun(1, NODES[0]), NodeRun(1, NODES[1])
    run = str(run_id(site.now()))
    rolled_out(
        site,
        runs_started(first, second),
        run_ended(first, NodeResult.FAILED, outcome="failed", run=run, reason=EVIL),
    )
    site.clock.advance(2)
    page = text(visitor, "/rollouts")
    assert listed(page) == [SHOP]
    assert "interrupted" in page  # no process runs it
    page = text(visitor, f"/rollouts/{SHOP}")
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    assert "Group 1 running 1 failed 1 running" in words
    assert "Group 2 not started 2 not started" in words
    assert f'href="/nodes/{NODES[0]}/runs/{run}"' in page.partition("</section>")[0]
    assert f"<h1>4 nodes: interrupted, {NODES[0]} failed</h1>" in page
    for one in (page, text(visitor, "/rollouts")):
        assert "<script>alert" not in one
    told = json.loads(text(visitor, f"/rollouts/{SHOP}.json"))
    assert [run["outcome"] for run in told["groups"][0]["runs"]] == ["failed", None]
    assert text(visitor, "/rollouts.txt?name=alice") == f"{SHOP}\n"
    assert text(visitor, "/rollouts.txt?name=bob") == ""
    assert "this machine has no rollout" in text(visitor, "/rollouts/20261122T110000Z-00ab", 404)


def test_a_long_list_has_pages_and_its_file_has_all(site: Site, visitor: TestClient) -> None:
    site.tell(*(status(f"n{number:03}", site.now()) for number in range(250)))
    page = text(visitor, "/nodes?name=n0")
    assert len(listed(page)) == 100
    assert len(listed(text(visitor, "/nodes?page=3&name=n"))) == 50
    assert 'rel="next"' in page or "page 1 of" not in page
    assert len(text(visitor, "/nodes.txt?name=n").splitlines()) == 250
    assert "This page is empty" in text(visitor, "/nodes?page=9")


def test_a_failure_names_rollout_or_trigger_of_its_run(site: Site, visitor: TestClient) -> None:
    now = site.now()
    rollout = "choria=bob/rollout/20261122T110000Z-00aa"
    for node, cause, reason in (("x1", rollout, "disk full"), ("x2", "trigger from lb01", "OOM")):
        summarise(site, summary(node, now - 60, outcome=Kind.FAILED, cause=cause))
        site.tell(status(node, now - 60, last_run={"outcome": "failed", "reason": reason}))
    for url in ("/", "/failures"):
        page = text(visitor, url)
        assert f'cause: <a href="/rollouts/20261122T110000Z-00aa">{rollout}</a>' in page, url
        assert "cause: trigger from lb01" in page, url


def words(asked: ListQuery) -> dict[str, str]:
    return dict(parse_qsl(asked.url.partition("?")[2]))


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"failure_cause": "0123456789abcdef", "release": "web/tags/r7"},
        {"q": "role=web and os.family=Debian", "sort": "-finished_at", "page": "3"},
        {"outcome": "compile failed", "is": "on hold", "name": "web"},
    ],
)
def test_a_url_is_read_as_it_is_written(said: dict[str, str]) -> None:
    asked = ListQuery.parse(said)
    assert words(asked) == said
    assert ListQuery.parse(words(asked)) == asked


@pytest.mark.parametrize(
    "said",
    [
        {"colour": "red"},
        {"sort": "password"},
        {"outcome": "sad"},
        {"is": "nice"},
        {"failure_cause": "../../x"},
        {"page": "0"},
        {"page": "-1"},
        {"page": "²"},
        {"page": "1000000"},
        {"q": "x" * (MAX_LIST_WORDS + 1)},
    ],
)
def test_an_invalid_query_is_refused(said: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError):
        ListQuery.parse(said)


def test_another_order_starts_at_the_first_page_and_can_be_reversed() -> None:
    asked = ListQuery.parse({"sort": "finished_at", "page": "4"})
    assert asked.by("finished_at").url == "/nodes?sort=-finished_at"
    assert asked.by("severity").url == "/nodes"
    assert asked.with_(outcome=Kind.FAILED).url == "/nodes?outcome=failed&sort=finished_at"
    assert asked.file("csv") == "/nodes.csv?sort=finished_at"


def test_each_list_has_its_own_orders_and_filters() -> None:
    asked = ListQuery.parse({"q": "role=web"}, FAILURES)
    assert (asked.order, asked.down, asked.url) == ("nodes", True, "/failures?q=role%3Dweb")
    assert asked.by("nodes").url == "/failures?q=role%3Dweb&sort=nodes"
    assert asked.nodes(failure_cause="0123456789abcdef").startswith(
        "/nodes?q=role%3Dweb&failure_cause="
    )
    for said in ({"is": "late"}, {"sort": "node"}, {"failure_cause": "0123456789abcdef"}):
        with pytest.raises(InvalidInputError):
            ListQuery.parse(said, FAILURES)


PAGE = Path(__file__).parents[3] / "docs/reference/dashboard.md"

ROW = a_row(
    "a.example.com", outcome=Kind.FAILED, finished_at=0.0, roles=("web", "lb"), reason="x, y"
)


@pytest.mark.parametrize(
    ("cell", "neutral"),
    [
        *((begin, f"'{begin}") for begin in ("=1+1", "+1", "-1", "@SUM(A1)", " =1", "\uff1d1")),
        *((f"{blank}=1", f"'{blank}=1") for blank in ("\u00a0", "\u3000", "\u200b", "\ufeff")),
        ("\t=1", "'\t'=1"),
        ("\r=1", "'\r'=1"),
        ("a;=1", "a;'=1"),
        ("a; \u200b=1;+2", "a;' \u200b=1;'+2"),
        ("a\t\u00a0@b", "a\t'\u00a0@b"),
        ('a;"=1"', 'a;\'"=1"'),
        ("a\n-1", "a\n'-1"),
    ],
)
def test_no_part_of_a_cell_is_a_formula(cell: str, neutral: str) -> None:
    row = NodeRow(node="a", roles=(cell,), problem=cell)
    (_, cells) = csv.reader(io.StringIO(listing.as_csv(listing.nodes_table([row])), newline=""))
    assert cells.count(neutral) == 2


@pytest.mark.parametrize("cell", ["a-b", "a; b", "x=1", "1 + 1", "\u00a0a", "\u00fc;b"])
def test_a_cell_without_a_formula_is_unchanged(cell: str) -> None:
    (_, cells) = csv.reader(
        io.StringIO(listing.as_csv(listing.nodes_table([NodeRow(node="a", problem=cell)])))
    )
    assert cell in cells


def test_csv_keeps_the_texts_of_cells() -> None:
    head, cells = csv.reader(io.StringIO(listing.as_csv(listing.nodes_table([ROW]))))
    said = dict(zip(head, cells, strict=True))
    assert (said["outcome"], said["roles"], said["reason"]) == ("failed", "web lb", "x, y")
    assert said["finished_at"] == "1970-01-01T00:00:00.000000Z"


def test_json_has_the_time_of_the_last_update() -> None:
    told = json.loads(listing.as_json(listing.nodes_table([ROW]), last_updated=0.0))
    assert (told["last_updated"], told["nodes"][0]["roles"]) == (
        "1970-01-01T00:00:00.000000Z",
        ["web", "lb"],
    )
    assert json.loads(listing.as_json(listing.nodes_table([]), last_updated=None)) == {
        "schema": 1,
        "last_updated": None,
        "nodes": [],
    }


@pytest.mark.parametrize(
    ("path", "table"),
    [
        ("/nodes", listing.nodes_table([])),
        ("/failures", listing.failures_table([])),
        ("/releases", listing.releases_table([])),
        ("/rollouts", listing.rollouts_table([])),
        ("/releases/difference", changes_table([])),
    ],
)
def test_the_documentation_lists_the_columns_of_each_file(path: str, table: listing.Table) -> None:
    (columns,) = re.findall(
        rf"^\| `{path}` \| (`[a-z_]+`(?:, `[a-z_]+`)*) \|$", PAGE.read_text(), re.M
    )
    assert re.findall(r"[a-z_]+", columns) == list(table.columns)


@pytest.fixture
def past(site: Site) -> float:
    """Return a time yesterday at which web01 changed a file and web02 failed."""
    at = site.now() - 86400
    summarise(
        site,
        summary("web01", at, outcome=Kind.CHANGED, resources=(MOTD,), cause="timer"),
        summary("web02", at - 5, outcome=Kind.FAILED, reason="Could not find class … for …"),
        summary("web01", at - 60),
    )
    return at


def test_runs_are_filtered_by_node_result_and_time(visitor: TestClient, past: float) -> None:
    assert listed(text(visitor, "/runs?node=web01&result=changed"))[-1] == f"web01-{run_id(past)}"
    assert listed(text(visitor, "/runs?result=failed&name=web"))[-1] == f"web02-{run_id(past - 5)}"
    yesterday = "/runs?from=2026-11-19T13:59Z&to=2026-11-19T14:01"
    assert len(listed(text(visitor, "/runs"))) == 7
    assert listed(text(visitor, yesterday)) == [
        f"web01-{run_id(past)}",
        f"web02-{run_id(past - 5)}",
        f"web01-{run_id(past - 60)}",
    ]
    page = text(visitor, "/runs?q=role%3Dweb&sort=at")
    assert listed(page)[0] == f"web01-{run_id(past - 60)}"
    assert "The dashboard knows no such run." in text(visitor, "/runs?node=unknown")


def test_a_run_shows_its_cause_error_and_resources(visitor: TestClient, past: float) -> None:
    page = text(visitor, "/runs?from=2026-11-19T13:00Z&to=2026-11-19T15:00Z")
    for part in (MOTD.resource, MOTD.place, "timer", "Could not find class … for …"):
        assert part in page
    told = json.loads(text(visitor, "/runs.json?node=web01&result=changed"))["runs"][-1]
    assert told["resources"] == ["changed File[/etc/motd] profile/manifests/motd.pp:3"]
    assert (told["cause"], told["seconds"]) == ("timer", 20)


@pytest.mark.usefixtures("past")
def test_an_open_page_reads_no_history_again(visitor: TestClient) -> None:
    for path in ("/runs", "/audit", "/drift"):
        assert text(visitor, path).partition("<main")[2].count("data-live") == 0
    assert 'id="list" data-live' in text(visitor, "/nodes")


@pytest.mark.parametrize("wrong", ["from=yesterday", "to=0001-01-01T00:00%2B14:00", "result=bad"])
def test_a_filter_that_is_not_understood_is_an_error(visitor: TestClient, wrong: str) -> None:
    assert visitor.get(f"/runs?{wrong}").status_code == 400


def test_of_many_resources_a_run_names_some(visitor: TestClient, site: Site) -> None:
    many = tuple(replace(MOTD, type="File", title=f"/{number}") for number in range(30))
    run = summary("web01", site.now() - 500, outcome=Kind.CHANGED, resources=many, more=70)
    summarise(site, run)
    page = text(visitor, "/runs?node=web01")
    assert "and 97 more</a>" in page
    assert "<summary>25 more</summary>" in text(visitor, "/nodes/web01")


def callers_of(page: str) -> list[str]:
    return [one["caller"] for one in json.loads(page)["audit"]]


def test_requests_are_listed_filtered_and_exported(site: Site) -> None:
    decided(site)
    with site.visitor() as client:
        page = text(client, "/audit")
        for words in ("choria=alice", "disk is full, for 2h", f'href="/rollouts/{ROLLOUT}"'):
            assert words in page
        assert "<script>alert" not in page
        assert "read-only" in page, "the view needs no actions"
        everyone = ["choria=alice", "choria=bob", "choria=eve"]
        assert callers_of(text(client, "/audit.json")) == everyone
        assert callers_of(text(client, "/audit.json?sort=at")) == everyone[::-1]
        for query, callers in {
            "caller=choria%3Dbob": ["choria=bob"],
            "node=web01": ["choria=alice", "choria=eve"],
            "action=disable": ["choria=alice"],
            "decision=refused": ["choria=eve"],
            "name=DISK+is": ["choria=alice"],
            "rollouts=without+rollouts": ["choria=alice", "choria=eve"],
            f"name={ROLLOUT}": ["choria=bob"],
            "node=web03": [],
        }.items():
            assert callers_of(text(client, f"/audit.json?{query}")) == callers, query
        assert "'=cmd()" in text(client, "/audit.csv")
        assert text(client, "/audit.txt") == "web01\nweb02\n"
        for query in ("decision=maybe", "rollouts=maybe"):
            assert client.get(f"/audit?{query}").status_code == 400
        assert 'href="/audit?node=web01"' in text(client, "/nodes/web01")


def test_actions_of_the_dashboard_are_listed_even_if_no_node_answered(site: Site) -> None:
    actor = site.actor = PlayedActor()
    actor.dead = {"web01"}
    with site.visitor() as client:
        client.post("/nodes/do/noop", data=hidden(text(client, NOOP)))
        (sent,) = json.loads(text(client, "/audit.json"))["audit"]
        assert (sent["node"], sent["caller"], sent["action"], sent["decision"]) == (
            actor.machine,
            "choria=alice",
            "send",
            "refused",
        )
        assert sent["subject"] == "noop: 1 no answer; web01"
        assert f'href="/nodes/{actor.machine}"' not in text(client, "/audit")
