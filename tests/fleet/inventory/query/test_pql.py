"""PQL, PuppetDB's arrays, and the language of puppetdbquery over the small fleet."""

from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json
from localpuppet.fleet.cli.inventory import query_command
from localpuppet.fleet.inventory.query.discovery import parse_nodes
from localpuppet.fleet.inventory.query.pql import to_array
from localpuppet.fleet.inventory.query.tree import OPERATORS
from tests.fleet.inventory.query.fleet import ask, short

REFERENCE = Path(__file__).parents[4] / "docs/reference"
PAGES = ("query-language.md", "puppetdb-queries.md")


@pytest.mark.parametrize(
    ("text", "array"),
    [
        ("nodes{}", ["from", "nodes"]),
        ("\n nodes\n[certname]\n{\n}\n", ["from", "nodes", ["extract", ["certname"]]]),
        ("inventory { facts.a = 1 and (facts.b = 'x' or ! certname ~ \"\\\\d\") }",
         ["from", "inventory", ["and", ["=", "facts.a", 1],
             ["or", ["=", "facts.b", "x"], ["not", ["~", "certname", "\\d"]]]]]),
        ("nodes { certname != 'a' and certname !~ 'b' }",
         ["from", "nodes",
             ["and", ["not", ["=", "certname", "a"]], ["not", ["~", "certname", "b"]]]]),
        ("nodes { deactivated is null and expired is not null }",
         ["from", "nodes", ["and", ["null?", "deactivated", True], ["null?", "expired", False]]]),
        ("facts[value, count()] { name in ['a', 'b'] group by value }",
         ["from", "facts", ["extract", ["value", ["function", "count"]],
             ["in", "name", ["array", ["a", "b"]]], ["group_by", "value"]]]),
        ("nodes { [certname] in facts[certname] { name = 'x' } "
         "order by certname desc, facts_environment limit 5 offset 2 }",
         ["from", "nodes",
             ["in", ["certname"], ["from", "facts", ["extract", ["certname"], ["=", "name", "x"]]]],
             ["order_by", [["certname", "desc"], "facts_environment"]],
             ["limit", 5], ["offset", 2]]),
        ("nodes { facts { name = 'x' } or inventory { } }",
         ["from", "nodes",
             ["or", ["subquery", "facts", ["=", "name", "x"]], ["subquery", "inventory"]]]),
        ('inventory { facts."a.b".c[0] = -1.5e3 and trusted.extensions.pp_role = true }',
         ["from", "inventory", ["and", ["=", 'facts."a.b".c[0]', -1500.0],
             ["=", "trusted.extensions.pp_role", True]]]),
        ("nodes { certname = 'it\\'s' }", ["from", "nodes", ["=", "certname", "it's"]]),
        ('nodes { certname = "a\nb" }', ["from", "nodes", ["=", "certname", "a\nb"]]),
    ],
)  # fmt: skip
def test_pql_is_puppetdbs_array(text: str, array: Json) -> None:
    assert to_array(text) == array


@pytest.mark.parametrize("operator", sorted(OPERATORS))
def test_an_operator_needs_no_space_around_it(operator: str) -> None:
    pql = 'inventory {{ facts.a.b{0}{1}{0}"x" }}'
    assert to_array(pql.format("", operator)) == to_array(pql.format(" ", operator))
    if operator != "~>":
        nodes = 'a.~"b"{0}{1}{0}1'
        assert parse_nodes(nodes.format("", operator)) == parse_nodes(nodes.format(" ", operator))


def test_the_pages_and_the_help_name_each_operator() -> None:
    of_nodes, of_pql = ((REFERENCE / page).read_text() for page in PAGES)
    assert [word for word in OPERATORS if f"`{word}`" not in of_pql] == []
    words = OPERATORS - {"~>"}
    assert [word for word in words if f"`{word}`" not in of_nodes] == []
    assert words < {*(query_command.help or "").split()}


