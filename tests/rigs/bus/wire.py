"""The servers exactly as docs/examples has them: only paths, ports and names are the test's own.

Certificates come from a CA of the test's. `Wire` is one server with its permissions, and the ways
to reach it with the identity of a member: through localpuppet's store, and below it.
"""

import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from localpuppet.base.errors import UnavailableError
from localpuppet.fleet.bus.etcd_bus import open_etcd
from localpuppet.fleet.bus.jetstream_messages import inbox_of
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.nats_bus import open_nats
from localpuppet.fleet.bus.permissions import API
from localpuppet.fleet.bus.servers import Servers
from tests.doubles.certificates import DAY, Ca, pem, write
from tests.rigs.node import COMMAND, REPOSITORY, Done, completed
from tests.rigs.reaching import servers_at
from tests.rigs.servers import (
    CTL_ENVIRONMENT,
    ETCDCTL,
    NEW_NATS,
    EtcdServer,
    NatsServer,
    Server,
    Tls,
    free_port,
)
from tests.rigs.tls import Identity
from tests.rigs.waiting import PATIENCE

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
ROSTER = EXAMPLES / "roster.yaml"
# For connections that a server or a client refuses: NATS's client tries again until then.
REFUSAL = 5.0
WEB01, WEB02, LB01 = "web01.example.com", "web02.example.com", "lb01.example.com"
ALICE = "alice"


def permissions(engine: str, roster: Path = ROSTER) -> str:
    """Return what the verb prints."""
    return completed(*COMMAND, "bus", "permissions", engine, roster, cwd=REPOSITORY).out


def rendered(name: str, changes: Mapping[str, str]) -> str:
    """Return an example with a machine's own paths and ports; each must be in it."""
    text = (EXAMPLES / name).read_text()
    for documented, own in changes.items():
        assert documented in text, f"{name} does not have {documented} any more"
        text = text.replace(documented, own)
    return text


class Site:
    """The CA of a site as Puppet Server makes one, valid now: certificates with a CN alone."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._now = datetime.now(UTC)
        since, until = self._now - DAY, self._now + DAY
        root = Ca("Puppet Root CA: 1", since=since, until=until)
        self._ca = Ca("Puppet CA: ca.example.com", root, since=since, until=until)
        self.path = write(directory / "ca.pem", self._ca.text, root.text)

    def issue(self, name: str, *dns: str) -> Identity:
        """Return the files of a certificate; with `dns` it has these names, too."""
        issued = self._ca.issue(name, since=self._now - DAY, until=self._now + DAY, dns=dns)
        file = "-".join([name, *dns])
        return Identity(
            write(self._directory / f"{file}.pem", issued.text),
            write(self._directory / f"{file}.key", pem(issued.key), mode=0o600),
        )

    def server(self, *dns: str) -> Tls:
        """Return the files of a server."""
        identity = self.issue("server", *dns)
        return Tls(ca=self.path, certificate=identity.certificate, key=identity.key)


async def check_refusal(
    connect: Callable[[float], Awaitable[KeyValue]], reason: str, *, seconds: float = REFUSAL
) -> None:
    """Check that a client gets no connection, and names the reason.

    On a busy machine, the last attempt of a client may end for lack of time: then it has more.
    """
    message = ""
    for times in (1, 4, 16):
        try:
            await connect(times * seconds)
        except UnavailableError as error:
            message = str(error)
            if re.search(reason, message):
                return
        else:
            raise AssertionError(f"connected, but expected: {reason}")
    raise AssertionError(message)


class Wire:
    """A server, set up as documented."""

    engine = ""
    server: Server
    # The name in the certificate that may do everything.
    admin = ""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # The names in it are short on purpose: 127.0.0.1 is a wrong name for this server.
        self.authority = Site(directory)
        self.tls = self.authority.server("localhost")
        self._identities: dict[str, Identity] = {}

    def identity(self, name: str) -> Identity:
        """Return a member's certificate, as a Puppet CA would issue it: the name is its CN."""
        if name not in self._identities:
            self._identities[name] = self.authority.issue(name)
        return self._identities[name]

    @property
    def url(self) -> str:
        raise NotImplementedError

    async def connect(
        self,
        name: str | None,
        *,
        url: str = "",
        ca: Path | None = None,
        identity: Identity | None = None,
        timeout: float = PATIENCE,
    ) -> KeyValue:
        """Return the store as a client reaches it; without a certificate for `None`."""
        own = identity or (self.identity(name) if name else None)
        servers = servers_at(
            url or self.url,
            ca=ca or self.authority.path,
            certificate=own.certificate if own else None,
            key=own.key if own else None,
            api=self.api(name),
        )
        return await self.open(name or "anonymous", servers, timeout)

    def api(self, name: str | None) -> str:
        """Return the prefix of JetStream's API for a client."""
        _ = name
        return API

    async def open(self, name: str, servers: Servers, timeout: float) -> KeyValue:
        raise NotImplementedError

    def settings(self, name: str) -> dict[str, object]:
        """Return `buses.ENGINE` of a member's localpuppet.yaml."""
        own = self.identity(name)
        return {
            "servers": [self.url],
            "ca": str(self.authority.path),
            "certificate": str(own.certificate),
            "key": str(own.key),
        }

    def start(self) -> None:
        """Start the server, with permissions."""
        self.server.start()


