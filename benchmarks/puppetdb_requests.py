"""Requests that `puppetdb.py` sends to PuppetDB and to localpuppet, beside the queries.

Owns: requests as Puppetboard, pypuppetdb, octocatalog-diff, Bolt and exporters send them, each
entity with its own parameters, pages, and requests that fail.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

from puppetdb_queries import QUERIES

from localpuppet.base.formats.values import Json

V4 = "/pdb/query/v4"
NODE = "n02.example.com"
LATEST = ["=", "latest_report?", True]
COUNT = ["function", "count"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request.

    Attributes:
        path: The path.
        parameters: Parameters; those that are not text are sent as JSON.
        post: Whether they are sent as JSON in a body.
    """

    path: str
    parameters: dict[str, object] = field(default_factory=dict)
    post: bool = False

    @property
    def target(self) -> str:
        """Return path and parameters as a GET sends them."""
        texts = {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in self.parameters.items()
        }
        return f"{quote(self.path)}{'?' if texts else ''}{urlencode(texts)}"

    @property
    def body(self) -> bytes | None:
        """Return the body of a POST; `None` for a GET."""
        return json.dumps(self.parameters).encode() if self.post else None

    @property
    def is_ordered(self) -> bool:
        """Whether the order of the answer's rows counts."""
        return "order" in json.dumps(self.parameters)

    def __str__(self) -> str:
        words = [*(["POST"] if self.post else []), self.path.removeprefix(V4) or "/"]
        for key, value in self.parameters.items():
            words.append(f"{key}={value if isinstance(value, str) else json.dumps(value)}")
        return " ".join(words)


def get(path: str, query: object = None, **parameters: object) -> Request:
    """Return a GET below `V4`."""
    asked = {} if query is None else {"query": query}
    return Request(path=V4 + path, parameters={**asked, **parameters})


def order(*fields: str) -> Json:
    """Return the parameter `order_by`; a field with `-` is descending."""
    return [
        {"field": name.removeprefix("-"), "order": "desc" if name.startswith("-") else "asc"}
        for name in fields
    ]


def overview(environment: str = "production") -> list[Request]:
    """Return what Puppetboard's overview requests, without the chart."""
    nodes = ["and", ["=", "catalog_environment", environment]]
    return [
        get("/environments"),
        get("/nodes", ["extract", [COUNT], nodes]),
        get("/resources", ["extract", [COUNT], ["=", "environment", environment]]),
        get("/nodes", nodes),
        get("/event-counts", LATEST, summarize_by="certname"),
    ]


def chart(begin: str, end: str, *more: object) -> Request:
    """Return what Puppetboard's chart requests for a day."""
    times = [[">=", "producer_timestamp", begin], ["<", "producer_timestamp", end]]
    wanted = ["and", *times, *more]
    return get("/reports", ["extract", [COUNT, "status"], wanted, ["group_by", "status"]])


def requests(chosen: str) -> Iterator[Request]:
    """Yield all requests.

    Args:
        chosen: The hash of a report.
    """
    yield from (get("", query) for query in QUERIES)
    for some in (_nodes, _facts, _events, _catalogs, _errors):
        yield from some()
    yield from _reports(chosen)


def _nodes() -> Iterator[Request]:
    yield from overview()
    yield from overview("nosuch")
    yield get("/nodes", order_by=order("certname"), limit=5, offset=2, include_total=True)
    yield get("/nodes", ["~", "certname", "n0"], order_by=order("-certname"), limit="3")
    yield get(f"/nodes/{NODE}")
    yield get("/nodes/nosuch.example.com")
    yield get(f"/nodes/{NODE}/facts")
    yield get(f"/nodes/{NODE}/facts/kernel")
    yield get(f"/nodes/{NODE}/facts/kernel/Linux")
    yield get(f"/nodes/{NODE}/resources")
    yield get(f"/nodes/{NODE}/resources/Class")
    yield get(f"/nodes/{NODE}/resources/Class/Ntp")
    yield get("/nodes/nosuch.example.com/facts")
    for status in ("failed", "changed", "unchanged"):
        yield get("/nodes", ["=", "latest_report_status", status])
    yield get("/nodes", ["=", "latest_report_noop", True])
    yield get("/nodes", ["=", "latest_report_noop_pending", True])
    yield get("/nodes", ["=", "latest_report_corrective_change", True])
    yield get("/nodes", ["=", "cached_catalog_status", "not_used"])
    yield get("/nodes", ["null?", "report_timestamp", True])
    yield get("/nodes", [">", "report_timestamp", "2026-01-01T00:00:00Z"])
    yield get("/nodes", ["=", ["node", "active"], True])
    yield get("/nodes", ["=", "node_state", "active"])
    yield get(
        "/nodes",
        [
            "extract",
            [COUNT, "latest_report_status"],
            ["~", "certname", "."],
            ["group_by", "latest_report_status"],
        ],
    )
    yield get("", "nodes[certname] { latest_report_status = 'failed' order by certname }")
    yield get("", "nodes { reports { status = 'failed' and latest_report? = true } }")
    yield get("", "nodes[certname] { certname in reports[certname] { status = 'changed' } }")
    yield Request(path=f"{V4}/nodes", parameters={"query": ["=", "certname", NODE]}, post=True)
    yield Request(
        path=V4,
        parameters={"query": "nodes[certname] { }", "limit": 2, "order_by": order("certname")},
        post=True,
    )
    yield Request(path="/pdb/meta/v1/version")