@pytest.mark.parametrize(
    ("query", "nodes"),
    [
        ('inventory[certname] { facts.role = "web" }', ["web01", "web02"]),
        ("inventory[certname] { facts.cluster != 'blue' }", ["db01", "lb01", "web02"]),
        ("inventory[certname] { facts.processors.count > 4 }", ["db01", "web02"]),
        ("inventory[certname] { ! (facts.processors.count > 4) }", ["web01"]),
        ("inventory[certname] { facts.processors.models[0] = 'AMD' }", ["db01"]),
        ("inventory[certname] { ! (facts.cluster !~ 'b') }", ["web01"]),
        ("inventory[certname] { ! (! (facts.processors.models[0] = 'AMD')) }", ["db01"]),
        ("nodes[certname] { ! (node_state = 'inactive') or certname = 'absent' }",
         ["db01", "lb01", "web01", "web02"]),
        ("inventory[certname] { facts.processors.models.0 = 'AMD' }", ["db01"]),
        ('inventory[certname] { facts.processors.models."1" = "Intel" }', ["web01"]),
        ("inventory[certname] { ! facts.processors.models.0 = 'AMD' }", ["web01", "web02"]),
        ("inventory[certname] { facts.cluster is null }", ["db01", "lb01", "web02"]),
        ("inventory[certname] { trusted.certname ~ '^l' }", ["lb01"]),
        ("nodes[certname] { resources { type = 'Class' and title = 'Apache' } }",
         ["web01", "web02"]),
        ("nodes[certname] { facts_environment = 'testing' }", ["db01"]),
        ("nodes[certname] { order by certname desc limit 1 offset 1 }", ["web01"]),
        ("facts[certname] { name = 'cluster' }", ["web01"]),
        ("facts[certname] { name = 'uptime' and value ~ 'days' }", ["db01", "web01"]),
        ("fact_contents[certname] { path ~> ['processors', 'models', '.*'] and value = 'AMD' "
         "limit 1 }", ["db01"]),
        ("resources[certname] { type in ['Class'] and title ~ '^Prof' }", ["web01"]),
        ("inventory[certname] { facts.os.family in ['RedHat', 'Suse'] }", ["db01"]),
        (["from", "nodes", ["=", ["node", "active"], True], ["limit", 1]], ["db01"]),
        (["from", "nodes", ["=", ["node", "active"], "true"], ["limit", 1]], ["db01"]),
        ('["from", "nodes", ["extract", "certname", ["~", "certname", "^lb"]]]', ["lb01"]),
        (["from", "nodes", ["=", ["node", "active"], False]], []),
        (["from", "nodes", [">", ["fact", "processors.count"], 8]], ["web02"]),
        (["from", "nodes", ["in", ["fact", "cluster"], ["array", ["blue"]]]], ["web01"]),
        (["from", "nodes", ["in", "certname",
             ["extract", "certname", ["select_facts", ["=", "name", "cluster"]]]]], ["web01"]),
        ('inventory { facts.processors.models.match("\\d+") = "AMD" }', ["db01"]),
        ('inventory { facts.networking.interfaces.match("eth.*").ip ~ "^10[.]5" }', ["web01"]),
        (["from", "inventory", ["=", 'facts.os.match("rel(ease)?").major', "9"]], ["db01"]),
        ('nodes { certname in inventory[certname] { facts.match("o.").family = "RedHat" } }',
         ["db01"]),
    ],
)  # fmt: skip
def test_answers(query: Json, nodes: list[str]) -> None:
    rows: Any = ask("puppetdb_query", query)
    assert short([row["certname"] for row in rows]) == nodes


def test_the_trusted_facts_are_a_fact() -> None:
    """Its value is the signed identity: a node cannot publish another one."""
    rows: Any = ask("puppetdb_query", "facts[value] { name = 'trusted' and certname ~ '^db' }")
    assert [row["value"]["certname"] for row in rows] == ["db01.example.com"]
    names: Any = ask("puppetdb_query", "fact_names { name = 'trusted' }")
    assert names == ["trusted"]
    everything: Any = ask("puppetdb_query", "facts[name] { certname ~ '^db' }")
    assert [row["name"] for row in everything].count("trusted") == 1


