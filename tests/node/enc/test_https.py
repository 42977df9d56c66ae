"""Inputs over https: real TLS, a real CA, and limits."""

import http.server
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.node import Node
from tests.rigs.tls import Authority

PAGES: dict[str, bytes] = {
    "/ok.yaml": b"app: foo/trunk\nclasses: [foo]\n",
    "/large.yaml": b"# " + b"x" * 2_000_000,
    "/broken.yaml": b"app: [",
    "/cut.yaml": b"app: foo/trunk\nclasses: [foo]\n",
    "/endless.yaml": b"app: foo/trunk\n",
}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/redirect.yaml":
            self.send_response(302)
            self.send_header("Location", "/ok.yaml")
            self.end_headers()
        elif path == "/slow.yaml":
            self.send_response(200)
            self.send_header("Content-Length", "10")
            self.end_headers()
            self.server.finished.wait(60)  # type: ignore[attr-defined]
        elif path in PAGES:
            body = PAGES[path]
            self.send_response(200)
            if path != "/endless.yaml":
                promised = len(body) + (400 if path == "/cut.yaml" else 0)
                self.send_header("Content-Length", str(promised))
            self.end_headers()
            self.wfile.write(body)
        elif path == "/trickle.yaml":
            self.wfile.write(b"HTTP/1.0 200 OK\r\n")
            while not self.server.finished.wait(0.3):  # type: ignore[attr-defined]
                self.wfile.write(b"x")
        else:
            self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Serve the pages; return the address and the CA's file."""
    tls = Authority(tmp_path).server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    httpd.finished = threading.Event()  # type: ignore[attr-defined]
    httpd.socket = context.wrap_socket(httpd.socket, server_side=True)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.02,))
    thread.start()
    yield f"https://127.0.0.1:{httpd.server_port}", tls.ca
    httpd.finished.set()  # type: ignore[attr-defined]
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def test_an_input_is_fetched_and_its_query_stays_secret(
    node: Node, server: tuple[str, Path]
) -> None:
    address, ca = server
    node.settings(https_ca=str(ca))
    done = node.run("check", f"{address}/ok.yaml?token=hunter2")
    assert done.code == 0, done.err
    assert "hunter2" not in done.out + done.err
    assert f"{address}/ok.yaml" in done.out


@pytest.mark.parametrize(
    ("page", "code", "message"),
    [
        ("missing.yaml", 69, "answered 404"),
        ("redirect.yaml", 69, "answered 302"),
        ("slow.yaml", 69, "timed out"),
        ("trickle.yaml", 69, "timed out"),
        ("cut.yaml", 69, "broke after 30 of 430 bytes"),
        ("endless.yaml", 69, "has no length"),
        ("large.yaml", 2, "too large"),
        ("broken.yaml", 2, "line"),
    ],
)
def test_an_error_names_the_page_and_the_failure_of_the_server(
    node: Node, server: tuple[str, Path], page: str, code: int, message: str
) -> None:
    address, ca = server
    node.settings(https_ca=str(ca), timeouts={"https": 2 if message == "timed out" else 60})
    done = node.run("check", f"{address}/{page}")
    assert done.code == code
    assert message in done.err
    assert page in done.err


def test_an_unknown_authority_is_refused(node: Node, server: tuple[str, Path]) -> None:
    done = node.run("check", f"{server[0]}/ok.yaml")
    assert done.code == 69
    assert "certificate verify failed" in done.err


def test_a_server_that_refuses_connections_is_unavailable(node: Node) -> None:
    done = node.run("check", "https://127.0.0.1:1/x.yaml")
    assert done.code == 69
    assert "refused" in done.err


@pytest.mark.parametrize(
    "url", ["https://", "https:///input.yaml", "https://:443/x", "https://?a=b"]
)
def test_a_url_without_a_host_is_refused(node: Node, url: str) -> None:
    done = node.run("apply", url)
    assert done.code == 2, done.err
    assert "has no host" in done.err
    assert "None" not in done.err
