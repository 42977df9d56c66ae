"""Builds the access to the dashboard: a link on loopback, certificates over TLS elsewhere."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.wiring.fleet import FleetWiring
from localpuppet.fleet.wiring.settings import peers
from localpuppet.node.settings.node import FILE
from localpuppet.web.access.certificates import PeopleDoor
from localpuppet.web.access.loopback import ENTER, LoopbackDoor
from localpuppet.web.access.sessions import Sessions, host_name, kept_host_name
from localpuppet.web.settings import web_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from localpuppet.base.formats.names import SignerName
    from localpuppet.base.machine.ports import Log
    from localpuppet.web.access.listening import ListenAddress
    from localpuppet.web.access.rules import AccessRule
    from localpuppet.web.access.tls import Tls


# The file of the host name on loopback, in the state directory.
NAME_FILE = "web/host-name"


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardAccess:
    """The access to a dashboard.

    Attributes:
        door: The access rules.
        entrance: The same rules with a link; `None` over TLS.
        tls: The TLS settings; `None` on loopback.
    """

    door: "AccessRule"
    entrance: LoopbackDoor | None = None
    tls: "Tls | None" = None

    def link(self) -> str:
        """Return a one-time link; empty over TLS."""
        if self.entrance is None:
            return ""
        return f"{self.entrance.url[:-1]}{ENTER}?key={self.entrance.sessions.link()}"


def way_in(
    fleet: FleetWiring, log: "Log", place: "ListenAddress", *, actions: bool
) -> "Callable[[int], DashboardAccess]":
    """Return a function that builds the access for a port.

    Args:
        fleet: The parts of a node of a fleet.
        log: The log.
        place: Address and port of the dashboard.
        actions: Whether actions are enabled.

    Raises:
        InvalidInputError: The address is unsuitable, or a setting is missing.
    """
    clock, file = fleet.node.clock, fleet.node.settings.state / NAME_FILE
    if not place.is_loopback:
        return _for_people(fleet, log, actions=actions)

    def on_loopback(port: int) -> DashboardAccess:
        name = ""
        if place.is_localhost:
            # While no dashboard runs, another user can serve pages at a kept name (ADR 41). Their
            # scripts could read with the next session, but must not act with it.
            name = host_name() if actions else kept_host_name(file)
        sessions = Sessions(clock.monotonic)
        door = LoopbackDoor(
            place.address,
            port,
            sessions,
            clock.monotonic,
            acts=actions,
            name=name,
        )
        return DashboardAccess(door=door, entrance=door)

    return on_loopback


def _for_people(
    fleet: FleetWiring, log: "Log", *, actions: bool
) -> "Callable[[int], DashboardAccess]":
    from localpuppet.base.machine.anchors import server_tls_context
    from localpuppet.base.machine.reloaded_files import ReloadedFiles
    from localpuppet.fleet.trust.authority import read_certificate, server_names
    from localpuppet.web.access.connections import ConnectionTable
    from localpuppet.web.access.tls import Tls

    if actions:
        raise InvalidInputError(
            "--actions works on loopback only", where="--listen", hint="omit --actions or --listen"
        )
    node = fleet.node
    file = node.settings.root / FILE
    ca, certificate, key = _files(fleet)
    names = server_names(read_certificate(certificate))
    if not names:
        raise InvalidInputError(
            "has no host name for browsers (subjectAltName)",
            where=str(certificate),
            hint="set web.certificate and web.key to another certificate",
        )

    def people() -> "frozenset[SignerName]":
        return node.again().section(web_settings).people

    renewed = ReloadedFiles([file], people)
    context = ReloadedFiles(
        [ca, certificate, key], lambda: server_tls_context(ca, certificate, key)
    )
    context()  # report errors of the files at once
    verifier = fleet.verifier

    def from_elsewhere(port: int) -> DashboardAccess:
        door = PeopleDoor(
            names, port, people=renewed, holder=verifier.holder, monotonic=node.clock.monotonic
        )
        return DashboardAccess(
            door=door, tls=Tls(context=context, crowd=ConnectionTable(), log=log)
        )

    return from_elsewhere


def _files(fleet: FleetWiring) -> "tuple[Path, Path, Path]":
    """Return the CA, the dashboard's certificate and its key.

    Raises:
        InvalidInputError: A setting is missing, or the list of people is empty.
    """
    node = fleet.node
    file = node.settings.root / FILE
    web, identity = node.section(web_settings), peers(node).identity
    if not web.people:
        raise InvalidInputError(
            "lists no person",
            where=f"{file}: web.people",
            hint="--listen 127.0.0.1:8141 needs no certificates; from another machine, use"
            " ssh -L 8141:127.0.0.1:8141 HOST",
        )
    if identity.ca is None:
        raise InvalidInputError(
            "must name the CA of the people's certificates", where=f"{file}: identity.ca"
        )
    certificate, key = web.certificate, web.key
    if certificate is None or key is None:
        certificate, key = identity.certificate, identity.key
    if certificate is None:
        raise InvalidInputError(
            "names no certificate for the dashboard",
            where=f"{file}: web",
            hint="set web.certificate and web.key, or identity.certificate and identity.key",
        )
    return identity.ca, certificate, key