def _facts() -> Iterator[Request]:
    yield get("/facts", ["=", "certname", NODE])
    yield get("/facts/kernel")
    yield get("/facts/osfamily/Debian")
    yield get("/facts/nosuch")
    yield get("/facts/kernel", order_by=order("certname"), limit=2, include_total=True)
    yield get(
        "/facts", ["extract", [COUNT, "value"], ["=", "name", "osfamily"], ["group_by", "value"]]
    )
    yield get("/facts", ["extract", [["function", "avg", "value"]], ["=", "name", "load"]])
    for function in ("avg", "sum", "min", "max", "count"):
        yield get("", f"fact_contents[{function}(value)] {{ name = 'load' }}")
    yield get("", "facts[name, count()] { group by name order by count() desc limit 3 }")
    yield get("/fact-names")
    yield get("/fact-names", limit=3, offset=1, include_total=True)
    yield get("/fact-paths", order_by=order("path"))
    yield get("/fact-paths", ["=", "type", "boolean"])
    yield get("/fact-paths", ["~>", "path", ["networking", "interfaces", ".*", "ip"]])
    yield get("/fact-contents", ["=", "certname", NODE])
    yield get("/fact-contents", ["and", ["=", "path", ["os", "family"]], ["=", "value", "Debian"]])
    yield get("/factsets", ["=", "certname", NODE])
    yield get("/factsets", ["extract", ["certname", "environment"], ["~", "certname", "n0[12]"]])
    yield get(f"/factsets/{NODE}")
    yield get(f"/factsets/{NODE}/facts")
    yield get("/factsets/nosuch.example.com")
    yield get("/environments")
    yield get("/environments/production")
    yield get("/environments/nosuch")
    yield get("/environments/testing/facts/kernel")
    yield get("/environments/testing/facts", ["=", "name", "kernel"])
    yield get("/inventory", ["=", "certname", NODE])
    yield get("/inventory", ["=", "facts.kernel", "Linux"], limit=2, order_by=order("certname"))
    yield get(
        "/inventory",
        [
            "extract",
            ["facts.os.name", COUNT],
            ["~", "certname", "."],
            ["group_by", "facts.os.name"],
        ],
    )
    yield get("/facts", ["in", ["certname", "name"], ["array", [[NODE, "kernel"]]]])
    yield get(
        "/facts",
        [
            "and",
            ["=", "name", "kernel"],
            ["in", "certname", ["extract", "certname", ["select_facts", ["=", "value", "blue"]]]],
        ],
    )
    yield get(
        "/facts",
        [
            "and",
            ["=", "name", "load"],
            [
                "in",
                ["certname"],
                ["from", "nodes", ["extract", ["certname"], ["=", "facts_environment", "testing"]]],
            ],
        ],
    )


def _reports(chosen: str) -> Iterator[Request]:
    yield get("/reports", order_by=order("-end_time", "certname"), limit=3, include_total=True)
    yield get("/reports", LATEST)
    yield get("/reports", ["=", "certname", NODE], order_by=order("-start_time"), limit=2)
    yield get("/reports", ["=", "hash", chosen])
    yield get("/reports", ["and", ["=", "certname", NODE], ["=", "status", "changed"]])
    yield get("/reports", ["=", "noop_pending", True])
    yield get("/reports", ["=", "noop", True])
    yield get("/reports", ["=", "corrective_change", True])
    yield get("/reports", ["~", "status", "^fail"])
    yield get("/reports", ["=", "environment", "production"], limit=2, order_by=order("end_time"))
    yield get("/reports", ["extract", ["certname", "status"], LATEST])
    yield get(
        "/reports",
        [
            "extract",
            [COUNT, "status", "certname"],
            ["~", "certname", "n0[1-3]"],
            ["group_by", "status", "certname"],
        ],
    )
    yield get(
        "/reports",
        [
            "extract",
            [["function", "max", "end_time"], "certname"],
            ["~", "certname", "n0[1-3]"],
            ["group_by", "certname"],
        ],
    )
    yield chart("2020-01-01T00:00:00.000Z", "2100-01-01T00:00:00.000Z")
    yield chart("2020-01-01T00:00:00.000Z", "2100-01-01T00:00:00.000Z", ["=", "certname", NODE])
    yield chart("2020-01-01T00:00:00.000Z", "2020-01-02T00:00:00.000Z")
    yield get("/environments/production/reports", limit=2, order_by=order("end_time"))
    yield get("", "reports[certname, status] { latest_report? = true order by certname limit 4 }")
    yield get("", "reports[count()] { status != 'failed' }")
    yield get("", "reports[certname] { end_time > '2100-01-01' }")
    yield get("", "reports[certname, hash] { events { resource_type = 'Package' } }")
    for part in ("events", "metrics", "logs"):
        yield get(f"/reports/{chosen}/{part}")
    yield get("/reports/0000000000000000000000000000000000000000/events")
    yield get("/reports/0000000000000000000000000000000000000000/logs")


