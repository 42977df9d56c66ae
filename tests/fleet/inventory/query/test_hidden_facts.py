"""Hidden facts: no filter, pattern, count, order or path depends on their values."""

from collections.abc import Sequence

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.facts import FactSelection
from localpuppet.fleet.inventory.query.client_query import parse_client_query
from localpuppet.fleet.inventory.query.evaluating import Evaluation
from tests.doubles.inventory import MemoryInventory
from tests.fleet.inventory.query.fleet import entry

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
    return MemoryInventory(
        [
            entry("a.example.com", HIDDEN.of({**facts, **secret})),
            entry("b.example.com", HIDDEN.of(facts)),
        ]
    )


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
