"""Real etcd and NATS servers on free ports of 127.0.0.1, for tests that start, kill and stop them.

A server keeps its port and its data over `kill` and `start`. It dies with the process that started
it, whatever happens to that process.
"""

import http.client
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.rigs.node import completed
from tests.rigs.waiting import PATIENCE

ETCD = Path("/usr/bin/etcd")
ETCDCTL = Path("/usr/bin/etcdctl")
OLD_NATS = Path("/usr/sbin/nats-server")
NEW_NATS = Path(sysconfig.get_path("scripts")) / "nats-server"
# etcdctl itself gives a server two and five seconds.
CTL_ENVIRONMENT = {
    "ETCDCTL_API": "3",
    "ETCDCTL_DIAL_TIMEOUT": f"{PATIENCE:.0f}s",
    "ETCDCTL_COMMAND_TIMEOUT": f"{PATIENCE:.0f}s",
}
_WORKERS = "PYTEST_XDIST_WORKER_COUNT"
_given: deque[int] = deque(maxlen=500)


def free_port() -> int:
    """Return a free port of 127.0.0.1 that the kernel gives to no client.

    If a client retries while its server is down, the kernel may give the client the server's port:
    the client then talks to itself, and the server finds its port taken. A server may start long
    after its port was chosen: no other test process gets the same, nor this one soon.
    """
    worker, workers = os.environ.get("PYTEST_XDIST_WORKER", "gw0"), os.environ.get(_WORKERS, "1")
    while True:
        port = 10_000 + secrets.randbelow(22_768)  # below Linux's ip_local_port_range
        if port in _given or port % int(workers) != int(worker[2:]) % int(workers):
            continue
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            _given.append(port)
            return port


def version_of(program: Path) -> str:
    """Return the version that a server's program prints: `3.5.16`."""
    versions: list[str] = re.findall(r"\d+\.\d+\.\d+\S*", completed(program, "--version").out)
    return versions[0]


@dataclass(frozen=True, kw_only=True)
class Tls:
    """Files of a server's TLS; clients must show a certificate of `ca`."""

    ca: Path
    certificate: Path
    key: Path