def _events() -> Iterator[Request]:
    yield get("/events", LATEST)
    yield get("/events", ["=", "certname", NODE])
    yield get("/events", ["and", LATEST, ["=", "status", "failure"]])
    yield get("/events", ["=", "resource_type", "Package"])
    yield get(
        "/events",
        ["~", "resource_title", "^/etc/shop"],
        limit=3,
        include_total=True,
        order_by=order("-timestamp", "resource_title", "certname"),
    )
    yield get("/events", ["=", "corrective_change", True])
    yield get("/events", ["extract", [COUNT, "status"], LATEST, ["group_by", "status"]])
    yield get("/events", ["=", "containing_class", "Profile::Shop"])
    yield get("", "events[certname, resource_title, status] { status = 'noop' }")
    yield get("", "events[resource_type, count()] { latest_report? = true group by resource_type }")
    for by in ("certname", "resource", "containing_class"):
        yield get("/event-counts", LATEST, summarize_by=by)
        yield get("/aggregate-event-counts", LATEST, summarize_by=by)
    yield get("/event-counts", LATEST, summarize_by="certname", count_by="certname")
    yield get("/event-counts", LATEST, summarize_by="resource", count_by="certname")
    yield get("/event-counts", LATEST, summarize_by="certname", counts_filter=[">", "failures", 0])
    yield get(
        "/event-counts",
        LATEST,
        summarize_by="certname",
        order_by=order("-successes", "subject_title"),
        limit=2,
        include_total=True,
    )
    yield get(
        "/event-counts",
        ["=", "certname", NODE],
        summarize_by="certname",
        distinct_resources=True,
        distinct_start_time="2020-01-01T00:00:00Z",
        distinct_end_time="2100-01-01T00:00:00Z",
    )
    yield get("/aggregate-event-counts", LATEST, summarize_by="certname,resource")
    yield get("/aggregate-event-counts", ["=", "certname", NODE], summarize_by="resource")


def _catalogs() -> Iterator[Request]:
    yield get(f"/catalogs/{NODE}")
    yield get("/catalogs/nosuch.example.com")
    yield get(f"/catalogs/{NODE}/resources")
    yield get(f"/catalogs/{NODE}/edges")
    yield get("/catalogs", ["=", "certname", NODE])
    yield get("/edges", ["=", "certname", NODE])
    yield get("/edges", ["and", ["=", "certname", NODE], ["=", "relationship", "contains"]])
    yield get("/resources", ["=", "certname", NODE])
    yield get("/resources/Class", ["=", "certname", NODE])
    yield get("/resources/File", ["extract", ["certname", "title"], ["=", "certname", NODE]])
    yield get("/resources/Class/Ntp")
    yield get(
        "/resources", ["extract", ["type", COUNT], ["=", "certname", NODE], ["group_by", "type"]]
    )
    yield get(
        "/resources",
        [
            "and",
            ["=", "certname", NODE],
            ["=", "type", "File"],
            ["=", ["parameter", "ensure"], "file"],
        ],
    )
    yield get("/resources", ["and", ["=", "type", "Class"], ["=", "tag", "ntp"]])
    yield get("", "catalogs[certname, environment] { certname ~ 'n0[1-3]' }")


def _errors() -> Iterator[Request]:
    yield get("")
    yield get("", "nodes {")
    yield get("", "nosuch { }")
    yield get("", "nodes { nosuch = 1 }")
    yield get("/nodes", "[")
    yield get("/nodes", ["=", "nosuch", 1])
    yield get("/nodes", ["nosuch", "certname", "x"])
    yield get("/nodes", ["=", "certname"])
    yield get("/nodes", ["~", "certname", "("])
    yield get("/nodes", ["and"])
    yield get("/nodes", limit="x")
    yield get("/nodes", limit="-1")
    yield get("/nodes", limit="0")
    yield get("/nodes", offset="-1")
    yield get("/nodes", nosuch="1")
    yield get("/nodes", order_by="x")
    yield get("/nodes", order_by=[{"field": "nosuch"}])
    yield get("/nodes", order_by=[{"field": "certname", "order": "sideways"}])
    yield get("/nodes", ["extract", "nosuch", LATEST])
    yield get("/nodes", ["extract", [["function", "nosuch"]], ["~", "certname", "."]])
    yield get("/facts", [">", "value", "x"])
    yield get("/reports", [">", "end_time", "yesterday"])
    yield get("/event-counts", LATEST)
    yield get("/event-counts", LATEST, summarize_by="nosuch")
    yield get("/event-counts", summarize_by="certname")
    yield get("/event-counts", LATEST, summarize_by="certname", count_by="nosuch")
    yield get("/aggregate-event-counts", LATEST)
    yield get("/nosuch")
    yield get("/nodes/a/b/c")
    yield Request(path="/pdb/query/v3/nodes")
    yield Request(path="/pdb/nosuch")
    yield Request(path=f"{V4}/nodes", parameters={"query": "["}, post=True)
