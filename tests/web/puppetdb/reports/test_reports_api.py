"""Reports over HTTP: the requests of Puppetboard's views, and the parts that only nodes have."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

import pytest

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import NodeName, RunId
from localpuppet.base.formats.times import show_epoch
from localpuppet.base.formats.values import Json
from localpuppet.fleet.history.history_records import RunCounts
from localpuppet.fleet.inventory.entry import CatalogSummary
from localpuppet.fleet.inventory.query.evaluating import Evaluation
from localpuppet.fleet.inventory.query.pql import parse_client_query
from localpuppet.fleet.inventory.query.records import CombinedRecords
from localpuppet.fleet.inventory.query.tree import Entity
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.web.puppetdb.app import population
from localpuppet.web.puppetdb.catalogs import CatalogSource
from localpuppet.web.puppetdb.report_rows import part_of_report
from tests.doubles.inventory import MemoryInventory
from tests.fleet.inventory.query.fleet import entry
from tests.fleet.make import a_part
from tests.web.puppetdb.served import MINUTE, NOW, V4, PlayedRuns, ServedApi, node, run

LATEST: Json = ["=", "latest_report?", True]
FILES = tuple(
    a_part(f"File[/{name}]", status=result, file="a.pp", line=3)
    for name, result in (
        ("a", ResourceResult.FAILED),
        ("b", ResourceResult.CHANGED),
        ("c", ResourceResult.CHANGED),
    )
)
RUNS = [
    run("a", NOW - 2 * MINUTE, Kind.CHANGED, resources=FILES[1:]),
    run("a", NOW - MINUTE, Kind.FAILED, resources=FILES, reason="File[/a]: no such user"),
    run("b", NOW, counts=RunCounts(total=40), environment="test"),
]
LOG = [
    "Notice: Compiled catalog for a in environment production in 0.02 seconds",
    "Error: Could not find user x",
    "  in the second line",
    "Error: /Stage[main]/Main/File[/a]/owner: change from 'root' to 'x' failed: no such user",
]


class PlayedNode:
    """A node that sends the log of a run, or refuses to."""

    refusal = ""

    async def log(self, name: NodeName, requested: RunId) -> Mapping[str, Json]:
        """Return the end of the log; see `telling.log_reply`."""
        if self.refusal:
            raise LocalpuppetError(self.refusal, where=name)
        assert (name, requested) == ("a", RUNS[1].run)
        origin: Json = {
            "time": "2026-11-20T14:00:00.5+01:00",
            "file": "/x/a/manifests/i.pp",
            "line": 3,
        }
        origins: Json = [None, None, None, origin]
        return {"lines": [*LOG], "before": 0, "left_out": 0, "origins": origins}


@pytest.fixture
def played() -> PlayedRuns:
    return PlayedRuns(RUNS, [node("a", outcome=Kind.FAILED), node("b")])


@pytest.fixture
def asked() -> PlayedNode:
    return PlayedNode()


@pytest.fixture
def api(played: PlayedRuns, asked: PlayedNode, tmp_path: Path) -> Iterator[ServedApi]:
    catalog = CatalogSummary(digest="0" * 64, size=1, resources=5)  # has the number itself
    reader = MemoryInventory([entry("a"), replace(entry("b"), catalog=catalog)])
    records = CombinedRecords([CatalogSource(reader, lambda _: [], played.records)])
    sources = {
        "details": partial(part_of_report, find=played.records.find, ask=asked.log),
        "metrics": lambda: population(Evaluation(reader, records)),
    }
    with ServedApi(tmp_path, records=played.records, sources=sources) as served:
        yield served


def test_the_view_of_a_report_finds_it_by_hash_or_configuration_version(api: ServedApi) -> None:
    (row,) = api.ask(f"{V4}/nodes", ["=", "certname", "a"]).json
    for name in (row["latest_report_hash"], "c" * 40):
        query: Json = [
            "and",
            ["=", "certname", "a"],
            ["or", ["=", "hash", name], ["=", "configuration_version", name]],
        ]
        found = api.ask(f"{V4}/reports", query).json
        assert row["latest_report_hash"] in [one["hash"] for one in found]
    report = next(one for one in found if one["hash"] == row["latest_report_hash"])
    # A list of reports has the data of the summaries, and sends no request to nodes.
    assert [line["level"] for line in report["logs"]["data"]] == ["err", "notice"]
    assert report["logs"]["data"][0]["message"] == "File[/a]: no such user"
    assert len(report["resource_events"]["data"]) == 3
    events = api.ask(report["resource_events"]["href"]).json
    assert sorted(one["status"] for one in events) == ["failure", "success", "success"]


def test_events_are_found_by_the_file_of_their_resource(api: ServedApi) -> None:
    """The file starts at the directory of its module; see `RunResource`."""
    every = len(api.ask(f"{V4}/events").json)
    conditions: list[tuple[Json, int]] = [
        (["~", "file", "^a[.]pp$"], every),
        (["=", "file", "a.pp"], every),
        (["~", "file", "/a[.]pp"], 0),
        (["not", ["~", "file", "^a"]], 0),
    ]
    for condition, found in conditions:
        assert len(api.ask(f"{V4}/events", condition).json) == found, condition
    assert every


def test_the_log_of_a_report_comes_from_the_node_after_the_reason(
    api: ServedApi, asked: PlayedNode, played: PlayedRuns
) -> None:
    (row,) = api.ask(f"{V4}/nodes", ["=", "certname", "a"]).json
    logs = f"{V4}/reports/{row['latest_report_hash']}/logs"
    lines = api.ask(logs).json
    assert [(line["level"], line["source"], line["message"]) for line in lines] == [
        ("err", "File[/a]", "File[/a]: no such user"),
        ("notice", "Puppet", LOG[0].removeprefix("Notice: ")),
        ("err", "Puppet", "Could not find user x\n  in the second line"),
        (
            "err",
            "/Stage[main]/Main/File[/a]/owner",
            "change from 'root' to 'x' failed: no such user",
        ),
    ]
    places = [(line["time"], line["file"], line["line"]) for line in lines]
    ended = RUNS[1].finished_at
    assert places[0] == (show_epoch(ended), "a.pp", 3), "of the resource that failed first"
    assert places[2] == (show_epoch(ended), None, None)
    assert places[3] == ("2026-11-20T13:00:00.500Z", "/x/a/manifests/i.pp", 3)
    asked.refusal = "your policy has no 'log'"
    status, text = api.ask(logs).error
    assert status == 503
    assert "your policy has no 'log'" in text
    asked.refusal = ""
    played.put(node("a", outcome=Kind.FAILED, state="unresponsive"))
    assert api.ask(logs).error == (503, "a: is unresponsive, and only it has the log")
    assert api.ask(f"{V4}/reports/{'0' * 40}/logs").status == 404


def test_a_single_report_has_the_log_of_its_node_or_a_warning(
    api: ServedApi, asked: PlayedNode
) -> None:
    query: Json = ["and", ["=", "certname", "a"], ["=", "status", "failed"]]
    (report,) = api.ask(f"{V4}/reports", query).json
    assert [line["message"] for line in report["logs"]["data"]][2:] == [
        "Could not find user x\n  in the second line",
        "change from 'root' to 'x' failed: no such user",
    ]
    asked.refusal = "unreachable"
    (report,) = api.ask(f"{V4}/reports", query).json
    lines = [(line["level"], line["message"]) for line in report["logs"]["data"]]
    assert lines[0] == ("err", "File[/a]: no such user")
    assert lines[-1][0] == "warning"
    assert "unreachable" in lines[-1][1]
    # By its hash only, as the list of failures asks for each failed node: no node is asked.
    (report,) = api.ask(f"{V4}/reports", ["=", "hash", report["hash"]]).json
    assert [line["level"] for line in report["logs"]["data"]] == ["err", "notice"]


@pytest.mark.parametrize(
    ("state", "reports"),
    [(None, ["b"]), ("active", ["b"]), ("inactive", ["a", "a"]), ("any", "aab")],
)
def test_reports_of_a_forgotten_node_are_left_out_unless_they_are_named(
    played: PlayedRuns, api: ServedApi, state: str | None, reports: str
) -> None:
    played.put(node("b"))
    played.forgotten = {"a", "b"}  # b came back
    where: list[Json] = [] if state is None else ["=", "node_state", state]

    def names(path: str, *more: Json) -> list[str]:
        query: list[Json] = ["and", *([where] if where else []), *more] if where or more else []
        return sorted(row["certname"] for row in api.ask(V4 + path, query or None).json)

    assert names("/reports") == [*reports]
    assert names("/reports", LATEST) == sorted({*reports})
    assert set(names("/events")) == {*reports} - {"b"}
    assert names("/reports", ["~", "certname", "."]) == [*reports]
    if state == "any":
        assert len(api.ask(f"{V4}/reports", ["not", where]).json) == len(reports)
    count: list[Json] = ["extract", [["function", "count"]], *([where] if where else [])]
    assert api.ask(f"{V4}/reports", count).json == [{"count": len(reports)}]
    paged = api.ask(f"{V4}/reports", where or None, limit="1", include_total="true")
    assert paged.headers["x-records"] == str(len(reports))


def test_a_state_that_nodes_do_not_have_is_rejected(api: ServedApi) -> None:
    assert api.ask(f"{V4}/reports", ["=", "node_state", "dead"]).error == (
        400,
        "the field node_state is 'active', 'inactive' or 'any'",
    )


def test_resources_with_hidden_titles_are_told_apart(played: PlayedRuns, api: ServedApi) -> None:
    hidden = [
        a_part("Exec[…]", status=ResourceResult.CHANGED, file="a.pp", line=line) for line in (1, 2)
    ]
    played.add(run("c", NOW, Kind.CHANGED, resources=tuple(hidden)))
    query: Json = ["=", "certname", "c"]
    rows = api.ask(f"{V4}/event-counts", query, summarize_by="resource").json
    assert [row["subject"]["title"] for row in rows] == ["… (a.pp:1)", "… (a.pp:2)"]
    title: Json = ["=", "resource_title", "… (a.pp:2)"]
    assert len(api.ask(f"{V4}/events", title).json) == 1
    for form in ("apt-get update", "x;y"):
        conditions: list[Json] = [
            ["=", "resource_title", form],
            ["in", "resource_title", ["array", ["ok", form]]],
        ]
        for condition in conditions:
            status, text = api.ask(f"{V4}/events", condition).error
            assert (status, f"the title {form!r} stays on its node" in text) == (400, True)


def test_each_failed_resource_has_a_line_with_its_place(played: PlayedRuns, api: ServedApi) -> None:
    failed = [
        a_part(f"Exec[{name}]", status=ResourceResult.FAILED, file="b.pp", line=7)
        for name in ("x", "y")
    ]
    played.add(run("c", NOW, Kind.FAILED, resources=tuple(failed), reason="Could not start"))
    (report,) = api.ask(f"{V4}/reports", ["~", "certname", "^c"]).json
    lines = [one for one in report["logs"]["data"] if one["level"] == "err"]
    assert [(one["source"], one["message"], one["file"], one["line"]) for one in lines] == [
        ("Exec[x]", "Could not start", "b.pp", 7),
        ("Exec[y]", "failed, too", "b.pp", 7),
    ]


def test_metrics_of_a_report_need_no_node(api: ServedApi, asked: PlayedNode) -> None:
    asked.refusal = "unreachable"
    (row,) = api.ask(f"{V4}/nodes", ["=", "certname", "b"]).json
    metrics = api.ask(f"{V4}/reports/{row['latest_report_hash']}/metrics").json
    assert {"category": "resources", "name": "total", "value": 40} in metrics
    assert {"category": "time", "name": "total", "value": 20} in metrics


def test_a_report_that_a_node_should_have_sent_needs_no_node(
    api: ServedApi, asked: PlayedNode, played: PlayedRuns
) -> None:
    asked.refusal = "unreachable"
    played.put(node("b", state="unresponsive", received_at=NOW))
    (row,) = api.ask(f"{V4}/nodes", ["=", "certname", "b"]).json
    logs = api.ask(f"{V4}/reports/{row['latest_report_hash']}/logs").json
    assert logs[0]["level"] == "err"
    assert logs[0]["message"].startswith("the node is unresponsive")


def test_event_counts_by_resource_are_filtered_and_sorted(api: ServedApi) -> None:
    counts = api.ask(
        f"{V4}/event-counts",
        summarize_by="resource",
        counts_filter='["or", [">=", "successes", 2], [">", "failures", 0]]',
        order_by='[{"field": "successes", "order": "desc"}]',
        limit="2",
    ).json
    assert [(row["subject"], row["successes"], row["failures"]) for row in counts] == [
        ({"type": "File", "title": "/b"}, 2, 0),
        ({"type": "File", "title": "/c"}, 2, 0),
    ]
    nodes = api.ask(f"{V4}/event-counts", summarize_by="resource", count_by="certname").json
    assert [row["successes"] for row in nodes] == [0, 1, 1]


@pytest.mark.parametrize(
    "parameters",
    [
        {"summarize_by": "color"},
        {"summarize_by": "certname", "count_by": "color"},
        {"summarize_by": "certname", "counts_filter": '["=", "certname", 1]'},
        {"summarize_by": "certname", "counts_filter": "[" * 200 + "]" * 200},
        {"summarize_by": "certname", "counts_filter": '["=", "skips", "x"]'},
        {"summarize_by": "certname", "distinct_resources": "true"},
        {"summarize_by": "certname", "include_total": "true"},
    ],
)
def test_impossible_counts_are_rejected(api: ServedApi, parameters: dict[str, str]) -> None:
    assert api.ask(f"{V4}/event-counts?{urlencode(parameters)}").status == 400


def test_metrics_of_the_population_are_true_and_others_do_not_exist(api: ServedApi) -> None:
    prefix = "/metrics/v2/read/puppetlabs.puppetdb.population:name="
    assert api.ask(prefix + "num-nodes").json["value"] == {"Value": 2}
    assert api.ask(prefix + "num-resources").json["value"] == {"Value": 9 + 5}
    assert api.ask(prefix + "avg-resources-per-node").json["value"] == {"Value": 7.0}
    assert api.ask(prefix + "pct-resource-dupes").json["status"] == 404
    assert api.ask("/metrics/v2/read/java.lang:type=Memory").json["status"] == 404


def test_the_overview_counts_resources_of_an_environment(played: PlayedRuns) -> None:
    """Puppetboard shows an environment first; whole catalogs may not be published."""
    entries = [entry("a", environment="test"), entry("b", environment="test"), entry("c")]

    def number(where: Json) -> int:
        reader = MemoryInventory(entries)
        source = CatalogSource(reader, lambda _: [], played.records)
        query = parse_client_query(
            {"query": ["extract", [["function", "count"]], where]}, Entity.RESOURCES
        )
        found = Evaluation(reader, records=source).stream(query.select)
        return int(json.loads(next(found.rows))["count"])

    assert number(["=", "environment", "test"]) == 49
    # A published catalog has the number itself.
    catalog = CatalogSummary(digest="0" * 64, size=1, resources=5)
    entries[1] = replace(entries[1], catalog=catalog)
    assert number(["=", "environment", "test"]) == 9 + 5
    assert number(["=", "certname", "b"]) == 5
    assert number(["=", "environment", "production"]) == 0
    with pytest.raises(InvalidInputError, match="2 of 3 nodes do not publish their catalog"):
        number(["and", ["=", "title", "of a catalog"]])
