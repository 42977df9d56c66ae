"""Answers for clients of PuppetDB's API: every entity, paging, totals, and rows from a source."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.sqlite import Connection
from localpuppet.fleet.inventory.query.evaluating import Evaluation, QueryAnswer
from localpuppet.fleet.inventory.query.functions import FunctionCall
from localpuppet.fleet.inventory.query.pql import parse_client_query
from localpuppet.fleet.inventory.query.records import RecordSource
from localpuppet.fleet.inventory.query.tree import OF_REPORTS, Entity
from localpuppet.fleet.inventory.tables import EntryRows
from tests.doubles.inventory import MemoryInventory
from tests.doubles.records import MemoryRecords
from tests.fleet.inventory.query.fleet import DB, entry, inventory


def report(name: str, hour: int, status: str, **more: Json) -> dict[str, Json]:
    return {
        "certname": f"{name}.example.com",
        "hash": f"{name}-{hour}",
        "end_time": f"2026-11-23T{hour:02}:00:00.000Z",
        "status": status,
        "environment": "production",
        "noop": False,
        "latest_report?": hour == 9,
        "report_format": hour,
        **more,
    }


REPORTS = [
    report("db01", 8, "changed"),
    report("db01", 9, "failed"),
    report("web01", 7, "unchanged", environment="testing"),
    report("web01", 9, "changed"),
]
NODES: list[dict[str, Json]] = [
    {
        "certname": f"{name}.example.com",
        "latest_report_status": status,
        "latest_report_hash": f"{name}-9",
        "report_timestamp": f"2026-11-23T{hour}:00:00.000Z",
    }
    for name, status, hour in (
        ("aa01", "failed", "05"),
        ("db01", "failed", "09"),
        ("web01", "changed", "08"),
        ("zz01", "failed", "07"),
    )
]


def records() -> MemoryRecords:
    return MemoryRecords({Entity.REPORTS: REPORTS, Entity.NODES: NODES})


def ask(
    parameters: dict[str, Json], entity: Entity | None = None, source: RecordSource | None = None
) -> tuple[list[Any], int | None]:
    query = parse_client_query(parameters, entity)
    found = Evaluation(inventory(), records=source).stream(query.select, total=query.total)
    return [json.loads(text) for text in found.rows], found.total


def rows(query: Json, source: RecordSource | None = None) -> list[Any]:
    return ask({"query": query}, source=source)[0]


def names(found: list[Any]) -> list[str]:
    return [row["certname"].partition(".")[0] for row in found]


def test_nodes_have_their_reports_and_those_without_an_entry_are_listed() -> None:
    found = rows("nodes { }", records())
    assert names(found) == ["aa01", "db01", "lb01", "web01", "web02", "zz01"]
    statuses = ["failed", "failed", None, "changed", None, "failed"]
    assert [row["latest_report_status"] for row in found] == statuses
    assert [row["facts_timestamp"] is None for row in found] == [True, *[False] * 4, True]
    assert len({tuple(row) for row in found}) == 1
    failed = "{ latest_report_status = 'failed' }"
    assert names(rows(f"nodes {failed}", records())) == ["aa01", "db01", "zz01"]
    assert names(rows(f"inventory[certname] {{ nodes {failed} }}", records())) == ["db01"]
    found = rows("inventory[certname] { reports { status = 'unchanged' } }", records())
    assert names(found) == ["web01"]


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        (["~", "latest_report_status", "fail"], ["lb01", "web01", "web02"]),
        (["=", "latest_report_status", "failed"], ["web01"]),
        (["in", "latest_report_status", ["array", ["failed"]]], ["web01"]),
        (["in", "latest_report_status", ["array", []]], None),
        (["in", "latest_report_status", ["from", "reports",
            ["extract", "status", ["=", "certname", "absent"]]]], None),
        (["in", "latest_report_status", ["from", "reports",
            ["extract", "status", ["=", "status", "failed"]]]], ["web01"]),
    ],
)  # fmt: skip
def test_conditions_on_a_missing_text_are_false(condition: Json, found: list[str] | None) -> None:
    """A regular expression, and whether the text is in an empty set: as in PuppetDB."""
    every = names(rows("nodes { }", records()))
    assert names(rows(["from", "nodes", ["not", condition]], records())) == (found or every)
    assert len(every) == 6


@pytest.mark.parametrize(
    ("query", "hashes"),
    [
        ("reports { status = 'changed' }", ["db01-8", "web01-9"]),
        ("reports { latest_report? = true }", ["db01-9", "web01-9"]),
        ("reports { status in ['failed', 'unchanged'] }", ["db01-9", "web01-7"]),
        ("reports { status = 'failed' or status = 'unchanged' }", ["db01-9", "web01-7"]),
        ("reports { end_time >= '2026-11-23T09:30:00+01:00' }", ["db01-9", "web01-9"]),
        ("reports { end_time < '2026-11-23 08:00:00' }", ["web01-7"]),
        ("reports { end_time = '2026-11-23T08:00Z' }", ["db01-8"]),
        ("reports { order by end_time desc, hash limit 2 offset 1 }", ["web01-9", "db01-8"]),
        ("reports { limit 2 offset 1 }", ["db01-9", "web01-7"]),
        ("reports { nodes { facts_environment = 'testing' } }", ["db01-8", "db01-9"]),
        ("reports { inventory { facts.cluster = 'blue' } }", ["web01-7", "web01-9"]),
        ("reports { environments { name = 'testing' } }", ["web01-7"]),
        (["from", "reports", ["in", "hash", ["from", "nodes", ["extract", "latest_report_hash"]]]],
         ["db01-9", "web01-9"]),
    ],
)  # fmt: skip
def test_rows_of_a_source(query: Json, hashes: list[str]) -> None:
    assert [row["hash"] for row in rows(query, records())] == hashes


def test_a_fact_set_has_the_form_of_puppetdb() -> None:
    (found,) = rows("factsets { certname = 'lb01.example.com' }")
    facts = rows("facts[name, value] { certname = 'lb01.example.com' }")
    fields = "certname environment timestamp producer_timestamp producer facts hash"
    assert list(found) == fields.split()
    href = "/pdb/query/v4/factsets/lb01.example.com/facts"
    assert found["facts"] == {"href": href, "data": facts}
    assert found["producer"] == "lb01.example.com"
    assert found["timestamp"] == found["producer_timestamp"] == "2026-11-18T11:06:40.250Z"
    assert len(found["hash"]) == hashlib.sha1(b"").digest_size * 2  # noqa: S324 - as PuppetDB


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("environments { }", [{"name": "production"}, {"name": "testing"}]),
        ("environments { name ~ '^t' }", [{"name": "testing"}]),
        ("environments { facts { name = 'cluster' } }", [{"name": "production"}]),
        ("fact_names { name ~ '^up' }", ["uptime"]),
        ("fact_names[name] { name in ['cluster', 'absent'] }", ["cluster"]),
        (
            "fact_paths { path ~> ['processors', '.*'] and type = 'integer' }",
            [{"path": ["processors", "count"], "name": "processors", "type": "integer"}],
        ),
        (
            "fact_paths[path] { name = 'processors' and depth = 2 and type = 'string' }",
            [{"path": ["processors", "models", 0]}, {"path": ["processors", "models", 1]}],
        ),
        ("fact_paths[type] { path = ['is_virtual'] }", [{"type": "boolean"}]),
        ("producers[count()] { }", [{"count": 4}]),
        ("nodes[count()] { producers { } }", None),
        (
            "facts[count(), sum(value), avg(value), min(value), max(value)] "
            "{ name = 'processorcount' }",
            [{"count": 3, "sum": 28, "avg": 28 / 3, "min": 4, "max": 16}],
        ),
        (
            "facts[sum(value), avg(value), min(value), max(value)] { name = 'absent' }",
            [{"sum": None, "avg": None, "min": None, "max": None}],
        ),
        (
            "fact_contents[sum(value), avg(value), min(value), max(value)]"
            " { path = ['os', 'release', 'major'] }",
            [{"sum": 31, "avg": 31 / 3, "min": 9, "max": 12}],
        ),
        ("facts[min(value)] { name = 'uptime' }", [{"min": "12 days"}]),
        ("facts[max(value)] { name = 'uptime' }", [{"max": "3 days"}]),
        ("nodes[min(facts_environment)] { }", [{"min": "production"}]),
        ("reports[min(end_time)] { }", [{"min": "2026-11-23T07:00:00.000Z"}]),
        (
            "reports[certname, count(), max(report_format)] { group by certname "
            "order by max desc, certname desc limit 1 }",
            [{"certname": "web01.example.com", "count": 2, "max": 9}],
        ),
        ("reports[count()] { status = 'changed' and end_time > '2026-11-23T08' }", [{"count": 1}]),
        (["from", "nodes", ["extract", [["function", "count"]], ["=", "certname", None]]],
         [{"count": 0}]),
        (["from", "nodes", ["EXTRACT", "certname", ["AND", ["=", "certname", "lb01.example.com"]]]],
         None),
        (["from", "nodes", ["extract", "certname", ["=", "node_state", "inactive"]]], []),
        (["from", "nodes", ["extract", ["function", "count"], ["=", "node_state", "any"]]],
         [{"count": 4}]),
        (["from", "nodes",
          ["extract", ["function", "count"],
           ["or", ["=", ["node", "active"], True], ["=", ["node", "active"], False]]]],
         [{"count": 4}]),
        (["from", "reports", ["extract", ["function", "count"], ["=", "type", "any"]]],
         [{"count": 4}]),
        (["from", "reports",
          ["extract", ["function", "count"], ["not", ["=", "type", "any"]]]],
         [{"count": 4}]),
        (["from", "reports",
          ["extract", ["function", "count"],
           ["or", ["=", "type", "any"], ["=", "status", "unheard"]]]],
         [{"count": 0}]),
        (["from", "reports", ["extract", ["function", "count"], ["~", "type", "any"]]],
         [{"count": 0}]),
    ],
)  # fmt: skip
def test_entities_and_functions(query: Json, found: list[Any] | None) -> None:
    source = records() if "reports" in json.dumps(query) else None
    if found is None:
        with pytest.raises(InvalidInputError):
            rows(query, source)
    else:
        assert rows(query, source) == found


@pytest.mark.parametrize("form", ["2026-11-18T12:06:40.25+01:00", "20261118T110640.250Z",
                                  "2026-11-18 11:06:40.250", 1_795_000_000_250])  # fmt: skip
def test_a_time_has_many_forms(form: Json) -> None:
    found = [
        ask({"query": [operator, "facts_timestamp", form]}, Entity.NODES)[0]
        for operator in ("=", "<=", ">=", "<", ">")
    ]
    assert [len(listed) for listed in found] == [4, 4, 4, 0, 0]
    later = rows(["from", "nodes", [">", "facts_timestamp", "2026-11"]])
    assert len(later) == 4
    assert rows(["from", "nodes", ["in", "facts_timestamp", ["array", [form, "2020"]]]]) == later


@pytest.mark.parametrize(
    ("parameters", "found", "total"),
    [
        ({}, ["db01", "lb01", "web01", "web02"], None),
        ({"query": ""}, ["db01", "lb01", "web01", "web02"], None),
        ({"query": "[]", "include_total": "true"}, ["db01", "lb01", "web01", "web02"], 4),
        ({"query": '["~", "certname", "^web"]', "include_total": "true"}, ["web01", "web02"], 2),
        ({"limit": "2", "offset": "1", "include_total": True}, ["lb01", "web01"], 4),
        ({"limit": 1, "order_by": '[{"field": "certname", "order": "DESC"}]'}, ["web02"], None),
        (
            {"order_by": [{"field": "facts_environment"}, {"field": "certname", "order": "desc"}],
             "include_total": "true", "limit": "3"},
            ["web02", "web01", "lb01"], 4,
        ),
        (
            {"query": ["from", "nodes", ["limit", 1]], "limit": "3", "offset": "2"},
            ["web01", "web02"], None,
        ),
        (
            {"query": ["from", "nodes", ["order_by", ["certname"]], ["limit", 2], ["offset", 1]],
             "order_by": [{"field": "certname", "order": "desc"}], "include_total": "true"},
            ["web01", "lb01"], 4,
        ),
        ({"query": ["extract", ["certname"], ["=", ["fact", "uptime"], "20"]]}, ["lb01"], None),
        ({"query": ["extract", "certname"], "limit": "1"}, ["db01"], None),
    ],
)  # fmt: skip
def test_endpoint_pages(parameters: dict[str, Json], found: list[str], total: int | None) -> None:
    listed, counted = ask(parameters, Entity.NODES)
    assert (names(listed), counted) == (found, total)


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({}, "'query' is missing"),
        ({"query": "nodes { "}, "could not parse"),
        ({"query": "[1"}, "is not JSON"),
        ({"query": 7}, "is not an array"),
        ({"query": "nodes { }", "limit": "0"}, "Illegal value"),
        ({"query": "nodes { }", "limit": "x"}, "Illegal value"),
        ({"query": "nodes { }", "offset": "-1"}, "Illegal value"),
        ({"query": "nodes { }", "order_by": "certname"}, "is not JSON"),
        ({"query": "nodes { }", "order_by": '["certname"]'}, "expected an array of maps"),
        ({"query": "nodes { }", "order_by": '[{"field": "nosuch"}]'}, "is not a field of nodes"),
        ({"query": "nodes { }", "order_by": '[{"field": "certname", "order": 1}]'}, "asc or desc"),
        ({"query": "nodes { facts_timestamp > 'yesterday' }"}, "not a valid timestamp value"),
        ({"query": "nodes[certname] { order by count }"}, "which the result does not have"),
        ({"query": "facts[max(name), sum(name)] { }"}, "requires a field with numbers"),
        ({"query": "factsets { facts = 'x' }"}, "is for results only"),
        ({"query": "reports[latest_report?] { }"}, "is for conditions only"),
        ({"query": "reports { report_format = '8' }"}, "compares with a number"),
        ({"query": ["from", "resources", ["in", "tags", ["array", ["a"]]]]}, "the list"),
        ({"query": "events { property = 'ensure' }"}, "run summaries do not have it"),
        ({"query": "fact_names { nodes { } }"}, "are not related"),
        ({"query": "events { }"}, "events is not supported"),
        ({"query": "nodes { events { } }"}, "events is not supported"),
        ({"query": "packages { }"}, "packages is not supported"),
        ({"query": "resources { type = 'File' }"}, "resources of type File are not supported"),
    ],
)  # fmt: skip
def test_unsupported_queries_have_a_reason(parameters: dict[str, Json], reason: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        ask(parameters, source=records())
    assert reason in str(caught.value)


def test_rows_of_a_source_are_counted_and_grouped() -> None:
    asked: dict[str, Json] = {"limit": "1", "offset": "1", "include_total": "true"}
    found, total = ask({**asked, "query": '["=", "status", "changed"]'}, Entity.REPORTS, records())
    assert ([row["hash"] for row in found], total) == (["web01-9"], 2)
    query = "reports[status, count()] { certname ~ 'db' group by status order by status }"
    assert [row["count"] for row in rows(query, records())] == [1, 1]
    query = "reports[status, count()] { group by status order by status limit 1 }"
    assert rows(query, records()) == [{"status": "changed", "count": 2}]


def test_a_source_learns_the_values_of_whole_columns_only() -> None:
    """The values of `parameters.owner` are not those of `parameters`."""
    listed: list[dict[str, Json]] = [
        {"certname": "db01.example.com", "type": "File", "parameters": {"owner": owner}}
        for owner in ("web01.example.com", "root")
    ]
    source = MemoryRecords({Entity.RESOURCES: listed})
    where = "type = 'File' and parameters.owner in nodes[certname] { }"
    query = f"resources[parameters.owner] {{ {where} }}"
    assert rows(query, source) == [{"parameters.owner": "web01.example.com"}]
    assert source.allowed == [{"parameters": None, "type": ["File"]}]
    either = "(type = 'File' or type = 'User') and (type = 'File' or title = 'x')"
    assert rows(f"resources[title] {{ {either} and not type = 'Exec' }}", source)
    assert source.allowed[-1] == {"title": None, "type": ["File", "User"]}


class TracedInventory(MemoryInventory):
    statements: list[str]

    @contextmanager
    def rows(self, own: EntryRows | None = None, *, exports: bool = False) -> Iterator[Connection]:
        with super().rows(own, exports=exports) as connection:
            self.statements = []
            connection.set_trace_callback(self.statements.append)
            yield connection


def test_a_subquery_is_evaluated_once_for_its_source_rows_and_total() -> None:
    names = ("db01.example.com", "web01.example.com")
    traced = TracedInventory([entry(name, {"marker": len(name)}) for name in names])
    source = MemoryRecords({Entity.RESOURCES: [{"certname": name} for name in names]})
    where = "certname in facts[certname] { name = 'marker' and value > 16 }"
    asked = parse_client_query({"query": f"resources[certname] {{ {where} }}"})
    answer = Evaluation(traced, source).stream(asked.select, total=True)
    assert [*map(json.loads, answer.rows)] == [{"certname": "web01.example.com"}]
    assert answer.total == 1
    assert source.allowed == [{"certname": ["web01.example.com"]}]
    assert sum("'marker'" in statement for statement in traced.statements) == 1


def test_a_function_over_all_rows_has_one_row() -> None:
    for where in ("", "certname = 'absent'"):
        query = f"nodes[count()] {{ {where} }}"
        assert ask({"query": query, "include_total": "true"})[1] == 1
    grouped = "nodes[facts_environment, count()] { group by facts_environment }"
    assert ask({"query": grouped, "include_total": "true"})[1] == 2


def test_true_and_false_may_be_texts() -> None:
    for value, found in (("true", ["db01", "web01"]), ("false", ["db01", "web01"])):
        newest: Json = ["=", "latest_report?", value]
        assert names(rows(["from", "reports", newest], records())) == found
        newest = ["in", "latest_report?", ["array", [value]]]
        assert names(rows(["from", "reports", newest], records())) == found


@pytest.mark.parametrize("function", ["sum", "avg"])
def test_a_sum_beyond_all_numbers_is_an_error_and_no_invalid_json(function: str) -> None:
    reader = MemoryInventory([entry(f"n{n}.example.com", {"x": 1.7e308}) for n in range(2)])
    select = parse_client_query({"query": f"facts[{function}(value)] {{ name = 'x' }}"}).select
    with pytest.raises(InvalidInputError, match="exceeds the largest number"):
        [*Evaluation(reader).stream(select).rows]


def test_a_name_equals_a_value_with_the_same_letters() -> None:
    facts: dict[str, Json] = {"größe": "groß", "wort": "größe"}
    reader = MemoryInventory([entry("n.example.com", facts)])
    select = parse_client_query({"query": "facts[name] { name in facts[value] { } }"}).select
    assert Evaluation(reader).answer(select).rows == [{"name": "größe"}]


def test_conditions_for_many_nodes_become_a_list() -> None:
    """Bolt queries the facts of its targets like that."""
    names = [f"n{number:05}.example.com" for number in range(9_999)]
    reader = inventory()
    listed: list[Json] = [["=", "certname", name] for name in ["web01.example.com", *names]]
    select = parse_client_query({"query": ["or", *listed]}, Entity.INVENTORY).select
    found = [json.loads(text)["certname"] for text in Evaluation(reader).stream(select).rows]
    assert found == ["web01.example.com"]


@pytest.mark.parametrize("entity", ["nodes", "inventory", "factsets"])
@pytest.mark.parametrize("clauses", ["", " order by certname", " order by certname desc"])
@pytest.mark.parametrize("fields", ["", "[certname]", "[certname, count()]"])
def test_a_page_of_all_nodes_is_a_part_of_the_whole(entity: str, clauses: str, fields: str) -> None:
    """Rows before the offset are left out unread, unless they count."""
    rows = [{"certname": name} for name in ("aaa.example.com", "web01.example.com")]
    source = MemoryRecords({Entity.NODES: [{**dict.fromkeys(OF_REPORTS), **row} for row in rows]})

    def ask(paging: str, *, total: bool) -> tuple[list[str], int | None]:
        group = " group by certname" if "count" in fields else ""
        query = f"{entity}{fields} {{ {group}{clauses}{paging} }}"
        select = parse_client_query({"query": query}).select
        found = Evaluation(inventory(), records=source).stream(select, total=total)
        return [*found.rows], found.total

    whole, count = ask("", total=True)
    assert count == len(whole) == 4 + (entity == "nodes")
    for offset in range(count + 2):
        for total in (False, True):
            page = ask(f" limit 2 offset {offset}", total=total)
            assert page == (whole[offset : offset + 2], count if total else None)
        assert ask(f" offset {offset}", total=False)[0] == whole[offset:]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (["from", "nodes", ["=", ["fact", "os.family"], "RedHat"]], ["db01"]),
        (["from", "nodes", ["not", ["=", ["fact", "osfamily"], "RedHat"]], ["limit", 1]], ["lb01"]),
        (["from", "nodes", ["not", ["=", ["fact", "os.name"], "x"]], ["limit", 1]], ["db01"]),
        (["from", "nodes", ["in", ["fact", "processors.models.1"], ["array", ["AMD"]]]], ["db01"]),
        (["from", "facts", ["and", ["=", "name", "uptime"], ["=", ["fact", "cluster"], "blue"]]],
         ["web01"]),
        (["from", "inventory", ["not", ["~", ["fact", "osfamily"], "e|Red"]]], ["lb01", "web02"]),
        (["from", "nodes", ["extract", [], ["=", "certname", "lb01.example.com"]]], ["lb01"]),
        ("inventory { facts.trusted.certname = 'db01.example.com' }", ["db01"]),
        ("inventory { facts.processors.models ~ 'AMD\", ' }", ["db01"]),
        ("inventory { facts.os ~ '\"family\": \"RedHat' }", ["db01"]),
        ("nodes[] { certname = 'lb01.example.com' }", ["lb01"]),
        ("inventory { facts.cluster !~ 'x' }", ["web01"]),
        ("inventory { ! (facts.cluster ~ 'x' or certname ~ 'web') }", ["db01", "lb01"]),
        ("inventory { ! (facts.processors.count > 7 or certname ~ '^web') }", ["lb01"]),
        ("inventory { ! (facts.processors.models[1] = 'AMD') }", ["web01"]),
        ("inventory { ! (facts.processors.models[1] = 'x' or certname ~ '^web01') }",
         ["db01", "lb01"]),
        ("inventory { ! (trusted.absent ~ 'x' or certname ~ '^web') }", []),
    ],
)  # fmt: skip
def test_facts_in_conditions_are_those_of_puppetdb(query: Json, found: list[str]) -> None:
    assert names(rows(query)) == found


def test_values_of_different_types_have_the_order_of_puppetdb() -> None:
    query = (
        "facts[value] {{ name in ['is_virtual', 'processorcount', 'cluster'] order by value {} }}"
    )
    ordered = ["blue", 4, 8, 16, False, True]
    assert [row["value"] for row in rows(query.format(""))] == ordered
    assert [row["value"] for row in rows(query.format("desc"))] == [*reversed(ordered)]


NUL = "nu\0l"


@pytest.mark.parametrize(
    "query",
    [
        ["from", "facts", ["=", "name", NUL]],
        ["from", "facts", ["in", "name", ["array", [NUL, "x"]]]],
        ["from", "nodes", ["=", ["fact", NUL], "a"]],
        ["from", "inventory", ["=", f"facts.{NUL}", "a"]],
        ["from", "inventory", ["null?", f"facts.{NUL}", False]],
        ["from", "inventory", ["extract", ["certname", f"facts.{NUL}"],
            ["=", f"facts.other.{NUL}", "b"]]],
        ["from", "fact_contents", ["=", "path", ["other", NUL]]],
        ["from", "fact_contents", ["=", "path", [NUL]]],
    ],
)  # fmt: skip
def test_a_name_with_a_null_character_is_a_name(query: Json) -> None:
    """Not the end of the SQL text: that looks like a damaged inventory."""
    fleet = MemoryInventory([DB, entry("nul01.example.com", {NUL: "a", "other": {NUL: "b"}})])
    found = Evaluation(fleet).stream(parse_client_query({"query": query}).select)
    assert names([json.loads(text) for text in found.rows]) == ["nul01"]


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("inventory[certname] { facts.system_uptime.seconds >= 0 }", "changes with every run"),
        ("inventory[facts.load_averages.1m] { }", "changes with every run"),
        ("inventory { facts.memory.system.used_bytes > 1 }", "changes with every run"),
        ("facts { name in ['os', 'memoryfree_mb'] }", "changes with every run"),
        ("fact_contents { path = ['system_uptime', 'days'] }", "changes with every run"),
        ("nodes { certname in inventory[certname] { facts.load_averages.5m > 1 } }", "every run"),
        ("inventory { facts.app.db_password = 'x' }", "may be a secret"),
    ],
)
def test_a_fact_that_nobody_publishes_is_rejected_by_its_name(query: str, why: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"the fact \S+ is not published: it .*{why}"):
        rows(query)


def test_the_names_of_facts_are_those_of_all_facts() -> None:
    interfaces: list[Json] = [
        {"eth0": {"ip": "10.0.0.1", "mac": None, "mtu": 1500}, "eth0.1": {"ip6": "::1"}, "lo": {}},
        {"eth0": {"mac": ""}, "a b": 1, "c": None, "d": {"dhcp": "x", "network": []}},
        [{"ip": "10.0.0.1"}],
        {},
    ]
    facts: list[dict[str, Json]] = [
        {"networking": {"interfaces": one, "ip": None, "hostname": "x"}} for one in interfaces
    ]
    facts += [{"networking": "text", "os": {"name": "Debian", "family": None}}, {"os": []}, {}]
    fleet = [entry(f"n{number}.example.com", one) for number, one in enumerate(facts)]
    for entries in (fleet, *([one] for one in fleet)):
        evaluation = Evaluation(MemoryInventory(entries))
        every = parse_client_query({"query": "facts[name] { group by name order by name }"})
        named = parse_client_query({"query": "fact_names { order by name }"})
        found = [json.loads(row)["name"] for row in evaluation.stream(every.select).rows]
        assert [json.loads(row) for row in evaluation.stream(named.select).rows] == found


def test_the_default_node_block_is_no_class() -> None:
    reader = MemoryInventory([entry("a.example.com", classes=("main", "default", "a::b"))])
    select = parse_client_query({"query": "resources[title] { type = 'Class' }"}).select
    assert [row["title"] for row in Evaluation(reader).answer(select).rows] == ["A::B", "main"]
    for query, found in (("Class[main]", 1), ("Class[A::B]", 1), ("Class[default]", 0)):
        assert len(FunctionCall.of("query_nodes", [query]).answer(reader).names) == found, query


# What each plan must not have: a scan of all facts, or a sort of all rows.
FACTS, SORT = "SCAN (v|fact_values)$", "TEMP B-TREE"
PLANS = {
    "facts { }": f"{FACTS}|USE TEMP B-TREE FOR ORDER BY$",
    "facts { name = 'uptime' }": f"{FACTS}|{SORT}",
    "fact_contents { }": f"{FACTS}|USE TEMP B-TREE FOR ORDER BY$",
    "facts[name, count()] { group by name }": "SEARCH v|(SEARCH|SCAN) fact_values",
    "fact_contents { path = ['os', 'family'] }": FACTS,
    "inventory { facts.cluster = 'blue' and facts.os.family = 'Debian' }": f"{FACTS}|{SORT}",
    "nodes { resources { type = 'Class' and title = 'Apache' } }": f"SCAN c|{SORT}",
    "nodes { certname in ['a', 'b'] }": "SCAN nodes",
    "inventory { order by certname desc limit 10 }": SORT,
}


@pytest.mark.parametrize("where", ["", "name ~ 'eth0|uptime'", "environment = 'test'"])
def test_facts_are_counted_without_their_values(where: str) -> None:
    """A legacy fact that a node publishes itself counts once."""
    interfaces: Json = {"interfaces": {"eth0": {"ip": "10.0.0.1", "mac": None}, "eth1": {}}}
    networking: dict[str, Json] = {"networking": interfaces}
    reader = MemoryInventory(
        [
            entry("a.example.com", {**networking, "uptime": 3, "ipaddress_eth0": "10.0.0.9"}),
            entry("b.example.com", networking, environment="test"),
            *(entry(f"c{number}.example.com", networking) for number in range(3)),
        ]
    )

    def answered(query: str) -> QueryAnswer:
        return Evaluation(reader).answer(parse_client_query({"query": query}).select)

    rows = answered(f"facts[certname, name, environment] {{ {where} }}").rows
    counts = answered(f"facts[name, environment, count()] {{{where} group by name, environment }}")
    groups = answered(f"facts[name, environment] {{{where} group by name, environment }}")
    found = Counter((row["name"], row["environment"]) for row in rows)
    assert {(row["name"], row["environment"]): row["count"] for row in counts.rows} == found
    assert {(row["name"], row["environment"]) for row in groups.rows} == found.keys()
    assert counts.names == groups.names == sorted({str(row["certname"]) for row in rows})
    assert answered(f"facts[count()] {{ {where} }}").rows == [{"count": found.total()}]


@pytest.mark.parametrize("query", PLANS)
def test_a_plan_reads_no_more_than_it_needs(query: str) -> None:
    statements: list[str] = []
    with inventory().rows() as connection:
        connection.set_trace_callback(statements.append)

        class Traced(MemoryInventory):
            @contextmanager
            def rows(self, *_: object, **__: object) -> Iterator[Connection]:
                yield connection

        select = parse_client_query({"query": query}).select
        for _ in Evaluation(Traced([])).stream(select).rows:
            pass
        connection.set_trace_callback(None)
        rows = connection.execute(f"EXPLAIN QUERY PLAN {statements[-1]}").fetchall()
    below: set[int] = set()  # of what is read for each row
    for number, parent, _, line in rows:
        below |= {number} if parent in below or line.startswith("CORRELATED") else set()
    # The facts of one node are sorted.
    plan = [line for number, _, _, line in rows if number not in below or SORT not in line]
    assert plan
    assert not [line for line in plan if re.search(PLANS[query], line)], plan
