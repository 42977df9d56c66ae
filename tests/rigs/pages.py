"""A small server over TLS for tests of clients: each page is a function, and clients may leave."""

import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from tests.rigs.tls import Authority

DRIPS = 1000  # bytes that a slow page sends; a client without a deadline receives them all


class PageHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    pages: "Pages"

    def do_GET(self) -> None:
        self.pages.requests.append((self.path, dict(self.headers)))
        try:
            self.pages.answers[self.path](self)
        except OSError:
            self.pages.closed.set()
        self.close_connection = True

    def send(
        self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def drip(self, start: bytes) -> None:
        """Send a beginning, and then byte after byte until the client closes the connection."""
        self.wfile.write(start)
        for _ in range(DRIPS):
            self.pages.over.wait(0.02)
            self.wfile.write(b"x")

    def log_message(self, format: str, *args: object) -> None:
        pass


Answer = Callable[["PageHandler"], None]


@dataclass
class Pages:
    """A server's answers by path, its requests, and whether a client left while it sent."""

    answers: dict[str, Answer] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    closed: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    ca: Path | None = None

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return str(parts.hostname), int(parts.port or 0)

    def redirect(self, path: str, place: str) -> None:
        self.answers[path] = lambda handler: handler.send(302, b"", {"Location": place})


@contextmanager
def pages(directory: Path, *, tls: bool = True, **answers: Answer) -> Iterator[Pages]:
    """Serve answers by the name of their page, over TLS of an authority in the directory."""
    served = Pages(answers={f"/{name}": answer for name, answer in answers.items()})
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Handler", (PageHandler,), {"pages": served})
    )
    server.daemon_threads = True
    if tls:
        directory.mkdir(exist_ok=True)
        identity = Authority(directory).server()
        served.ca = identity.ca
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(identity.certificate, identity.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    served.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield served
    finally:
        served.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