def test_results_have_the_keys_that_were_written() -> None:
    assert ask(
        "puppetdb_query", "inventory[facts.os.family, trusted.hostname] { certname ~ 'db' }"
    ) == [{"facts.os.family": "RedHat", "trusted.hostname": "db01"}]
    rows: Any = ask("puppetdb_query", "inventory[trusted] { certname ~ 'db' }")
    assert rows[0]["trusted"] == {  # as PuppetDB has it of a node that runs puppet apply
        "authenticated": "local",
        "certname": "db01.example.com",
        "domain": "example.com",
        "extensions": {},
        "hostname": "db01",
    }
    assert ask("puppetdb_query", "nodes { certname ~ 'db' }") == [
        {
            "certname": "db01.example.com",
            "deactivated": None,
            "expired": None,
            "facts_environment": "testing",
            "catalog_environment": "testing",
            "facts_timestamp": "2026-11-18T11:06:40.250Z",
            "catalog_timestamp": "2026-11-18T11:06:40.250Z",
        }
    ]
    assert ask("puppetdb_query", "nodes[count()] { }") == [{"count": 4}]
    assert ask("puppetdb_query", "nodes[count()] { certname = 'absent' }") == [{"count": 0}]
    counted = (
        "facts[value, count()] { name = 'osfamily' group by value order by count() desc, value }"
    )
    families = ("Debian", "RedHat", "its own word")
    assert ask("puppetdb_query", counted) == [{"value": one, "count": 1} for one in families]
    assert ask("puppetdb_query", "facts[count(value)] { name = 'osfamily' }") == [{"count": 3}]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("", "the query is empty"),
        ("nodes", "could not parse the query at its end"),
        ("nodes { certname == 'a' }", "could not parse the query at line 1"),
        ("nodes { certname = 'a\\q\" }", "could not parse"),
        ('nodes { certname ~ "\\d" }', "an escape that JSON does not know"),
        ("reports { }", "reports is not supported"),
        ("nodes { reports { } }", "reports is not supported"),
        ("catalogs { }", "catalogs is not supported"),
        ("package_inventory { }", "package_inventory is not supported"),
        ("hosts { }", "'hosts' is not an entity"),
        ("nodes { latest_report_status = 'failed' }", "latest_report_status of nodes is not"),
        ("nodes[report_timestamp] { }", "report_timestamp of nodes is not supported"),
        ("nodes { colour = 1 }", "'colour' is not a field of nodes"),
        ("resources { }", "a query for all types is not supported"),
        ("resources { type = 'Package' }", "resources of type Package are not supported"),
        ("resources { type ~ 'Cl' }", "resources of type Cl are not supported"),
        ("resources { ! type = 'Class' }", "a query for all types is not supported"),
        ("resources { type in ['Class', 'File'] }", "resources of type File are not supported"),
        ("resources { type = 'Class' or title = 'x' }", "a query for all types is not supported"),
        ("resources { type = 'Class' or exported = false }", "a query for all types is not"),
        ("resources { type = 'Class' and tag = 'x' }", "tag of a class is not supported"),
        ("resources { type = 'Class' and parameters.port = 1 }", "parameters.port of a class"),
        ("resources[tags] { type = 'Class' }", "tags of a class is not supported"),
        ("resources[title] { type = 'Class' order by line }", "line of a class is not supported"),
        ("resources[tag] { exported = true }", "tag of resources is for conditions only"),
        ("resources[resource] { exported = true }", "resource of resources is not supported"),
        ("resources { exported = true or tag = 'x' }", "a query for all types is not supported"),
        ("resources { (exported = true or type = 'Class') and line = 1 }", "line of a class"),
        ("nodes[certname] { resources { title = 'x' } }", "a query for all types is not supported"),
        ("facts[to_string(value)] { }", "the function 'to_string' is not supported"),
        ("nodes[count(), count(certname)] { }", "the result has count() twice"),
        ("nodes[certname, count()] { }", "neither grouped nor counted"),
        ("nodes[certname] { group by facts_environment }", "neither grouped nor counted"),
        ("nodes { group by certname }", "needs the fields of the result"),
        ('inventory { facts.match("a.*") is null }', "in comparisons only"),
        ('inventory[facts.match("a.*")] { }', "in comparisons only"),
        ("inventory { facts.os > 'a' }", "with numbers or times only"),
        ("nodes { certname > 'a' }", "with numbers or times only"),
        ("nodes { certname ~> ['a'] }", "'~>' compares the field path only"),
        ("nodes { certname ~ '[' }", "regular expression is refused"),
        ("nodes { certname in facts[certname, name] { } }", "'in' compares 1 fields with 2"),
        ("nodes { certname in facts { } }", "must name a field"),
        ("nodes { " + "! " * 300 + "certname = 'a' }", "nested too deep"),
        ("nodes { limit 1 limit 2 }", "there are two 'limit'"),
        ('["from", ', "is not JSON"),
        (["nodes"], "does not begin with 'from'"),
        (["from"], "'from' has no entity"),
        (["from", "nodes", ["xor", 1, 2]], "the operator 'xor' is unknown"),
        (["from", "nodes", ["=", "certname"]], "'=' has 1 arguments, not 2"),
        (["from", "nodes", ["and"]], "'and' has no conditions"),
        (["from", "nodes", ["=", "certname", "a"], ["=", "certname", "b"]], "two conditions"),
        (["from", "nodes", ["in", "certname", ["array", "a"]]], "a list of at most"),
        (["from", "nodes", ["limit", -1]], "'limit' requires a number"),
        (["from", "environments", ["=", ["fact", "a"], 1]], "'certname' is not a field"),
        ("nodes { certname = 5 }", "the field certname compares with a string"),
        ("nodes { certname != true }", "the field certname compares with a string"),
        ("nodes { facts_environment = ['production'] }", "compares with a string"),
        ("nodes { certname in [['web01']] }", "the field certname compares with a string"),
        ("nodes { facts { name = 5 } }", "the field name compares with a string"),
        ("resources { exported = 'yes' }", "the field exported compares with true or false"),
        ("resources { exported in [1] }", "the field exported compares with true or false"),
        ("fact_contents { path = 'os' }", "the field path compares with a list of steps"),
        (["from", "fact_paths", ["=", "path", ["os", True]]], "a list of steps"),
        ("fact_paths { depth in ['1'] }", "the field depth compares with a number"),
        ({"from": "nodes"}, "must be a string or an array"),
    ],
)
def test_refused_by_name(query: Json, reason: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        ask("puppetdb_query", query)
    assert reason in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


ALL = ["db01", "lb01", "web01", "web02"]


@pytest.mark.parametrize(
    ("query", "nodes"),
    [
        ("Class[Apache]", ["web01", "web02"]),
        ("class[profile::web]", ["web01"]),
        ("Class['Postgresql::Server']", ["db01"]),
        ("Class[~'^P']", ["db01", "web01"]),
        ('Class[~".*"]', ALL),
        ("not Class[apache]", ["db01", "lb01"]),
        ("os.family=Debian and Class[Profile::Web]", ["web01"]),
        ("os.family=Debian or role=lb", ["lb01", "web01", "web02"]),
        ("role=lb or role=web and processors.count=4", ["lb01", "web01"]),
        ("(role=lb or role=web) and processors.count=4", ["web01"]),
        ("role=backup", ["db01"]),
        ("role!=web", ["db01", "lb01"]),
        ('role~"^(db|lb)$"', ["db01", "lb01"]),
        ("web", ["web01", "web02"]),
        ("web01.example.com", ["web01"]),
        ("w.b", []),
        ('"01"', ["db01", "lb01", "web01"]),
        ("is_virtual=true", ["web01"]),
        ("is_virtual=false", ["web02"]),
        ("os.release.major=12", ["web01"]),
        ('processors.count="4"', []),
        ("processors.count>4", ["db01", "web02"]),
        ("processors.count>=4 and processors.count<=8", ["db01", "web01"]),
        ("os.release.full>9.5", ["web01", "web02"]),
        ('os.release.full>version("9.10")', ["web01", "web02"]),
        ('os.release.full>=version("10.10")', ["web01"]),
        ("processors.models.0=Intel", ["web01", "web02"]),
        ("processors.models.*=AMD", ["db01"]),
        ('networking.interfaces.~"eth.*".ip~"^10.5"', ["web01"]),
        ("networking.interfaces.*.mac=aa:01", ["web01"]),
        ("cluster!=green", ["web01"]),
        ("not cluster=green", ALL),
        ('cluster!~"gr"', ["web01"]),
        ("#node.facts_environment=testing", ["db01"]),
        ("#node { facts_environment=testing or catalog_environment=production }", ALL),
        ('#node.facts_timestamp<@"2020-01-01T00:00:00Z"', []),
        ('#node.facts_timestamp>@"2020-01-01" and lb01', ["lb01"]),
        ('#node.facts_timestamp>@"2020-01-01 04:00" and lb01', ["lb01"]),
        ("osfamily=RedHat", ["db01"]),
        ('osfamily="its own word"', ["web02"]),
        ('ipaddress="10.0.0.9"', ["db01"]),
        ("ipaddress_eth0_5='10.5.0.1'", ["web01"]),
        ("", ALL),
        ("  ", ALL),
        (False, ALL),
        (["=", ["fact", "kernel"], "Linux"], []),
        (["~", "certname", "^web"], ["web01", "web02"]),
    ],
)
def test_nodes(query: Json, nodes: list[str]) -> None:
    assert short(ask("query_nodes", query)) == nodes


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("a=", "could not parse the query at its end"),
        ("a b", "line 1, column 3, before 'b'"),
        ("Package[apache2]", "resources of type Package are not supported"),
        ("os.family=Debian and package['x']", "resources of type Package are not supported"),
        ("Class[apache]{port=80}", "the field parameters.port of a class is not supported"),
        ("Class[apache]{tag=a}", "the field tag of a class is not supported"),
        ("file[foo]{ensure=present}", "resources of type File are not supported"),
        ('#node.report_timestamp<"x"', "report_timestamp of nodes is not supported"),
        ('#node.facts_timestamp<@"2 hours ago"', "a date is not understood"),
        ("#fact.name=a", "#fact is not supported"),
        ("#node { web01 }", "has a bare word"),
        ("#node { Class[a] }", "a resource among columns of nodes"),
        ('a<"9.5"', "compares with a number or a version, not with a text"),
        ("a>b", "compares with a number or a version, not with a text"),
        ("a~'('", "regular expression is refused: missing )"),
        ("a~'(?=b)'", "no look-around"),
        ("a=b\x07", "control character (U+0007) at character 4"),
        (17, "must be a string or an array"),
        ("not " * 200 + "a=1", "nested too deep"),
        (" or ".join(["a=1"] * 600), "more than 500 conditions"),
        ("a=" + "b" * 70_000, "too long"),
        (["=", "report_timestamp", "2026-11-24"], "report_timestamp of nodes is not supported"),
    ],
)
def test_refused(query: Json, reason: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        ask("query_nodes", query)
    assert reason in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "query",
    [
        'inventory { facts.os.name = "CentOS" }',
        'inventory[certname] { facts.os.name = "CentOS" }',
        'nodes[certname] { facts { name = "operatingsystem" and value = "Debian" } }',
        '\n resources{type="Class"}',
    ],
)
def test_an_error_names_pql_if_a_function_does_not_accept_it(query: str) -> None:
    with pytest.raises(InvalidInputError, match=r"is PQL, which only puppetdb_query\(\) takes"):
        parse_nodes(query)


def test_a_question_about_resources_names_classes_only() -> None:
    for query, reason in (
        ("", "is empty"),
        (False, "is empty"),
        ("User[apache]", "resources of type User"),
        ("os.family=Debian", "compares a fact"),
        ("Class[a] or File[b]", "resources of type File"),
        ("web01", "has a bare word"),
    ):
        with pytest.raises(InvalidInputError, match=reason):
            ask("query_resources", "", query)
    assert ask("query_resources", "", "Class[apache] or Class[haproxy]")
    assert ask("query_nodes", "Class[apache] or Class[haproxy]")
