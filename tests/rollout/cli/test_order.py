"""`localpuppet rollout plan` and `localpuppet kicks` as people and programs meet them."""

import http.server
import json
import re
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from localpuppet.base.formats.strict_json import loads
from localpuppet.base.machine.own_program import shared_file
from localpuppet.fleet.bus.bus_limits import MAX_KICKS
from localpuppet.fleet.edges.links import MAX_QUESTIONS
from localpuppet.fleet.inventory.entry import CatalogQuery
from tests.rigs.fleet import Fleet
from tests.rigs.node import REPOSITORY, Done, Node
from tests.rigs.terminal import in_terminal
from tests.rigs.tls import Authority

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
    for old, new in (("plan", "rollout plan"), ("order", "plan")):
        done = node.run(*(["rollout"] if old == "order" else []), old, "--site", LAMP)
        assert (done.code, done.out) == (0, CHORIA)
        assert f"# '{old}' is now '{new}'" in done.err
    done = node.run("rollout", "plan", "--site", LAMP)
    assert (done.code, done.out, done.err) == (0, CHORIA, "")


def test_chorias_colours(node: Node) -> None:
    done = node.run(
        "--color", "always", "rollout", "plan", "--site", LAMP, "--instance", "Lamp[app1]"
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
    done = node.run("rollout", "plan", "--site", str(path))
    assert (done.code, done.out) == (
        0,
        "Puppet Site Plan for the production Environment\n\n"
        "No site applications were found in the Puppet environment\n",
    )
    assert "has no applications" in in_terminal(node, "rollout", "plan", "--site", str(path)).out


def test_a_site_can_be_read_from_standard_input(node: Node) -> None:
    # `run` gives the program an empty one.
    done = node.run("rollout", "plan", "--site", "-")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "standard input: is empty" in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--site", LAMP, "--role", "web"], "--role and --query select nodes of the inventory"),
        (["--svg", "--release", "a/tags/r1"], "--svg excludes --release"),
        (["--order", "none"], "--order none requires --release"),
        (["--site", "/nowhere.json"], "/nowhere.json: file not found"),
        (["--site", "https://me:pw@puppet:8140/x"], "puppet:8140/x: a URL must not hold cred"),
        (["--site", "http://me:pw@puppet:8140/x"], "puppet:8140/x: is neither a file nor an"),
        (["--site", LAMP, "--site-cert", "/c.pem"], "--site-key require each other"),
        (["--site", LAMP, "--instance", "Lamp[app9]"], "unknown application instance 'Lamp[app9]'"),
        (["--site", LAMP, "dev9.devco.net"], "unknown node 'dev9.devco.net'"),
        (["--site", LAMP, "dev1.devco.net,"], "node name ''"),
        (["--site", LAMP, "*"], "no wildcards"),
        (["--site", LAMP, "--without", "dev9.devco.net"], "--without: unknown node 'dev9.devco.n"),
    ],
)
def test_misuse_is_one_line_and_code_2(node: Node, arguments: list[str], message: str) -> None:
    done = node.run("rollout", "plan", *arguments)
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1)
    assert message in done.err
    assert "me:pw" not in done.err


