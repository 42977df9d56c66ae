"""From settings to the bus: its engine, its connection, and this node's identity on it.

The identity is the name and key that sign, and the keys that are trusted.
"""

import os
import uuid
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from localpuppet.base.errors import InvalidInputError, first_error
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.files import read_user_file
from localpuppet.fleet.settings.peers import PeerSettings, peer_settings
from localpuppet.fleet.trust.keys import (
    OwnKey,
    TrustedKeys,
    parse_private,
    public_pem,
    read_private,
)
from localpuppet.node.app import NodeApp

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
    from cryptography.x509 import Certificate

    from localpuppet.base.machine.guarded_command import GuardedProcess
    from localpuppet.fleet.bus.key_value import KeyValue
    from localpuppet.fleet.requests.client import RequestClient
    from localpuppet.fleet.requests.handler import RequestAdmission
    from localpuppet.fleet.settings.fleet import FleetSettings
    from localpuppet.fleet.triggers.kicks import HeldKicks
    from localpuppet.fleet.triggers.sending import Outgoing, SendResult
    from localpuppet.fleet.trust.signing import MessageSigner, Verifier

_Result = TypeVar("_Result")
MAX_PASSWORD = 4096
MAX_MACHINE = 253  # characters


class Identity:
    """The identity of this node, or of the person who owns the root.

    Args:
        node: The parts of the node.
        known_name: The node's name, if it is known already: the network side cannot ask Puppet.
    """

    def __init__(self, node: NodeApp, *, known_name: NodeName | None = None) -> None:
        self._node = node
        self._known_name = known_name
        self._settings = peers(node).identity
        self.own_key = OwnKey(self._settings.key)
        self.trusted = TrustedKeys(peers(node).trusted)

    def name(self) -> SignerName:
        """Return the signer's name: from the settings, the certificate, or the node.

        Raises:
            InvalidInputError: The name is invalid.
            PuppetMissingError: The name must come from Puppet, which is not installed.
        """
        certificate = self.certificate()
        if certificate is None:
            if self._settings.name is not None:
                return self._settings.name
            return SignerName.parse(self._known_name or node_name(self._node))
        from localpuppet.fleet.trust.authority import certificate_name

        name = certificate_name(certificate)
        if self._settings.name not in (None, name):
            raise InvalidInputError(
                f"identity.name is {self._settings.name}, the certificate is {name}'s",
                where=str(self._settings.certificate),
                hint="remove identity.name",
            )
        return name

    def certificate(self) -> "Certificate | None":
        """Return the certificate of the signing key; `None` if other nodes have pinned the key."""
        path = self._settings.certificate
        if path is None:
            return None
        from localpuppet.fleet.trust.authority import read_certificate

        return read_certificate(path)

    def signer(self, *, make: bool = True) -> "MessageSigner":
        """Return the message signer.

        Args:
            make: Create a missing key: with the default settings and the bus on this machine, no
                other node has to know it.

        Raises:
            InvalidInputError: The key is refused, or does not match the certificate.
        """
        from localpuppet.fleet.trust.signing import MessageSigner

        certificate = self.certificate()
        if certificate is None:
            name = self.name()  # first: a refused name is the error to report
            return MessageSigner(name, self.own_key.ensure() if make else self.own_key.load())
        from localpuppet.fleet.trust.authority import der

        return MessageSigner(
            self.name(), self._certified_key(certificate), certificate=der(certificate)
        )

    def _certified_key(self, certificate: "Certificate") -> "PrivateKeyTypes":

        path = self._settings.key
        key = parse_private(read_private(path, of_puppet=True), where=str(path))
        public = certificate.public_key()
        if public_pem(key.public_key()) != public_pem(public):
            raise InvalidInputError(
                "is not the key of the certificate",
                where=str(path),
                hint=f"identity.certificate is {self._settings.certificate}",
            )
        return key

    def verifier(self, *, own: "tuple[SignerName, Ed25519PublicKey] | None" = None) -> "Verifier":
        """Return the signature verifier: pinned keys, the CA, and this node's own key.

        Args:
            own: This node's name and public key, if the process cannot read the private key (the
                network side of an agent).
        """
        from localpuppet.fleet.trust.authority import Authority
        from localpuppet.fleet.trust.signing import Verifier

        settings = self._settings
        if own is None and settings.certificate is None and os.access(self.own_key.path, os.R_OK):
            own = (self.name(), self.own_key.load().public_key())
        authority = None if settings.ca is None else Authority(settings.ca, settings.crl)
        return Verifier(self.trusted, authority, self._node.clock, own=own)

    def reception(self) -> "RequestAdmission":
        """Return the admission that checks requests to this node."""
        from localpuppet.fleet.requests.handler import RequestAdmission
        from localpuppet.fleet.trust.seen import SeenIds

        node = self._node
        return RequestAdmission(
            me=node_name(node),
            verifier=self.verifier(),
            policy=peers(node).policy,
            seen=SeenIds(node.settings.state / "seen.sqlite", node.clock),
            clock=node.clock,
        )

    def public_key(self) -> str | None:
        """Return this node's public key as PEM; `None` if a certificate replaces it."""
        if self._settings.certificate is not None:
            return None
        return public_pem(self.own_key.load().public_key()).decode("ascii")


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine to its end; of a group of errors, raise the first."""
    import asyncio  # 30 ms, also with ssl: a run that publishes nothing does not need it

    try:
        return asyncio.run(work)
    except BaseExceptionGroup as group:
        raise first_error(group) from group


def peers(node: NodeApp) -> PeerSettings:
    """Return how a node deals with other nodes."""
    return node.section(peer_settings)


def fleet_settings(node: NodeApp) -> "FleetSettings":
    """Return the settings of a node's bus and agent."""
    from localpuppet.fleet.settings.fleet import fleet_settings_of

    return node.section(fleet_settings_of)


