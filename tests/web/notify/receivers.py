"""Real receivers of messages: an HTTP server that can fail on purpose, and Alertmanager."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.request import urlopen

from tests.rigs.servers import Server, free_port
from tests.rigs.waiting import PATIENCE

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@dataclass(frozen=True, kw_only=True)
class Received:
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    """An HTTP server on loopback; `answer` says how it answers a request, always with `body`."""

    answer: Callable[[Received], tuple[int, Mapping[str, str]]] = lambda _: (204, {})
    received: list[Received] = field(default_factory=list)
    body: bytes = b""

    def __enter__(self) -> Self:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                if len(body) < int(self.headers["Content-Length"] or 0):
                    return  # the client died
                headers = {key.lower(): value for key, value in self.headers.items()}
                one = Received(path=self.path, headers=headers, body=body)
                receiver.received.append(one)
                status, more = receiver.answer(one)
                self.send_response(status)
                for key, value in more.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(receiver.body)))
                self.end_headers()
                self.wfile.write(receiver.body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


class Alertmanager(Server):
    """Debian's Alertmanager, without a cluster; it reads its templates in /usr/share."""

    health_path = "/-/ready"

    def __init__(self, directory: Path, clients: Path) -> None:
        super().__init__(directory, 0)
        self.package = clients / "alertmanager"
        self.health = self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        config = self.directory / "alertmanager.yml"
        config.write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
        return [
            *("unshare", "--mount", "sh", "-c", 'mount --bind "$0/share" /usr/share && exec "$@"'),
            *(str(self.package), str(self.package / "bin/prometheus-alertmanager")),
            f"--config.file={config}",
            f"--storage.path={self.directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--cluster.listen-address=",
        ]

    def healthy(self, status: int, body: bytes) -> bool:
        return status == 200 and bool(body)

    def alerts(self) -> list[dict[str, Any]]:
        with urlopen(f"{self.url}/api/v2/alerts", timeout=PATIENCE) as answer:  # noqa: S310 - on loopback
            alerts: list[dict[str, Any]] = json.load(answer)
        return alerts


def secret_file(directory: Path, name: str, text: str) -> Path:
    """Write a private file."""
    path = directory / name
    path.write_text(text)
    path.chmod(0o600)
    return path
