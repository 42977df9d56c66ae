"""The language of puppetdbquery, over the small fleet."""

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query.discovery import parse_nodes
from tests.fleet.inventory.query.fleet import ask, short

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