def test_json_matches_its_schema(node: Node, shop: str) -> None:
    schema = loads(shared_file("plan.schema.json").read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    for arguments, nodes, external in (
        ([LAMP], 4, []),
        ([shop], 2, []),
        ([shop, "--instance", "shop", "web01.example.com"], 1, ["sql/shop"]),
        ([str(node.write("empty.json", '{"applications": {"a": {}}}'))], 0, []),
    ):
        done = node.run("rollout", "plan", "--json", "--site", *arguments)
        assert (done.code, done.err) == (0, "")
        jsonschema.validate(done.json, schema)
        assert done.json["runs"] == sum(len(group["runs"]) for group in done.json["groups"])
        assert (done.json["nodes"], done.json["external_capabilities"]) == (nodes, external)


def test_json_of_a_plan_with_checks_and_repeated_runs(node: Node, shop: str) -> None:
    found = node.run("rollout", "plan", "--json", "--site", shop).json
    both = ["db01.example.com", "web01.example.com"]
    assert found["repeated"] == {name: [1, 2] for name in both}
    assert [[run["node"] for run in group["runs"]] for group in found["groups"]] == [both, both]
    first = found["groups"][0]["runs"][0]
    assert (first["number"], first["total"]) == (1, 2)
    assert first["components"][0]["checks"] == [["/usr/local/bin/probe", "%{node}"]]


def test_a_terminal_of_sixty_columns_is_enough(node: Node, shop: str) -> None:
    shown = in_terminal(node, "rollout", "plan", "--site", shop, COLUMNS="60").out
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
    shown = in_terminal(node, "--color", "never", "rollout", "plan", "--text", "--site", LAMP).out
    assert shown.replace("\r\n", "\n") == CHORIA


def test_pictures_and_what_to_install_for_them(node: Node, shop: str) -> None:
    drawn = node.run("rollout", "plan", "--svg", "--site", shop)
    ElementTree.fromstring(drawn.out)  # noqa: S314 - localpuppet's own
    graph = node.run("rollout", "plan", "--dot", "--site", shop)
    assert graph.out.startswith("digraph {\n")
    assert (drawn.code, drawn.err, graph.code, graph.err) == (0, "", 0, "")
    done = node.run("rollout", "plan", "--svg", "--site", shop, PATH="/nonexistent")
    assert (done.code, done.out, "apt install graphviz" in done.err) == (69, "", True)


def test_a_graph_of_too_many_values_is_refused_before_it_takes_memory(node: Node) -> None:
    path = node.write("many.json", '{"applications": {"a": {"b": {"consumes": [')
    start = path.read_text()
    for value, count in (("[]", 4_000_000), ('"ab"', 3_000_000), ("{}", 500_000)):
        path.write_text(start + f"{value}," * count + f"{value}]}}}}}}}}")
        done = node.run("rollout", "plan", "--site", str(path), code=2)
        assert "has too many values" in done.err
    path.write_text(json.dumps({"applications": {}}) + " " * (48 * 1024 * 1024))
    assert "is too large" in node.run("rollout", "plan", "--site", str(path)).err
    path.write_text("#" * (1024 * 1024 + 1))
    assert "is too large: YAML" in node.run("rollout", "plan", "--site", str(path)).err


CODE = "application_component { 'Shop::Sql[a]': produces => 'sql/a' }"


def groups(done: Done) -> list[list[str]]:
    assert done.code == 0, done.err
    return [
        [run["node"].partition(".")[0] for run in group["runs"]] for group in done.json["groups"]
    ]


def test_the_order_is_that_of_the_inventory(fleet: Fleet) -> None:
    web, lb = fleet.add("web", "lb")
    (db,) = fleet.add("db", puppet=True)
    nobody = web.run("rollout", "plan")
    assert "No site applications were found in the Puppet environment" in nobody.out
    assert "# the inventory has no node yet: " in nobody.err
    db.node.app(CODE)
    raw = json.loads((db.root / "input.yaml").read_text())
    db.node.write("input.yaml", json.dumps({**raw, "parameters": {"role": "db"}}))
    db.run("apply", code=0)
    # Another process publishes as well, and may be late.
    db.run("inventory", "publish", code=0)
    found = web.run("rollout", "plan", "--json")
    assert (groups(found), found.err) == ([["db"]], "")
    assert found.json["applications"] == ["Shop[a]"]
    (component,) = found.json["groups"][0]["runs"][0]["components"]
    assert (component["name"], component["produces"]) == ("Shop::Sql[a]", ["sql/a"])

    asks = CatalogQuery(text='servers_with_role("db")', digest="0")
    web.publish_entry("web", queries=(asks,))
    lb.publish_entry(
        "lb", queries=(CatalogQuery(text='servers_with_role("web")', digest="0"), asks)
    )
    assert groups(web.run("rollout", "plan", "--json")) == [["db"], ["web"], ["lb"]]
    narrowed = web.run("rollout", "plan", "--json", "--role", "lb", "--role", "db")
    assert groups(narrowed) == [["db"], ["lb"]]
    refused = web.run("rollout", "run", "--role", "nosuch")
    assert (refused.code, "--role: no node has the role nosuch" in refused.err) == (2, True)
    refused = web.run("rollout", "run", "--role", "lb", "--one-at-a-time-by", "datacenter")
    assert (refused.code, "no single value of fact 'datacenter'" in refused.err) == (2, True)


def test_nodes_online_without_an_entry_are_named_and_no_rollout_misses_them(fleet: Fleet) -> None:
    a, b, operator = fleet.add("a", "b", "operator")
    a.start()
    b.start()
    fleet.present(a, b)
    a.publish_entry("web")
    warning = f"online without an entry of a good run: {b.name}"
    for words in (["rollout", "plan"], ["query", "role=web"]):
        done = operator.run(*words)
        assert (done.code, a.name in done.out, warning in done.err) == (0, True, True)
    miss = f"the rollout would miss online nodes without an entry: {b.name}"
    for words in ([], ["--role", "web"], ["--order", "none", "--query", "role=web"]):
        refused = operator.run("rollout", "run", *words)
        assert (refused.code, miss in refused.err) == (2, True)
    short = a.name.partition(".")[0]
    for words in (["--without", str(b.name)], [str(a.name)], [short]):
        done = operator.run("rollout", "run", *words)
        assert (miss in done.err, a.name in done.out) == (False, True)
        assert (f"# 1 node: {a.name}" in done.err) == (words == [short])
    misspelt = operator.run("rollout", "run", "--without", f"{b.name}x")
    assert (misspelt.code, f"no known node {b.name}x (did you mean" in misspelt.err) == (2, True)
    shown = operator.run("rollout", "plan", "--json", "--without", b.name)
    assert [run["node"] for group in shown.json["groups"] for run in group["runs"]] == [a.name]
    b.publish_entry("web")
    assert operator.run("query", "role=web").err == ""
    none = operator.run("rollout", "run", "--without", f"{a.name},{b.name}")
    assert (none.code, "the selection matches no node" in none.err) == (2, True)


GRAPH = (REPOSITORY / "tests/data/environment-lamp.json").read_bytes()
COMMAND = {"applications": {"A": {"x": {"node": "n1.example.com", "checks": [["/bin/probe"]]}}}}

PAGES = {
    "/puppet/v3/environment/production": GRAPH,
    "/command": json.dumps(COMMAND).encode(),
    "/yaml": b"applications: {}\n",
}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = PAGES.get(self.path)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, format: str, *args: object) -> None:
        pass


