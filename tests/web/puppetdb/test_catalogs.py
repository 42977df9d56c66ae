"""Whole catalogs in the API: PuppetDB's shapes, no node left out, and no secret to find."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import ClassName, NodeName
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.kept_catalogs import NodeCatalog
from localpuppet.web.puppetdb.catalogs import CatalogSource
from tests.doubles.inventory import MemoryInventory
from tests.doubles.ports import FakeClock
from tests.fleet.inventory.entries import entry
from tests.fleet.make import a_catalog, entry_with
from tests.web.puppetdb.served import V4, Answer, ServedApi

DB, WEB = NodeName("db01.example.com"), NodeName("web01.example.com")
QUIET = NodeName("quiet.example.com")
CATALOGS = {
    DB: a_catalog(DB, data={"mode": "0600", "tag": ["b", "a"]}),
    WEB: a_catalog(
        WEB,
        conf={
            "content": {"__ptype": "Sensitive", "__pvalue": "CANARY"},
            "options": {"deep": [{"__ptype": "Sensitive", "__pvalue": "CANARY"}], "port": 80},
            "late": {"__ptype": "Deferred", "arguments": ["CANARY"]},
        },
        motd={"content": "hello"},
    ),
}


class Inventory(MemoryInventory):
    """Entries, of which some name a catalog."""

    def catalogs(self) -> dict[str, str]:
        return {str(one.node): one.catalog.digest for one in self.listed if one.catalog}


class Nodes:
    """What nodes publish or send."""

    def __init__(self) -> None:
        self.fetched: list[NodeName] = []
        self.problem = ""

    def __call__(self, entries: Sequence[InventoryEntry]) -> list[NodeCatalog]:
        if self.problem:
            raise UnavailableError(self.problem, where="catalog of a node")
        self.fetched += [one.node for one in entries]
        return [CATALOGS[one.node] for one in entries]


NODES = Nodes()


@pytest.fixture(scope="module", params=["published", "asked"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def api(how: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    now = FakeClock().now().timestamp()
    entries = [entry_with(one) for one in CATALOGS.values()]
    if how == "asked":
        entries = [entry(one, at=1) for one in CATALOGS]
    view = Inventory(entries, current=now)
    source = CatalogSource(view, NODES)
    with ServedApi(tmp_path_factory.mktemp("api"), view, records=source) as served:
        yield served


def of(node: str) -> list[Json]:
    return ["=", "certname", node]


def test_a_catalog_has_puppetdbs_shape(api: ServedApi) -> None:
    found = api.ask(f"{V4}/catalogs/{DB}").json
    resources, edges = found.pop("resources"), found.pop("edges")
    uuid = found.pop("transaction_uuid")
    assert len(uuid) == 36
    assert found.pop("producer_timestamp") in ("2027-01-15T08:00:00.500Z",)
    assert found == {
        "certname": DB,
        "version": found["version"],
        "hash": CATALOGS[DB].header.digest,
        "catalog_uuid": uuid,
        "code_id": found["code_id"],
        "job_id": None,
        "environment": "production",
        "producer": DB,
    }
    assert resources["href"] == f"{V4}/catalogs/{DB}/resources"
    main, data = sorted(resources["data"], key=lambda one: one["type"])
    assert {key: data[key] for key in data if key != "resource"} == {
        "type": "File",
        "title": "/data",
        "exported": False,
        "tags": ["file"],
        "file": None,
        "line": None,
        "parameters": {"mode": "0600", "tag": ["a", "b"]},
    }
    assert len(data["resource"]) == 40
    assert (main["file"], main["line"], main["parameters"]) == ("/etc/a.pp", 1, {})
    edge = {
        "source_type": "Class",
        "source_title": "Main",
        "target_type": "File",
        "target_title": "/data",
        "relationship": "contains",
    }
    assert edges == {"href": f"{V4}/catalogs/{DB}/edges", "data": [edge]}
    assert api.ask(f"{V4}/catalogs/{DB}/edges").json == [{"certname": DB, **edge}]
    assert api.ask(f"{V4}/edges", of(DB)).json == [{"certname": DB, **edge}]
    (row,) = api.ask(f"{V4}/catalogs/{DB}/resources/File").json
    assert row == {"certname": DB, "environment": "production", **data}


def test_a_node_without_a_catalog_is_missing(api: ServedApi) -> None:
    missing = api.ask(f"{V4}/catalogs/gone.example.com")
    assert missing.status == 404
    assert "gone.example.com" in missing.text


def test_resources_of_named_nodes_are_found_by_type_title_and_parameter(api: ServedApi) -> None:
    def titles(condition: Json) -> list[str]:
        named: Json = ["and", ["in", "certname", ["array", [DB, WEB]]], condition]
        return sorted(one["title"] for one in api.ask(f"{V4}/resources", named).json)

    assert titles(["=", "type", "File"]) == ["/conf", "/data", "/motd"]
    assert titles(["=", "title", "/motd"]) == ["/motd"]
    assert titles(["=", ["parameter", "mode"], "0600"]) == ["/data"]
    assert titles(["and", ["=", "type", "File"], ["~", "title", "^/[cm]"]]) == ["/conf", "/motd"]
    assert titles(["=", "type", "Package"]) == []


def secrets(api: ServedApi, condition: Json) -> int:
    query: Json = ["extract", [["function", "count"]], ["and", of(WEB), condition]]
    (found,) = api.ask(f"{V4}/resources", query).json
    return int(found["count"])


def test_no_filter_pattern_or_count_finds_a_secret(api: ServedApi) -> None:
    assert "CANARY" not in api.ask(f"{V4}/catalogs/{WEB}").text
    assert "CANARY" not in api.ask(f"{V4}/resources", of(WEB)).text
    assert secrets(api, ["=", ["parameter", "content"], "hello"]) == 1
    # The search that finds the first letter of a plain value finds none of a secret.
    known: list[Json] = ["parameter", "content"]
    hidden: list[list[Json]] = [known, ["parameter", "late"], ["parameter", "options"]]
    found = [letter for letter in ascii_lowercase if secrets(api, ["~", known, f"^{letter}"])]
    assert found == ["h"]
    for letter in "CANRY":
        for field in hidden:
            assert secrets(api, ["~", field, f"^{letter}[A-Z]"]) == 0
    typed: dict[str, Json] = {"__ptype": "Sensitive"}
    guesses: list[Json] = ["CANARY", {**typed, "__pvalue": "CANARY"}, typed, {"deep": ["CANARY"]}]
    for guess in guesses:
        for field in hidden:
            assert secrets(api, ["=", field, guess]) == 0
    shown: Any = api.ask(f"{V4}/catalogs/{WEB}/resources/File/%2Fconf").json
    (row,) = shown
    assert row["parameters"] == {
        "options": {"deep": ["Sensitive [value redacted]"], "port": 80},
        "late": "Deferred [value redacted]",
    }


@pytest.mark.parametrize(
    "query",
    [
        "catalogs { }",
        "resources { certname ~ '.' }",
        "resources[type, title, parameters, resource] { certname ~ '.' order by parameters desc }",
        "resources[parameters, count()] { certname ~ '.' group by parameters }",
        "resources[count(), min(parameters.content), max(parameters.content)] { certname ~ '.' }",
        "resources { certname ~ '.' and parameters.content ~ '^[A-M]' }",
        "resources { certname ~ '.' and !(parameters.content ~ '^[A-M]') }",
        "resources { certname ~ '.' and parameters.content is null }",
        "resources { certname ~ '.' and parameters.content in ['CANARY', 'other'] }",
        "resources { certname ~ '.' order by parameters.content, resource limit 1 }",
        "nodes { resources { type = 'File' and parameters.options.deep[0] > 4 } }",
    ],
)
def test_an_answer_does_not_depend_on_a_secret(tmp_path: Path, query: str) -> None:
    """The whole answer: rows, their order and number, digests and errors."""
    answers = {answer_about(tmp_path, secret, query) for secret in ("CANARY", "other", 7, None)}
    assert len(answers) == 1
    assert "CANARY" not in str(answers).replace(query, "")


def answer_about(directory: Path, secret: Json, query: str) -> tuple[object, ...]:
    """Return everything that a client sees of a catalog with a secret."""
    hidden: Json = {"__ptype": "Sensitive", "__pvalue": secret}
    late: Json = {"__ptype": "Deferred", "arguments": [secret]}
    catalog = a_catalog(WEB, conf={"content": hidden, "options": {"deep": [hidden]}, "late": late})
    view = Inventory([entry_with(catalog)], current=FakeClock().now().timestamp())
    source = CatalogSource(view, lambda _: [catalog])
    with ServedApi(directory, view, records=source) as served:
        answer = served.ask(V4, query, include_total="true")
        return (*answer.error, answer.headers.get("x-records"))


def test_a_query_for_all_nodes_needs_published_catalogs(api: ServedApi, how: str) -> None:
    answers: list[Answer] = [
        api.ask(f"{V4}/catalogs"),
        api.ask(f"{V4}/edges", ["=", "relationship", "contains"]),
        api.ask(f"{V4}/resources", ["=", "type", "File"]),
    ]
    if how == "published":
        assert [len(one.json) for one in answers] == [2, 3, 3]
        return
    for one in answers:
        assert one.status == 400
        assert f"2 of 2 nodes do not publish their catalog: {DB}, {WEB}" in one.text
        assert "inventory: {catalogs: true}" in one.text


def test_a_node_that_does_not_answer_is_an_error(api: ServedApi) -> None:
    NODES.problem = "did not answer in time"
    try:
        for path in (f"catalogs/{WEB}", f"catalogs/{WEB}/edges", f"nodes/{WEB}/resources/File"):
            assert api.ask(f"{V4}/{path}").error[0] == 503, path
            assert "did not answer in time" in api.ask(f"{V4}/{path}").text
    finally:
        NODES.problem = ""


def test_classes_come_from_entries(api: ServedApi) -> None:
    NODES.fetched.clear()
    query: Json = ["extract", ["certname", "title"], ["=", "type", "Class"]]
    assert api.ask(f"{V4}/resources", query).json == []
    assert NODES.fetched == []


def test_whole_rows_of_classes_come_from_catalogs_if_all_nodes_publish_them(tmp_path: Path) -> None:
    both = [replace(entry_with(one), classes=(ClassName("main"),)) for one in CATALOGS.values()]
    view = Inventory(both, current=FakeClock().now().timestamp())
    with ServedApi(tmp_path, view, records=CatalogSource(view, NODES)) as published:
        rows = published.ask(f"{V4}/resources", ["=", "type", "Class"]).json
        assert {row["title"] for row in rows} == {"Main"}
        assert {(row["file"], row["line"]) for row in rows} == {("/etc/a.pp", 1)}
        assert all(row["parameters"] == {} for row in rows)
        assert all(len(row["resource"]) == 40 for row in rows)
        view.add(replace(entry(QUIET, at=1), classes=(ClassName("main"),)))
        rows = published.ask(f"{V4}/resources", ["=", "type", "Class"]).json
        assert [(row["title"], row["parameters"]) for row in rows] == [("main", None)] * 3
        assert "resource" not in rows[0]


def test_a_mixed_fleet_leaves_no_node_out(tmp_path: Path) -> None:
    entries = [entry_with(CATALOGS[DB]), entry(QUIET, at=1)]
    view = Inventory(entries, current=FakeClock().now().timestamp())
    with ServedApi(tmp_path, view, records=CatalogSource(view, NODES)) as mixed:
        refused = mixed.ask(f"{V4}/resources", ["=", "type", "File"])
        assert refused.status == 400
        assert f"1 of 2 nodes do not publish their catalog: {QUIET}" in refused.text
        assert len(mixed.ask(f"{V4}/resources", ["and", of(DB), ["=", "type", "File"]]).json) == 1
