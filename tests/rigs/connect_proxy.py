"""A proxy as sites have it: it supports CONNECT, and may require a password or be slow."""

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

CHUNK = 65536


@dataclass
class ConnectProxy:
    """A proxy's behaviour, and the requests that it received."""

    password: str = ""  # what it requires in `Proxy-Authorization`; empty for nothing
    slow: bool = False  # whether it answers one byte after another, without end
    # the first line and the headers of each request
    heard: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    # where it connects for each request; `None` for the place in the request
    elsewhere: tuple[str, int] | None = None
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def places(self) -> list[str]:
        """HOST:PORT of each request."""
        return [line.split()[1] for line, _ in self.heard]


class _Handler(socketserver.StreamRequestHandler):
    proxy: ConnectProxy

    def handle(self) -> None:
        line = self.rfile.readline().decode().strip()
        headers = {}
        while text := self.rfile.readline().decode().strip():
            name, _, value = text.partition(": ")
            headers[name] = value
        self.proxy.heard.append((line, headers))
        if self.proxy.slow:
            self._trickle()
            return
        if self.proxy.password and headers.get("Proxy-Authorization") != self.proxy.password:
            self.wfile.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            return
        host, _, port = line.split()[1].rpartition(":")
        with socket.create_connection(self.proxy.elsewhere or (host, int(port))) as there:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=_pump, args=(there, self.connection))
            back.start()
            _pump(self.connection, there)
            back.join()

    def _trickle(self) -> None:
        with suppress(OSError):
            self.wfile.write(b"HTTP/1.1 200 ")
            while not self.proxy.over.wait(0.02):
                self.wfile.write(b"x")


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(CHUNK):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextmanager
def serve_proxy(proxy: ConnectProxy) -> Iterator[str]:
    """Serve; yield the URL of the proxy."""
    handler = type("Handler", (_Handler,), {"proxy": proxy})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            proxy.over.set()
            server.shutdown()
            thread.join()
