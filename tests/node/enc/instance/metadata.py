"""A metadata service with EC2's, OpenStack's or CloudStack's pages, or a misbehaviour.

As a program it listens on an address and port, with pages from a JSON file, and writes each request
into a file: `python -m tests.node.enc.instance.metadata 169.254.169.254 80 PAGES REQUESTS`.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOKEN = "AQAEAE3b0a=="
SHOWN = "X-aws-ec2-metadata-token"
EC2 = "/latest/api/token"


class _Handler(BaseHTTPRequestHandler):
    server: "MetadataService"

    def do_GET(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        self.server.noted(self.server.requests[-1])
        manners = self.server.manners
        if manners is not None:
            manners(self)
            return
        if self.path == EC2 and self.command == "PUT" and self.server.tokens:
            self.send(200, TOKEN.encode())
        elif self.server.tokens and self.headers[SHOWN] != TOKEN:
            self.send(401, b"")
        elif self.command == "GET" and self.path in self.server.pages:
            self.send(200, self.server.pages[self.path])
        else:
            self.send(404, b"<html>not found</html>")

    def do_PUT(self) -> None:
        self.do_GET()

    def send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


Manners = Callable[[_Handler], object]


class MetadataService(ThreadingHTTPServer):
    """A metadata service.

    Args:
        address: The address and port on which it listens.
        pages: Bodies by path.

    Attributes:
        tokens: Whether it requires EC2's tokens: initially, if `pages` are EC2's.
        manners: The misbehaviour in place of an answer.
        requests: Method and path of all requests.
    """

    daemon_threads = True
    # Lets a burst of connections wait; the default of 5 drops them.
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], pages: dict[str, bytes]) -> None:
        super().__init__(address, _Handler)
        self.pages = pages
        self.tokens = "/latest/meta-data/instance-id" in pages
        self.manners: Manners | None = None
        self.requests: list[str] = []
        self.finished = threading.Event()

    def noted(self, request: str) -> None:
        """Handle a request line; `main` replaces this method by one that writes a log."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnected, as it should."""


@contextmanager
def metadata_service(pages: dict[str, bytes]) -> Iterator[MetadataService]:
    service = MetadataService(("127.0.0.1", 0), pages)
    thread = threading.Thread(target=service.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield service
    finally:
        service.finished.set()
        service.shutdown()
        thread.join()
        service.server_close()


def ec2(instance_id: str, user_data: bytes | None) -> dict[str, bytes]:
    return _pages("/latest/meta-data/instance-id", instance_id, "/latest/user-data", user_data)


def cloudstack(instance_id: str, user_data: bytes | None) -> dict[str, bytes]:
    return _pages("/latest/instance-id", instance_id, "/latest/user-data", user_data)


def openstack(instance_id: str, user_data: bytes | None) -> dict[str, bytes]:
    text = json.dumps({"uuid": instance_id, "name": "web01", "meta": {"kernel": "evil"}})
    path = "/openstack/latest/meta_data.json"
    return _pages(path, text, "/openstack/latest/user_data", user_data)


def _pages(path: str, instance_id: str, other: str, user_data: bytes | None) -> dict[str, bytes]:
    return {path: instance_id.encode()} | ({} if user_data is None else {other: user_data})


def main(address: str, port: str, pages: str, requests: str) -> None:
    bodies = {path: body.encode() for path, body in json.loads(Path(pages).read_text()).items()}
    service = MetadataService((address, int(port)), bodies)
    with Path(requests).open("a", buffering=1) as log:
        service.noted = lambda request: print(request, file=log)  # type: ignore[method-assign]
        print("listening", file=log)
        service.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