def node_name(node: NodeApp) -> NodeName:
    """Return a node's name: from the settings, or Puppet's certname in lower case.

    Raises:
        InvalidInputError: The name is invalid.
        PuppetMissingError: No file sets the name, and Puppet is not installed.
    """
    if name := fleet_settings(node).node:
        return name

    return NodeName.parse(node.require_puppet().settings["certname"].lower())


class FleetWiring:
    """The parts of a fleet node: the bus, and the node's identity on it.

    Args:
        node: The parts of the node.
        name: The node's name, if it is known already.
    """

    def __init__(self, node: NodeApp, *, name: NodeName | None = None) -> None:
        self.node = node
        self._name = name
        self.identity = Identity(node, known_name=name)

    @cached_property
    def name(self) -> NodeName:
        """This node's name."""
        return self._name or node_name(self.node)

    @cached_property
    def signer(self) -> "MessageSigner":
        """Signs as this node, or as the person who owns the root."""
        return self.identity.signer()

    @cached_property
    def verifier(self) -> "Verifier":
        """Verifies signatures of trusted signers."""
        return self.identity.verifier()

    async def connect(self, engine: str | None = None) -> "KeyValue":
        """Return the store, connected.

        Args:
            engine: `sqlite`, `etcd`, `nats`; `None` means the site's engine.

        Raises:
            UnavailableError: The bus cannot be reached.
            InvalidInputError: The engine is not configured, or its library is not installed.
        """
        from localpuppet.fleet.settings.fleet import require_engine

        bus = fleet_settings(self.node).bus
        name = engine or bus.engine
        if name == "sqlite":
            from localpuppet.fleet.bus.sqlite.store import open_sqlite

            return await open_sqlite(bus.sqlite, timeout=bus.timeout)
        servers = bus.servers.get(name)
        if servers is None:
            raise InvalidInputError(
                f"the engine {name} is not configured on this node",
                where="localpuppet.yaml",
                hint=f"buses: {{{name}: {{servers: [...]}}}}",
            )
        require_engine(name)
        password = _password(servers.password_file)
        if name == "etcd":
            from localpuppet.fleet.bus.etcd.store import open_etcd

            return await open_etcd(servers, timeout=bus.timeout, password=password)
        from localpuppet.fleet.bus.nats.store import open_nats
        from localpuppet.fleet.bus.nats.stream_config import inbox_of

        inbox = inbox_of(self.identity.name())
        return await open_nats(servers, timeout=bus.timeout, password=password, inbox=inbox)

    @asynccontextmanager
    async def connected(self, engine: str | None = None) -> AsyncGenerator["KeyValue", None]:
        """Lend the store, connected; see `connect`."""
        kv = await self.connect(engine)
        try:
            yield kv
        finally:
            await kv.close()

    def requests(self, kv: "KeyValue") -> "RequestClient":
        """Return the client that sends requests to other nodes over a connected store."""
        from localpuppet.fleet.requests.client import RequestClient

        return RequestClient(kv, signer=self.signer, verifier=self.verifier, clock=self.node.clock)

    async def send(self, call: "Outgoing", kv: "KeyValue", *, run: str | None) -> "SendResult":
        """Send triggers in this node's name; see `triggers.sending.send`.

        Args:
            call: The recipients and the trigger.
            kv: The store, connected.
            run: The run that sends them; `None` outside of a run.
        """
        from localpuppet.fleet.triggers import sending

        return await sending.send(
            call,
            kv=kv,
            signer=self.signer,
            paths=paths_of_run(self.node, run),
            clock=self.node.clock,
            uuid=str(uuid.uuid4()),
        )


def open_held_kicks(node: NodeApp) -> "HeldKicks":
    """Return the kicks that wait until their run is over."""
    from localpuppet.fleet.triggers.kicks import HeldKicks

    return HeldKicks(node.settings.state, node.records, node.clock)


def paths_of_run(node: NodeApp, run: str | None) -> Iterable[tuple[NodeName, ...]]:
    """Return the paths along which a run may send triggers; see `paths_of`."""
    from localpuppet.fleet.triggers.sending import paths_of

    return paths_of(node.records, run)


def ask_agent(socket: Path, line: bytes, *, patience: float) -> "AsyncGenerator[bytes, None]":
    """Send a line to the agent on this machine, and yield its reply."""
    from localpuppet.base.machine.unix_socket import ask

    return ask(socket, line, patience=patience)


def guarded(command: Sequence[str], *, own_group: bool) -> "GuardedProcess":
    """Return a command that ends when this process dies or hangs; see `GuardedProcess`."""
    from localpuppet.base.machine.guarded_command import GuardedProcess

    return GuardedProcess(command, own_group=own_group)


def machine_name() -> str:
    """Return this machine's own name, on one line."""
    return one_line(os.uname().nodename)[:MAX_MACHINE] or "a machine without a name"


def _password(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        return read_user_file(file, limit=MAX_PASSWORD).decode("utf-8").rstrip("\n")
    except UnicodeDecodeError as error:
        raise InvalidInputError("the password is not UTF-8", where=str(file)) from error