@dataclass
class Server:
    """A server, and what lets one in."""

    address: str
    ca: Path
    certificate: Path
    key: Path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    authority = Authority(tmp_path)
    tls, mine = authority.server(), authority.node("web01.example.com")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    context.load_verify_locations(tls.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    httpd.socket = context.wrap_socket(
        httpd.socket, server_side=True, do_handshake_on_connect=False
    )
    thread = threading.Thread(target=httpd.serve_forever, args=(0.02,))
    thread.start()
    yield Server(f"https://127.0.0.1:{httpd.server_port}", tls.ca, mine.certificate, mine.key)
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def test_the_graph_of_a_server_that_wants_a_certificate(node: Node, server: Server) -> None:
    url = f"{server.address}/puppet/v3/environment/production"
    shown = ["--site-cert", str(server.certificate), "--site-key", str(server.key)]
    trusted = ["--site-ca", str(server.ca)]
    done = node.run("rollout", "plan", "--site", url, *shown, *trusted, "--json", code=0)
    assert done.json["applications"] == ["Lamp[app1]", "Lamp[app2]"]

    identity = {name: str(getattr(server, name)) for name in ("ca", "certificate", "key")}
    node.settings(identity=identity)
    assert node.run("rollout", "plan", "--site", url, "--json").json == done.json, "the node's own"

    node.settings()
    for words, code, message in (
        ((url, *trusted), 69, "cannot be downloaded"),
        ((url, *shown), 69, "certificate verify failed"),
        ((f"{server.address}/nowhere", *shown, *trusted), 69, "the server answered 404"),
        ((f"{server.address}/yaml", *shown, *trusted), 2, "is not JSON"),
        (
            (f"{server.address}/command", *shown, *trusted),
            2,
            "have a command, which only a YAML file may",
        ),
    ):
        refused = node.run("rollout", "plan", "--site", *words)
        assert (refused.code, message in refused.err) == (code, True), refused.err


def test_the_cycle_is_named_and_check_finds_it(fleet: Fleet) -> None:
    web, lb = fleet.add("web", "lb")
    asked = CatalogQuery(text='servers_with_role("web")', digest="0")
    web.publish_entry("web", kicks=('role="haproxy"',))
    lb.publish_entry("haproxy", queries=(asked,))
    fine = web.run("kicks", "--check")
    assert (fine.code, fine.err) == (0, "")
    assert fine.out.splitlines() == [
        "CHANGES  RUNS THEN  BECAUSE IT",
        "web      haproxy    is kicked, asks about it",
    ]

    lb.publish_entry("haproxy", queries=(asked,), kicks=('role="web"',))
    for words, code in (([], 0), (["--check"], 1), (["--check", "--by", "query"], 0)):
        web.run("kicks", *words, code=code)
    assert "cycle: haproxy -> web -> haproxy" in web.run("kicks").out
    found = web.run("kicks", "--json", "--check")
    assert (found.code, found.json["cycles"]) == (
        1,
        [
            {
                "path": ["haproxy", "web", "haproxy"],
                "by": [["kick"], ["kick", "query"]],
                "settles": False,
            }
        ],
    )
    assert web.run("kicks", "--svg").out.startswith("<svg ")
    assert web.run("kicks", "--dot").out.startswith("digraph {\n")


def test_no_links_and_an_unreachable_bus_are_different_answers(fleet: Fleet) -> None:
    (web,) = fleet.add("web")
    assert (
        web.run("kicks").out == "no node kicks, queries, collects from or triggers another node\n"
    )
    web.node.settings(
        node=str(web.name),
        bus="nats",
        buses={"nats": {"servers": ["nats://127.0.0.1:1"]}, "timeout": 1},
    )
    done = web.run("kicks", "--check")
    assert (done.code, done.out) == (69, "")


def test_an_incomplete_check_does_not_report_that_there_is_no_cycle(fleet: Fleet) -> None:
    """More queries than a single evaluation takes; the kicks of a real fleet may have as many."""
    nodes = fleet.add(*(f"web{number}" for number in range(MAX_QUESTIONS // MAX_KICKS + 1)))
    for number, node in enumerate(nodes):
        kicks = (f'role="{number} {kick}"' for kick in range(MAX_KICKS))
        node.publish_entry("web", kicks=tuple(kicks))
    shown = nodes[0].run("kicks")
    left = len(nodes) * MAX_KICKS - MAX_QUESTIONS
    said = f"{left} kicks and queries took too long to evaluate"
    assert (shown.code, f"# {said}: there may be more" in shown.err) == (0, True)
    checked = nodes[0].run("kicks", "--check")
    assert (checked.code, f"{said}: there may be a cycle" in checked.err) == (69, True)