class Server:
    """A process that is started, killed and stopped by its id; clients find it at `host`."""

    def __init__(self, directory: Path, health: int) -> None:
        self.directory = directory
        self.health = health
        self.host = "127.0.0.1"
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def healthy(self, status: int, body: bytes) -> bool:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, *, wait: bool = True) -> None:
        """Start it; return when it answers."""
        assert self.process is None
        # The kernel ends a child with the thread that started it, not with the process.
        assert threading.current_thread() is threading.main_thread()
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self.command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if wait:
            self.wait_healthy()

    def wait_healthy(self) -> None:
        """Return when it answers."""
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            assert self.process is not None
            assert self.process.poll() is None, (self.directory / "log").read_text()
            assert time.monotonic() < deadline, (self.directory / "log").read_text()
            time.sleep(0.02)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.health, timeout=5.0)
        try:
            connection.request("GET", self.health_path)
            answer = connection.getresponse()
            return self.healthy(answer.status, answer.read())
        except OSError:
            return False
        finally:
            connection.close()

    health_path = "/health"

    def kill(self) -> None:
        """End it as a crash would: kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in good order; one that is not running is fine."""
        if self.process is not None:
            self._end(signal.SIGTERM)

    def freeze(self) -> None:
        """Let it hang: it keeps its connections, and answers nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it continue."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.send_signal(signal.SIGCONT)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None


class EtcdServer(Server):
    """One member of an etcd cluster."""

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "etcd",
        tls: Tls | None = None,
        options: Sequence[str] = (),
    ) -> None:
        super().__init__(directory, free_port())
        self.name = name
        self.tls = tls
        self.options = list(options)
        self.peer = f"http://127.0.0.1:{free_port()}"
        self.cluster = [self]

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"

    def command(self) -> Sequence[str]:
        tls = []
        if self.tls is not None:
            tls = [
                f"--trusted-ca-file={self.tls.ca}",
                f"--cert-file={self.tls.certificate}",
                f"--key-file={self.tls.key}",
                "--client-cert-auth",
            ]
        return [
            str(ETCD),
            f"--name={self.name}",
            f"--data-dir={self.directory / 'data'}",
            f"--listen-client-urls={self.url}",
            f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={self.peer}",
            f"--initial-advertise-peer-urls={self.peer}",
            f"--initial-cluster={','.join(f'{peer.name}={peer.peer}' for peer in self.cluster)}",
            f"--listen-metrics-urls=http://127.0.0.1:{self.health}",
            *tls,
            *self.options,
        ]

    def healthy(self, status: int, body: bytes) -> bool:
        return status == 200 and json.loads(body).get("health") == "true"

    def ctl(self, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
        """Run etcdctl against it; return what it printed."""
        env = {**CTL_ENVIRONMENT, "PATH": "/usr/bin:/bin", **(environment or {})}
        return completed(ETCDCTL, f"--endpoints={self.url}", *arguments, env=env).out

    def compact(self) -> None:
        """Forget all history but the newest revision."""
        (status,) = json.loads(self.ctl("endpoint", "status", "--write-out=json"))
        self.ctl("compact", str(status["Status"]["header"]["revision"]))


def etcd_cluster(directory: Path, size: int) -> list[EtcdServer]:
    """Return the members of a cluster, not started: start all of them, then wait for each."""
    members = [EtcdServer(directory / f"etcd{i}", name=f"etcd{i}") for i in range(size)]
    for member in members:
        member.cluster = members
    return members


@dataclass(kw_only=True)
class NatsConfig:
    """The configuration of a NATS server besides ports and directories."""

    tls: Tls | None = None
    text: str = ""
    verify_and_map: bool = False
    max_payload: str = "1MB"
    extra: list[str] = field(default_factory=list)


class NatsServer(Server):
    """A NATS server with JetStream."""

    health_path = "/healthz"

    def __init__(
        self, directory: Path, *, program: Path = NEW_NATS, config: NatsConfig | None = None
    ) -> None:
        super().__init__(directory, free_port())
        self.program = program
        self.config = config or NatsConfig()
        self.route = free_port()
        self.cluster = [self]

    @property
    def url(self) -> str:
        return f"{'tls' if self.config.tls else 'nats'}://{self.host}:{self.port}"

    def command(self) -> Sequence[str]:
        lines = [
            f"listen: {self.host}:{self.port}",
            f"http: 127.0.0.1:{self.health}",
            f"max_payload: {self.config.max_payload}",
            f'jetstream: {{ store_dir: "{self.directory / "data"}" }}',
        ]
        tls = self.config.tls
        if tls is not None:
            check = "verify_and_map" if self.config.verify_and_map else "verify"
            lines.append(
                f'tls: {{ cert_file: "{tls.certificate}", key_file: "{tls.key}",'
                f' ca_file: "{tls.ca}", {check}: true }}'
            )
        if len(self.cluster) > 1:
            routes = ", ".join(f'"nats://127.0.0.1:{member.route}"' for member in self.cluster)
            lines.append(
                f"server_name: {self.directory.name}\n"
                f"cluster: {{ name: test, listen: 127.0.0.1:{self.route}, routes: [{routes}] }}"
            )
        path = self.directory / "nats.conf"
        path.write_text("\n".join([*lines, self.config.text, ""]))
        return [str(self.program), "--config", str(path), *self.config.extra]

    def healthy(self, status: int, body: bytes) -> bool:
        return status == 200


def nats_cluster(directory: Path, size: int, program: Path) -> list[NatsServer]:
    """Return the servers of a cluster, not started: start all of them, then wait for each."""
    servers = [NatsServer(directory / f"nats{i}", program=program) for i in range(size)]
    for server in servers:
        server.cluster = servers
    return servers
