"""Paths and parameters of the API: PuppetDB's status codes, messages and recorded answers."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from localpuppet.base.formats.values import Json
from localpuppet.web.puppetdb.api_requests import endpoint_of
from localpuppet.web.puppetdb.app import list_mbeans, read_mbeans
from tests.doubles.inventory import MemoryInventory
from tests.fleet.inventory.query.fleet import entry
from tests.rigs.node import PATIENCE
from tests.web.puppetdb.served import V4, ServedApi

FLEET = [
    entry("db01.example.com", {"os": {"family": "RedHat"}, "a/b": "x y"}, classes=("postgresql",)),
    entry("web01.example.com", {"os": {"family": "Debian"}}, environment="testing"),
    entry("web02.example.com", {"os": {"family": "Debian"}}),
]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    reader = MemoryInventory(FLEET)
    with ServedApi(tmp_path_factory.mktemp("api"), reader) as served:
        reader.current = served.clock.now().timestamp()
        yield served


def names(rows: Any) -> list[str]:
    return list(dict.fromkeys(row["certname"].partition(".")[0] for row in rows))


@pytest.mark.parametrize(
    ("path", "query", "nodes"),
    [
        ("/facts", ["=", "name", "a/b"], ["db01"]),
        ("/facts/a%2Fb", None, ["db01"]),
        ("/facts/a%2Fb/x%20y", None, ["db01"]),
        ("/resources/Class", ["extract", "certname", ["=", "title", "Postgresql"]], ["db01"]),
        ("/resources/Class", ["extract", "certname", ["group_by", "certname"]], ["db01"]),
        ("/inventory", ["=", "facts.os.family", "Debian"], ["web01", "web02"]),
    ],
)
def test_a_path_selects_rows(api: ServedApi, path: str, query: Json, nodes: list[str]) -> None:
    assert names(api.ask(V4 + path, query).json) == nodes


def test_a_get_may_have_its_parameters_in_a_form(api: ServedApi) -> None:
    """puppetdb-ruby sends them like that; a client must not get all nodes instead of one."""
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    form = urlencode({"query": '["=","certname","web01.example.com"]'}).encode()
    assert names(api.ask(f"{V4}/nodes", headers=headers, body=form).json) == ["web01"]
    assert api.ask(f"{V4}/nodes", headers=headers, body=b"query=null").status == 200


def test_a_producer_is_an_object_with_what_it_sent(api: ServedApi) -> None:
    name = "web01.example.com"
    assert api.ask(f"{V4}/producers/{name}").json == {"name": name}
    assert names(api.ask(f"{V4}/producers/{name}/factsets").json) == ["web01"]
    absent = api.ask(f"{V4}/producers/web09/factsets")
    assert absent.status == 404
    assert json.loads(absent.text) == {"error": "No information is known about producer web09"}


@pytest.mark.parametrize("path", [f"{V4}/nosuch", "/pdb/nosuch", "/nosuch"])
def test_a_path_that_is_not_there_is_named(api: ServedApi, path: str) -> None:
    assert api.ask(path).text == (
        f"Not Found: {path} is no path of PuppetDB's API that localpuppet answers"
    )


def test_a_post_has_its_parameters_in_a_json_body_or_in_a_form(api: ServedApi) -> None:
    kind = {"Content-Type": "application/json"}
    body = json.dumps({"query": ["~", "certname", "web"], "limit": 1}).encode()
    posted = api.ask(f"{V4}/nodes", method="POST", body=body, headers=kind)
    assert names(posted.json) == ["web01"]
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    posted = api.ask(V4, method="POST", body=b"query=nodes%7B%7D", headers=kind)
    assert names(posted.json) == ["db01", "web01", "web02"]


@pytest.mark.parametrize(
    ("path", "parameters", "error"),
    [
        ("/nodes", {"color": "red"}, "Unsupported query parameter 'color'"),
        ("", {}, "Missing required query parameter 'query'"),
        ("/event-counts", {}, "Missing required query parameter 'summarize_by'"),
        ("/nodes", {"timeout": "-1"}, "Query timeout must be non-negative number, not -1"),
        ("/nodes", {"explain": "analyze"}, "The query parameter 'explain' is not supported"),
    ],
)
def test_a_wrong_parameter_is_400(
    api: ServedApi, path: str, parameters: dict[str, Any], error: str
) -> None:
    answer = api.ask(V4 + path, **parameters)
    assert answer.error == (400, error)
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/pdb/query/v4/nothing", 404),
        ("GET", "/pdb/query/v4/facts/a/b/c", 404),
        ("GET", "/pdb/admin/v1/summary-stats", 404),
        ("DELETE", "/pdb/query/v4/nodes/web01.example.com", 400),
        ("OPTIONS", "/pdb/query/v4/nodes", 400),
        ("POST", "/pdb/cmd/v1", 403),
    ],
)
def test_other_paths_and_methods_are_refused(
    api: ServedApi, method: str, path: str, status: int
) -> None:
    assert api.ask(path, method=method).status == status


def test_clients_learn_a_version_and_the_time(api: ServedApi) -> None:
    assert api.ask("/pdb/meta/v1/version").json == {"version": "8.8.1"}
    assert api.ask("/pdb/meta/v1/server-time").json == {"server_time": "2026-11-20T14:00:00.000Z"}
    status = api.ask("/status/v1/services/puppetdb-status").json
    assert (status["state"], status["status"]["maintenance_mode?"]) == ("running", False)


@pytest.mark.parametrize(
    ("path", "entity", "only", "parents"),
    [
        ("catalogs/a", "catalogs", {"certname": "a"}, []),
        ("catalogs/a/edges", "edges", {"certname": "a"}, ["catalog a"]),
        (
            "catalogs/a/resources/File/b",
            "resources",
            {"type": "File", "title": "b", "certname": "a"},
            ["catalog a"],
        ),
        ("environments/p/events", "events", {"environment": "p"}, ["environment p"]),
        (
            "environments/p/reports/h/events",
            "events",
            {"report": "h", "environment": "p"},
            ["environment p", "report h"],
        ),
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


NAME = "puppetlabs.puppetdb.population:name=num-nodes"
MBEANS: dict[str, dict[str, Json]] = {NAME: {"Value": 3}}


@pytest.mark.parametrize(("path", "value"), [(NAME, {"Value": 3}), (f"{NAME}/Value", 3)])
def test_an_mbean_has_attributes(path: str, value: Json) -> None:
    answer = read_mbeans(MBEANS, path, 1_700_000_000.5)
    assert (answer["value"], answer["status"]) == (value, 200)
    assert answer["timestamp"] == 1_700_000_000


@pytest.mark.parametrize("path", ["java.lang:type=Memory", f"{NAME}/Count"])
def test_an_unknown_mbean_is_an_error_and_not_empty(path: str) -> None:
    answer = read_mbeans(MBEANS, path, 0)
    assert (answer["status"], "value" in answer) == (404, False)
    assert "InstanceNotFoundException" in str(answer["error"])


def test_a_list_has_the_domains() -> None:
    assert list_mbeans(MBEANS, 0)["value"] == {
        "puppetlabs.puppetdb.population": {
            "name=num-nodes": {"attr": {"Value": {"rw": False, "type": "java.lang.Object"}}}
        }
    }


TOP = Path(__file__).parents[3]
ANSWERS = TOP / "tests" / "data" / "puppetdb" / "answers.jsonl"


def test_answers_equal_those_of_a_real_puppetdb() -> None:
    done = subprocess.run(
        [sys.executable, str(TOP / "benchmarks" / "puppetdb.py"), "--recorded", str(ANSWERS)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(" 0 unexpected\n")
