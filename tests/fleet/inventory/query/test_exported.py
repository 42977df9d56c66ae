"""Exported resources and hidden facts in questions: what an answer depends on."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.values import Json
from localpuppet.fleet.exports.held import HeldExports
from localpuppet.fleet.inventory.entry import ExportsSummary, InventoryEntry
from localpuppet.fleet.inventory.facts import FactSelection
from localpuppet.fleet.inventory.query.evaluating import Evaluation
from localpuppet.fleet.inventory.query.functions import FunctionCall
from localpuppet.fleet.inventory.query.pql import parse_client_query
from localpuppet.fleet.inventory.reading import InventoryReader
from localpuppet.fleet.inventory.view import View
from tests.doubles.identities import person
from tests.doubles.inventory import MemoryInventory
from tests.fleet.inventory.entries import received
from tests.fleet.inventory.query.fleet import DB, LB, WEB1, WEB2, entry
from tests.fleet.make import resource

_EXPORTS = {
    str(WEB1.node): [
        resource("Nagios_host", "web01", "web", "nagios", address="10.0.0.1", port=80),
        resource("Sshkey", "web01", "ssh", key="AAAA", host_aliases=["a", "b"]),
    ],
    str(WEB2.node): [resource("Nagios_host", "web02", "web", address="10.0.0.2", port="80")],
    # The entry says that it exports nothing any more.
    str(DB.node): [resource("Nagios_host", "old", "web", address="10.0.0.9")],
}

_PEERS = [
    DB,
    LB,
    *(replace(one, exports=ExportsSummary(count=1, digest="0" * 64)) for one in (WEB1, WEB2)),
]


def ask(function: str, *arguments: Json) -> Json:
    reader = MemoryInventory(_PEERS, exports=_EXPORTS)
    return FunctionCall.of(function, list(arguments)).answer(reader).result


@pytest.mark.parametrize(
    ("query", "titles"),
    [
        ("exported = true", ["web01", "web01", "web02"]),
        ("type = 'Nagios_host' and exported = true", ["web01", "web02"]),
        ("exported = true and tag = 'NAGIOS'", ["web01"]),
        ("exported = true and tag ~ '^ss'", ["web01"]),
        ("exported = true and ! (tag = 'web')", ["web01"]),
        ("exported = true and parameters.port = 80", ["web01"]),
        ("exported = true and parameters.port = '80'", ["web02"]),
        ("exported = true and parameters.host_aliases = ['a']", ["web01"]),
        ("exported = true and parameters.host_aliases = ['c']", []),
        ("exported = true and parameters.host_aliases = ['a', 'b']", ["web01"]),
        ("exported = true and ! (parameters.port = 80)", ["web01", "web02"]),
        ("exported = true and certname = 'web02.example.com'", ["web02"]),
        ("type = 'Nosuch' and exported = true", []),
        ("type = 'Class' and exported = true", []),
        ("(type = 'Class' and title = 'Apache') or exported = true", ["Apache", "web01"]),
    ],
)
def test_rows(query: str, titles: list[str]) -> None:
    rows = ask("puppetdb_query", f"resources[title] {{ {query} }}")
    assert isinstance(rows, list)
    found = [row["title"] for row in rows if isinstance(row, dict)]
    assert found[: len(titles)] == titles
    assert len(found) == len(titles) or "Apache" in titles


def test_a_row_has_all_fields_of_an_export() -> None:
    query = "resources { exported = true and type = 'Sshkey' }"
    assert ask("puppetdb_query", query) == [
        {
            "certname": "web01.example.com",
            "type": "Sshkey",
            "title": "web01",
            "exported": True,
            "environment": "production",
            "tags": ["app", "ssh"],
            "file": "/etc/puppet/modules/app/init.pp",
            "line": 3,
            "parameters": {"key": "AAAA", "host_aliases": ["a", "b"]},
        }
    ]
    assert ask("query_resources", "role=web", "@@Sshkey[web01]") == ask("puppetdb_query", query)


@pytest.mark.parametrize(
    ("query", "nodes"),
    [
        ("@@Nagios_host[web02]", ["web02.example.com"]),
        ('@@nagios_host[~"^web"]', ["web01.example.com", "web02.example.com"]),
        ("@@Nagios_host[~'web']{port=80 and tag=nagios}", ["web01.example.com"]),
        ("not @@Nagios_host[~'.'] and Class[Haproxy]", ["lb01.example.com"]),
        (["in", "certname", ["from", "resources", ["extract", "certname", ["and",
            ["=", "exported", True], ["=", ["parameter", "host_aliases"], ["a"]]]]]], []),
        (["in", "certname", ["from", "resources", ["extract", "certname", ["and",
            ["=", "exported", True], ["not", ["~", ["parameter", "host_aliases"], "a"]]]]]],
            ["web01.example.com", "web02.example.com"]),
        (["in", "certname", ["extract", "certname", ["select_resources", ["and",
            ["=", "exported", True], ["=", ["parameter", "address"], "10.0.0.2"]]]]],
            ["web02.example.com"]),
    ],
)  # fmt: skip
def test_nodes_are_found_by_their_exports(query: Json, nodes: list[str]) -> None:
    assert ask("query_nodes", query) == nodes


def test_a_parameter_that_changes_is_another_answer() -> None:
    def digest(port: int) -> str:
        exports = {str(WEB2.node): [resource("Nagios_host", "web02", port=port)]}
        question = FunctionCall.of("query_resources", [False, "@@Nagios_host[web02]"])
        return question.answer(MemoryInventory(_PEERS, exports=exports)).digest

    assert digest(80) == digest(80)
    assert digest(80) != digest(81)


def _view(directory: Path, exports: HeldExports | None, *entries: InventoryEntry) -> View:
    view = View(directory / "view.sqlite", now=lambda: 0.0, exports=exports)
    view.take([received(person(str(one.node)), one) for one in entries])
    return view


def test_the_view_reads_exports_from_their_store(tmp_path: Path) -> None:
    def titles(reader: InventoryReader) -> Json:
        query = "resources[title] { exported = true and type = 'Nagios_host' }"
        return FunctionCall.of("puppetdb_query", [query]).answer(reader).result

    held = HeldExports(tmp_path / "held.sqlite")
    for node, resources in _EXPORTS.items():
        held.hold(node, "1", resources)
    view = _view(tmp_path, held, *_PEERS)
    try:
        assert titles(view) == [{"title": "web01"}, {"title": "web02"}]
    finally:
        held.close()
        view.close()


def test_without_a_store_a_query_of_exports_is_an_error(tmp_path: Path) -> None:
    view = _view(tmp_path, None)
    try:
        with pytest.raises(StateError, match="exports of other nodes are not stored here"):
            FunctionCall.of("puppetdb_query", ["resources { exported = true }"]).answer(view)
    finally:
        view.close()


CANARY = "canary-7f3a"
HIDDEN = FactSelection(hide=("vault*", "site.license", "networking.ip"))


# What a node may have that no query must reveal; the first has none of it.
SECRETS: Sequence[dict[str, Json]] = (
    {},
    {"vault": CANARY, "db_password": CANARY},
    {"vault": {"key": CANARY, "n": 7}, "vault_token": [CANARY, 7], "db_password": "x"},
    {"vault": 900, "vault_level": True, "db_password": {"a": [CANARY]}},
)

FIELDS = ("facts.vault", "facts.vault.key", "facts.site.license", "facts.networking.ip",
          "facts.ipaddress", "facts.db_password", "facts.vault_token[0]")  # fmt: skip

QUERIES: Sequence[Json] = (
    "inventory { }",
    "inventory { order by timestamp, certname desc }",
    "facts { }",
    "facts { order by value desc limit 3 }",
    "facts[name, count()] { group by name }",
    "facts[count(), min(value), max(value), sum(value), avg(value)] { }",
    "fact_contents { }",
    "fact_contents { path ~> ['.*', '.*'] or path ~> ['vault.*'] }",
    "fact_names { }",
    "fact_paths { }",
    "factsets { }",
    "facts { name ~ 'vault|license|password' or value ~ 'canary' }",
    "nodes[certname] { facts { name = 'vault' } or fact_contents { value = 'canary-7f3a' } }",
    ["from", "nodes", ["=", ["fact", "vault"], CANARY]],
    ["from", "nodes", [">", ["fact", "vault"], 500]],
    ["from", "nodes", ["in", ["fact", "vault"], ["array", [CANARY, 900]]]],
    *(
        query.format(field=field)
        for field in FIELDS
        for query in (
            "inventory[certname] {{ {field} = 'canary-7f3a' }}",
            "inventory[certname] {{ {field} ~ '.' }}",
            "inventory[certname] {{ {field} > 500 }}",
            "inventory[certname] {{ ! ({field} <= 500) }}",
            "inventory[certname] {{ {field} is null }}",
            "inventory[certname] {{ {field} in ['canary-7f3a', 7, 900] }}",
            "inventory[certname, {field}] {{ order by {field} desc }}",
            "inventory[{field}, count()] {{ group by {field} }}",
        )
    ),
)


def fleet(secret: dict[str, Json]) -> MemoryInventory:
    """Return two nodes, of which the first has a secret in its facts."""
    networking: dict[str, Json] = {"ip": "10.0.0.1" if secret else "10.9.9.9", "hostname": "a"}
    site: dict[str, Json] = {"license": CANARY if secret else "none", "name": "north"}
    facts: dict[str, Json] = {"os": {"family": "Debian"}, "networking": networking, "site": site}
    first = entry("a.example.com", HIDDEN.of({**facts, **secret}))
    return MemoryInventory([first, entry("b.example.com", HIDDEN.of(facts))])


def asked(query: Json, secret: dict[str, Json]) -> str:
    """Return everything that a client sees: the rows and their number, or the error."""
    try:
        select = parse_client_query({"query": query}).select
        found = Evaluation(fleet(secret)).stream(select, total=True)
        return f"{[*found.rows]} {found.total}"
    except InvalidInputError as error:
        return str(error)


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_an_answer_does_not_depend_on_a_hidden_fact(query: Json) -> None:
    answers = {asked(query, secret) for secret in SECRETS}
    assert len(answers) == 1
    assert CANARY not in answers.pop().replace(str(query), "")
    assert "could not parse" not in asked(query, {})


def test_the_same_queries_reveal_a_fact_that_is_published() -> None:
    shown = FactSelection()
    found = [
        Evaluation(MemoryInventory([entry("a.example.com", shown.of({"vault": CANARY}))])).stream(
            parse_client_query({"query": query}).select
        )
        for query in ("fact_names { }", "inventory { facts.vault = 'canary-7f3a' }")
    ]
    assert all("vault" in "".join(one.rows) for one in found)
