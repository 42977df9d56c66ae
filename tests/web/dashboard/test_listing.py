"""Lists: as pages, and as files."""

import csv
import io
import json
import re

from starlette.testclient import TestClient

from localpuppet.base.formats.names import NodeName, RolloutId
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.rollout.events import (
    Event,
    NodeResult,
    NodeRun,
    NodeRunEnded,
    NodeRunsStarted,
    RolloutBegan,
)
from localpuppet.rollout.journal import Journals
from localpuppet.rollout.rollout_options import RolloutOptions
from tests.web.dashboard.past import summarise, summary
from tests.web.dashboard.site import EVIL, MAX_STALE, Site, listed, run_id, staged, status, text


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


def test_the_list_of_nodes_shows_its_selected_filters(
    visitor: TestClient,
) -> None:
    page = text(visitor, "/nodes?outcome=compile+failed&release=web%2Ftags%2Fr7")
    assert listed(page) == ["web02"]
    assert re.findall(r"<option selected>(.*?)</option>", page) == ["compile failed"]
    # Other filters stay.
    assert '<input type="hidden" name="release" value="web/tags/r7">' in page
    assert 'type="hidden" name="outcome"' not in page
    assert re.findall(r"<option selected>(.*?)</option>", text(visitor, "/nodes?is=late")) == [
        "late"
    ]


def test_failures_have_a_row_for_each_cause_with_all_its_nodes_behind_it(
    site: Site, visitor: TestClient
) -> None:
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
    assert listed(page) == ["web/tags/r7", "web/tags/r9"]
    for words in (
        "r7 bbbbbbbbbbbb",
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
    (record, other) = json.loads(text(visitor, "/releases.json"))["releases"]
    assert (record["count"], record["wrong_release"], other["count"]) == (9, 1, 0)
    assert text(visitor, "/releases.txt?name=r9") == ""
    assert listed(text(visitor, "/releases?q=role%3Dweb")) == ["web/tags/r7"]


AT = "2026-11-22T11:00:00.000000Z"


ROLLOUT = RolloutId.parse("20261122T110000Z-00aa")


NODES = tuple(NodeName.parse(f"web{number}.example.com") for number in range(4))


def rolled_out(site: Site, *events: Event) -> None:
    began = RolloutBegan(
        id=ROLLOUT,
        caller="choria=alice",
        groups=(NODES[:2], NODES[2:]),
        options=RolloutOptions(),
        title=f"shop {EVIL}",
    )
    journal = Journals(site.directory / "rollouts").begin(began, at=AT)
    for event in events:
        journal.append(event, at=AT)
    journal.close()


def test_a_rollout_is_shown_group_by_group(site: Site, visitor: TestClient) -> None:
    assert "No rollout has started on this machine" in text(visitor, "/rollouts")
    first, second = NodeRun(1, NODES[0]), NodeRun(1, NODES[1])
    run = str(run_id(site.now()))
    rolled_out(
        site,
        NodeRunsStarted(node_runs=(first, second)),
        NodeRunEnded(
            node_run=first, result=NodeResult.FAILED, outcome="failed", run=run, reason=EVIL
        ),
    )
    site.clock.advance(2)
    page = text(visitor, "/rollouts")
    assert listed(page) == [ROLLOUT]
    assert "interrupted" in page  # no process runs it
    page = text(visitor, f"/rollouts/{ROLLOUT}")
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    assert "Group 1 running 1 failed 1 running" in words
    assert "Group 2 not started 2 not started" in words
    assert f'href="/nodes/{NODES[0]}/runs/{run}"' in page
    for one in (page, text(visitor, "/rollouts")):
        assert "<script>alert" not in one
    told = json.loads(text(visitor, f"/rollouts/{ROLLOUT}.json"))
    assert [run["outcome"] for run in told["groups"][0]["runs"]] == ["failed", None]
    assert text(visitor, "/rollouts.txt?name=alice") == f"{ROLLOUT}\n"
    assert text(visitor, "/rollouts.txt?name=bob") == ""
    assert "this machine has no rollout" in text(visitor, "/rollouts/20261122T110000Z-00ab", 404)


def test_a_journal_that_is_damaged_hides_no_other(site: Site, visitor: TestClient) -> None:
    rolled_out(site)
    (site.directory / "rollouts" / "20261122T120000Z-00aa.sqlite").write_bytes(b"no database" * 99)
    page = text(visitor, "/rollouts")
    assert listed(page) == [ROLLOUT, "20261122T120000Z-00aa"]
    assert "damaged" in page
    page = text(visitor, "/rollouts/20261122T120000Z-00aa", 503)
    assert "move it away" in page
    # Only a sentence gets a capital letter: a place may be a host name.
    assert 'class="empty"' in page
    assert 'class="empty sentence"' in text(visitor, "/nodes/absent.example.com", 404)


def test_a_long_list_has_pages_and_its_file_has_all(site: Site, visitor: TestClient) -> None:
    site.tell(*(status(f"n{number:03}", site.now()) for number in range(250)))
    page = text(visitor, "/nodes?name=n0")
    assert len(listed(page)) == 100
    assert len(listed(text(visitor, "/nodes?page=3&name=n"))) == 50
    assert 'rel="next"' in page or "page 1 of" not in page
    assert len(text(visitor, "/nodes.txt?name=n").splitlines()) == 250
    assert "This page is empty" in text(visitor, "/nodes?page=9")


def test_a_failure_names_the_rollout_or_the_trigger_of_its_newest_run(
    site: Site, visitor: TestClient
) -> None:
    now = site.now()
    rollout = "choria=bob/rollout/20261122T110000Z-00aa"
    for node, cause, reason in (("x1", rollout, "disk full"), ("x2", "trigger from lb01", "OOM")):
        summarise(site, summary(node, now - 60, outcome=Kind.FAILED, cause=cause))
        site.tell(status(node, now - 60, last_run={"outcome": "failed", "reason": reason}))
    for url in ("/", "/failures"):
        page = text(visitor, url)
        assert f'cause: <a href="/rollouts/20261122T110000Z-00aa">{rollout}</a>' in page, url
        assert "cause: trigger from lb01" in page, url