class _ExampleNats(NatsServer):
    def __init__(self, directory: Path, program: Path, tls: Tls, accounts: str) -> None:
        super().__init__(directory, program=program)
        self.accounts = accounts
        self.example = {
            "0.0.0.0:4222": f"127.0.0.1:{self.port}",
            "127.0.0.1:8222": f"127.0.0.1:{self.health}",
            "/var/lib/nats/jetstream": str(directory / "data"),
            "/etc/nats/tls/server.pem": str(tls.certificate),
            "/etc/nats/tls/server.key": str(tls.key),
            "/etc/nats/tls/ca.pem": str(tls.ca),
        }

    def command(self) -> Sequence[str]:
        path = self.directory / "nats.conf"
        path.write_text(rendered("nats-server.conf", self.example))
        (self.directory / "accounts.conf").write_text(self.accounts)
        return [str(self.program), "--config", str(path)]


class NatsWire(Wire):
    """NATS."""

    engine = "nats"
    admin = "bus-admin"

    def __init__(self, directory: Path, program: Path = NEW_NATS) -> None:
        super().__init__(directory)
        self.server: _ExampleNats = _ExampleNats(
            directory / "nats", program, self.tls, permissions("nats")
        )

    @property
    def url(self) -> str:
        return f"tls://localhost:{self.server.port}"

    def api(self, name: str | None) -> str:
        return "$JS.API" if name == self.admin else API

    async def open(self, name: str, servers: Servers, timeout: float) -> KeyValue:
        return await open_nats(servers, timeout=timeout, inbox=inbox_of(name))

    def settings(self, name: str) -> dict[str, object]:
        return {**super().settings(name), "api": self.api(name)}


class _ExampleEtcd(EtcdServer):
    def __init__(self, directory: Path, tls: Tls, peers: Tls) -> None:
        super().__init__(directory, name="etcd1", tls=tls)
        self.peer_port = free_port()
        self.example = {
            "https://0.0.0.0:2379": f"https://127.0.0.1:{self.port}",
            "https://etcd1.example.com:2379": self.url,
            "https://0.0.0.0:2380": f"https://127.0.0.1:{self.peer_port}",
            "https://etcd1.example.com:2380": f"https://localhost:{self.peer_port}",
            "http://127.0.0.1:2381": f"http://127.0.0.1:{self.health}",
            "/var/lib/etcd/bus": str(directory / "data"),
            "/etc/etcd/tls/server.pem": str(tls.certificate),
            "/etc/etcd/tls/server.key": str(tls.key),
            "/etc/etcd/tls/ca.pem": str(tls.ca),
            "/etc/etcd/tls/peer.pem": str(peers.certificate),
            "/etc/etcd/tls/peer.key": str(peers.key),
            "/etc/etcd/tls/peer-ca.pem": str(peers.ca),
        }

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def command(self) -> Sequence[str]:
        path = self.directory / "etcd.yaml"
        path.write_text(rendered("etcd.conf.yaml", self.example))
        return ["/usr/bin/etcd", "--config-file", str(path)]


class EtcdWire(Wire):
    """etcd."""

    engine = "etcd"
    admin = "root"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        peers = Site(directory / "peers").server("localhost")
        self.server: _ExampleEtcd = _ExampleEtcd(directory / "etcd", self.tls, peers)

    @property
    def url(self) -> str:
        return self.server.url

    def start(self) -> None:
        super().start()
        self.permit()

    def permit(self, roster: Path = ROSTER) -> str:
        """Run what the verb prints, as the documentation tells; return its output."""
        text = permissions("etcd", roster)
        done = completed("sh", given=text, env=self.environment(self.admin))
        return done.out + done.err

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment that gives etcdctl a member's identity."""
        own = self.identity(name)
        return {
            **CTL_ENVIRONMENT,
            "PATH": os.environ["PATH"],
            "ETCDCTL_ENDPOINTS": self.url,
            "ETCDCTL_CACERT": str(self.authority.path),
            "ETCDCTL_CERT": str(own.certificate),
            "ETCDCTL_KEY": str(own.key),
        }

    def ctl(self, name: str, *arguments: str) -> Done:
        """Run etcdctl with the identity of a member."""
        return completed(ETCDCTL, *arguments, check=False, env=self.environment(name))

    async def open(self, name: str, servers: Servers, timeout: float) -> KeyValue:
        _ = name
        return await open_etcd(servers, timeout=timeout)
