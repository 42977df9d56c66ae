"""`rollout order --site https://…`: of a server that wants a certificate, as Puppet's does."""

import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.rigs.node import REPOSITORY, Node
from tests.rigs.tls import Authority

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
    done = node.run("rollout", "order", "--site", url, *shown, *trusted, "--json")
    assert done.code == 0, done.err
    assert done.json["applications"] == ["Lamp[app1]", "Lamp[app2]"]

    identity = {name: str(getattr(server, name)) for name in ("ca", "certificate", "key")}
    node.settings(identity=identity)
    assert node.run("rollout", "order", "--site", url, "--json").json == done.json, "the node's own"

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
        refused = node.run("rollout", "order", "--site", *words)
        assert (refused.code, message in refused.err) == (code, True), refused.err
