"""`localpuppet rollout order` as people and programs meet it."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from localpuppet.base.formats.strict_json import loads
from localpuppet.base.share.shared_files import shared_file
from tests.rigs.node import Node
from tests.rigs.terminal import in_terminal

LAMP = str(Path(__file__).parents[2] / "data" / "environment-lamp.json")
CHORIA = """\
Puppet Site Plan for the production Environment

2 applications on 4 managed nodes:

\tLamp[app1]
\tLamp[app2]

Node groups and run order:
      --- Group 1 --------------------------------------

\tdev1.devco.net
\t\tLamp[app1] -> Lamp::Mysql[app1]
\t\tLamp[app2] -> Lamp::Mysql[app2]

      --- Group 2 --------------------------------------

\tdev2.devco.net
\t\tLamp[app1] -> Lamp::Webapp[app1-1]
\t\tLamp[app2] -> Lamp::Webapp[app2-1]

\tdev3.devco.net
\t\tLamp[app1] -> Lamp::Webapp[app1-2]
\t\tLamp[app2] -> Lamp::Webapp[app2-2]

\tdev4.devco.net
\t\tLamp[app1] -> Lamp::Webapp[app1-3]
\t\tLamp[app2] -> Lamp::Webapp[app2-3]

"""
SHOP = """\
applications:
  shop:
    database:
      node: db01.example.com
      produces: [sql/shop]
      checks: [[/usr/local/bin/probe, '%{node}']]
    web:
      node: web01.example.com
      consumes: [sql/shop]
      checks: ['http://%{node}/health']
  blog:
    database: {node: web01.example.com, produces: [sql/blog]}
    web: {node: db01.example.com, consumes: [sql/blog]}
