"""An https server at a public address in a separate network: git's smart protocol, and redirects.

/NAME.git         the repository NAME in the directory
/moved/NAME.git   redirects there
/inner/NAME.git   redirects to this machine's own address
/private/NAME.git requires credentials
"""

import http.server
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.rigs.node import REPOSITORY
from tests.rigs.tls import Authority
from tests.rigs.waiting import wait_until

HOST = "public.example"
INNER = "inner.example"  # a name with a private address
ADDRESS, ADDRESS6 = "93.184.216.34", "2606:2800:220:1::1"
_KINDS = ("net", "net"), ("mount", "mnt")
_NETWORK = f"""
ip link set lo up
ip address add {ADDRESS}/32 dev lo
ip address add {ADDRESS6}/128 dev lo nodad
mount --bind "$0/hosts" /etc/hosts
touch "$0/network"
exec sleep 600
"""


@dataclass(frozen=True)
class PublicServer:
    """The server, and a job in its network."""

    directory: Path  # the directory of the repositories
    inside: list[str]  # words that start a program in its network
    env: dict[str, str]  # the environment of a job that trusts the server and has secrets

    def take_requests(self) -> list[str]:
        """Return address, path and credentials of each request, and of each ssh, once."""
        log = self.directory / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines


@contextmanager
def public_server(directory: Path) -> Iterator[PublicServer]:
    """Start the server and its network, as root."""
    identity = Authority(directory).node(HOST)
    hosts = f"{ADDRESS} {HOST}\n{ADDRESS6} {HOST}\n127.0.0.1 {INNER}\n"
    (directory / "hosts").write_text(hosts)
    with _process("unshare", "--net", "--mount", "/bin/sh", "-ec", _NETWORK, str(directory)) as pid:
        _wait(directory / "network")
        inside = ["nsenter", *(f"--{kind}=/proc/{pid}/ns/{name}" for kind, name in _KINDS)]
        files = map(str, (directory, identity.certificate, identity.key))
        with _process(*inside, sys.executable, "-m", __name__, *files):
            _wait(directory / "ready")
            yield PublicServer(directory, inside, _job(directory))


@contextmanager
def _process(*words: str) -> Iterator[int]:
    process = subprocess.Popen(words, cwd=REPOSITORY)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _wait(file: Path) -> None:
    wait_until(file.exists, lambda: f"{file} was not made")


def _job(directory: Path) -> dict[str, str]:
    """Write what a job has; return its environment."""
    programs, home = directory / "bin", directory / "home"
    ca = directory / "ca.pem"
    scripts = {
        "git": f'GIT_SSL_CAINFO={ca} exec /usr/bin/git "$@"',
        "ssh": f"echo ssh >> {directory}/log; exit 1",
    }
    for place in (programs, home):
        place.mkdir()
    for name, line in scripts.items():
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    (home / ".netrc").write_text(f"machine {HOST} login job password s3cret\n")
    return {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SSL_CERT_FILE": str(ca),
        "HOME": str(home),
        "SSH_AUTH_SOCK": str(directory / "agent"),
        "https_proxy": "http://job:s3cret@127.0.0.1:9",
    }


class _Handler(http.server.BaseHTTPRequestHandler):
    directory: Path

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        with (self.directory / "log").open("a") as log:
            sent = self.headers.get("Authorization", "")
            log.write(f"{self.connection.getsockname()[0]} {self.path} {sent}\n")
        for name, place in (("moved", ""), ("inner", "https://127.0.0.1")):
            if self.path.startswith(f"/{name}/"):
                self.send_response(301)
                self.send_header("Location", place + self.path.removeprefix(f"/{name}"))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
        if self.path.startswith("/private/"):
            self.send_response(401)
            for scheme in ("Negotiate", 'Basic realm="git"'):
                self.send_header("WWW-Authenticate", scheme)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self._backend()

    def _backend(self) -> None:
        path, _, query = self.path.partition("?")
        done = subprocess.run(
            ["/usr/lib/git-core/git-http-backend"],
            env={
                "GIT_PROJECT_ROOT": str(self.directory),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": self.headers.get("Content-Length", ""),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                "GIT_CONFIG_COUNT": "1",
                "GIT_CONFIG_KEY_0": "safe.directory",
                "GIT_CONFIG_VALUE_0": "*",
            },
            input=self.rfile.read(int(self.headers.get("Content-Length", 0))),
            capture_output=True,
            check=False,
        )
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        lines = [line.partition(": ") for line in head.decode().split("\r\n")]
        fields = {name: value for name, _, value in lines}
        self.send_response(int(fields.pop("Status", "200").partition(" ")[0]))
        for name, value in {**fields, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6  # and IPv4 by it


def main(directory: str, certificate: str, key: str) -> None:
    """Serve until this process is killed."""
    handler = type("Handler", (_Handler,), {"directory": Path(directory)})
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = _Server(("::", 443), handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    (Path(directory) / "ready").touch()
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
