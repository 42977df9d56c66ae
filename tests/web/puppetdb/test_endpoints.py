"""Each path of PuppetDB's query API is one query."""

import pytest

from localpuppet.web.puppetdb.endpoints import endpoint_of


@pytest.mark.parametrize(
    ("path", "entity", "only", "parents"),
    [
        ("catalogs", "catalogs", {}, []),
        ("catalogs/a", "catalogs", {"certname": "a"}, []),
        ("catalogs/a/edges", "edges", {"certname": "a"}, ["catalog a"]),
        (
            "catalogs/a/resources/File/b",
            "resources",
            {"type": "File", "title": "b", "certname": "a"},
            ["catalog a"],
        ),
        ("factsets/a/facts", "factsets", {"certname": "a"}, ["factset a"]),
        ("nodes/a/facts/os/x", "facts", {"name": "os", "value": "x", "certname": "a"}, ["node a"]),
        ("environments/p/facts", "facts", {"environment": "p"}, ["environment p"]),
        ("environments/p/events", "events", {"environment": "p"}, ["environment p"]),
        (
            "environments/p/reports/h/events",
            "events",
            {"report": "h", "environment": "p"},
            ["environment p", "report h"],
        ),
        ("reports/h/logs", "reports", {"hash": "h"}, ["report h"]),
        ("event-counts", "event_counts", {}, []),
        ("package-inventory", "package_inventory", {}, []),
    ],
)
def test_a_path_is_a_query(
    path: str, entity: str, only: dict[str, str], parents: list[str]
) -> None:
    endpoint = endpoint_of(path.split("/"))
    assert endpoint is not None
    assert (endpoint.entity, dict(endpoint.only)) == (entity, only)
    assert [f"{one.name} {one.value}" for one in endpoint.parents] == parents


@pytest.mark.parametrize(
    "path",
    [
        "nodes/a/edges",
        "nodes/a/facts/b/c/d",
        "nodes/a/",
        "catalogs/a/facts",
        "factsets/a/b",
        "reports/h",
        "events/x",
        "inventory/x",
        "environments/p/nodes",
        "nothing",
    ],
)
def test_another_path_is_no_endpoint(path: str) -> None:
    assert endpoint_of(path.split("/")) is None