"""


@pytest.fixture
def shop(node: Node) -> str:
    return str(node.write("site.yaml", SHOP))


def test_a_pipe_gets_chorias_text_byte_for_byte(node: Node) -> None:
    done = node.run("plan", "--site", LAMP)
    assert "# 'plan' is now 'rollout order'" in done.err
    done = node.run("rollout", "order", "--site", LAMP)
    assert (done.code, done.out, done.err) == (0, CHORIA, "")


def test_chorias_colours(node: Node) -> None:
    done = node.run(
        "--color", "always", "rollout", "order", "--site", LAMP, "--instance", "Lamp[app1]"
    )
    bold, green, end = "\x1b[1m", "\x1b[32m", "\x1b[0m"
    assert f"{bold}1{end} applications on {bold}4{end} managed nodes:\n\n\tLamp[app1]\n\nNode" in (
        done.out
    )
    head = f"   {green}   ---{end} {bold}Group 1{end} {green}{'-' * 38}{end}\n"
    assert (
        f"{head}\n\t{bold}dev1.devco.net{end}\n\t\tLamp[app1] -> Lamp::Mysql[app1]\n\n" in done.out
    )


def test_an_empty_site_is_no_failure(node: Node) -> None:
    path = node.write("empty.json", '{"environment": "production", "applications": {}}')
    done = node.run("rollout", "order", "--site", str(path))
    assert (done.code, done.out) == (
        0,
        "Puppet Site Plan for the production Environment\n\n"
        "No site applications were found in the Puppet environment\n",
    )
    assert "has no applications" in in_terminal(node, "rollout", "order", "--site", str(path)).out


def test_a_site_can_be_read_from_standard_input(node: Node) -> None:
    # `run` gives the program an empty one.
    done = node.run("rollout", "order", "--site", "-")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "standard input: is empty" in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--site", LAMP, "--role", "web"], "--role and --query select nodes of the inventory"),
        (["--site", "/nowhere.json"], "/nowhere.json: file not found"),
        (["--site", "https://me:pw@puppet:8140/x"], "puppet:8140/x: a URL must not hold cred"),
        (["--site", "http://me:pw@puppet:8140/x"], "puppet:8140/x: is neither a file nor an"),
        (
            ["--site", LAMP, "--site-cert", "/c.pem"],
            "--site-key require each other",
        ),
        (["--site", LAMP, "--instance", "Lamp[app9]"], "unknown application instance 'Lamp[app9]'"),
        (["--site", LAMP, "--nodes", "dev9.devco.net"], "unknown node 'dev9.devco.net'"),
        (["--site", LAMP, "--nodes", "dev1.devco.net,"], "node name ''"),
        (["--site", LAMP, "--nodes", "*"], "no wildcards"),
    ],
)
def test_misuse_is_a_single_line_and_exit_code_2(
    node: Node, arguments: list[str], message: str
) -> None:
    done = node.run("rollout", "order", *arguments)
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1)
    assert message in done.err
    assert "me:pw" not in done.err


def test_a_site_file_is_checked_against_its_schema(node: Node) -> None:
    path = node.write("site.yaml", "applications: {shop: {web: {nodes: [a, b]}}}\n")
    done = node.run("rollout", "order", "--site", str(path))
    assert done.code == 2
    assert (
        "site.yaml: applications.shop.web: unknown key 'nodes' (did you mean 'node'?)" in done.err
    )


def test_json_matches_its_schema(node: Node, shop: str) -> None:
    schema = loads(shared_file("plan.schema.json").read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    for arguments in (
        [LAMP],
        [shop],
        [shop, "--instance", "blog", "--nodes", "db01.example.com"],
        [str(node.write("empty.json", '{"applications": {"a": {}}}'))],
    ):
        done = node.run("rollout", "order", "--json", "--site", *arguments)
        assert (done.code, done.err) == (0, "")
        jsonschema.validate(done.json, schema)
        assert done.json["runs"] == sum(len(group["runs"]) for group in done.json["groups"])


def test_json_of_a_plan_with_checks_and_repeated_runs(node: Node, shop: str) -> None:
    found = node.run("rollout", "order", "--json", "--site", shop).json
    both = ["db01.example.com", "web01.example.com"]
    assert found["repeated"] == {name: [1, 2] for name in both}
    assert [[run["node"] for run in group["runs"]] for group in found["groups"]] == [both, both]
    assert found["groups"][0]["runs"][0] == {
        "node": "db01.example.com",
        "number": 1,
        "total": 2,
        "components": [
            {
                "application": "shop",
                "name": "database",
                "produces": ["sql/shop"],
                "consumes": [],
                "checks": [["/usr/local/bin/probe", "%{node}"]],
            }
        ],
    }


def test_json_of_narrowed_nodes_names_external_capabilities(node: Node, shop: str) -> None:
    arguments = ["--instance", "shop", "--nodes", "web01.example.com"]
    found = node.run("rollout", "order", "--json", "--site", shop, *arguments).json
    assert (found["nodes"], found["external_capabilities"]) == (1, ["sql/shop"])


def test_a_terminal_of_sixty_columns_is_enough(node: Node, shop: str) -> None:
    shown = in_terminal(node, "rollout", "order", "--site", shop, COLUMNS="60").out
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown).replace("\r\n", "\n")
    assert max(map(len, plain.splitlines())) <= 60
    words = " ".join(plain.split())
    for text in (
        "production: 2 applications on 2 nodes, 4 runs in 2 groups",
        "Group 1 db01.example.com (run 1 of 2) shop database, gives sql/shop, 1 check",
        "shop web, needs sql/shop, 1 check",
        "* web01.example.com (run 1 of 2) blog database, gives sql/blog",
        "* the longest chain: web01.example.com > db01.example.com (sql/blog)",
        "db01.example.com, web01.example.com run more than once",
    ):
        assert text in words


def test_a_terminal_gets_chorias_text_when_it_asks_for_it(node: Node) -> None:
    shown = in_terminal(node, "--color", "never", "rollout", "order", "--text", "--site", LAMP).out
    assert shown.replace("\r\n", "\n") == CHORIA


def test_pictures(node: Node, shop: str) -> None:
    drawn = node.run("rollout", "order", "--svg", "--site", shop)
    ElementTree.fromstring(drawn.out)  # noqa: S314 - localpuppet's own
    graph = node.run("rollout", "order", "--dot", "--site", shop)
    assert graph.out.startswith("digraph {\n")
    assert (drawn.code, drawn.err, graph.code, graph.err) == (0, "", 0, "")


def test_without_graphviz_a_picture_is_refused_and_names_what_to_install(
    node: Node, shop: str
) -> None:
    done = node.run("rollout", "order", "--svg", "--site", shop, PATH="/nonexistent")
    assert (done.code, done.out) == (69, "")
    assert "apt install graphviz" in done.err


def test_a_graph_of_too_many_values_is_refused_before_it_takes_memory(node: Node) -> None:
    path = node.write("many.json", '{"applications": {"a": {"b": {"consumes": [')
    start = path.read_text()
    for value, count in (("[]", 4_000_000), ('"ab"', 3_000_000), ("{}", 500_000)):
        path.write_text(start + f"{value}," * count + f"{value}]}}}}}}}}")
        done = node.run("rollout", "order", "--site", str(path))
        assert done.code == 2
        assert "has too many values" in done.err
    path.write_text(json.dumps({"applications": {}}) + " " * (48 * 1024 * 1024))
    assert "is too large" in node.run("rollout", "order", "--site", str(path)).err
    path.write_text("#" * (1024 * 1024 + 1))
    assert "is too large: YAML" in node.run("rollout", "order", "--site", str(path)).err
