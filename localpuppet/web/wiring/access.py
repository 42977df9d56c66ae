"""Builds the access to the dashboard and to the API.

The dashboard has a link on loopback, and the API a list of local users. Elsewhere both require
certificates over TLS.
"""

from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.value import Value
from localpuppet.fleet.app import FleetApp
from localpuppet.node.settings.node import FILE
from localpuppet.web.access.loopback import ENTER, LoopbackDoor
from localpuppet.web.access.rules import METHODS, QUERY_METHODS, LocalUserRule, PeopleDoor
from localpuppet.web.access.sessions import Sessions, host_name, kept_host_name
from localpuppet.web.access.socket_owner import socket_owner
from localpuppet.web.settings import WebSettings, web_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from localpuppet.base.formats.names import SignerName
    from localpuppet.base.machine.ports import Log
    from localpuppet.node.app import NodeApp
    from localpuppet.web.access.rules import AccessRule, Ends, Visitor
    from localpuppet.web.access.serving import ListenAddress
    from localpuppet.web.access.tls import Tls


# The file of the host name on loopback, in the state directory.
NAME_FILE = "web/host-name"


class CertificateList(Value):
    """A list of names in certificates that may connect over TLS.

    Attributes:
        setting: Its key in `localpuppet.yaml`.
        names: Returns the list in the settings.
        loopback: The option for an address on loopback, in messages.
        methods: The HTTP methods.
    """

    setting: str
    names: "Callable[[WebSettings], Collection[SignerName]]"
    loopback: str
    methods: "Collection[str]"


PEOPLE = CertificateList(
    setting="web.people",
    names=lambda web: web.people,
    loopback="--listen 127.0.0.1:8141",
    methods=METHODS,
)
API_NAMES = CertificateList(
    setting="web.puppetdb.names",
    names=lambda web: web.puppetdb.names,
    loopback="--puppetdb 127.0.0.1:8080",
    methods=QUERY_METHODS,
)


class ApiAccess(Value):
    """The access to the API.

    Attributes:
        rule: The access rule.
        client: Returns the name of a client that has access.
        admits: Returns whether the client of a connection has access; `None` over TLS.
        tls: The TLS settings; `None` on loopback.
    """

    rule: "AccessRule"
    client: "Callable[[Visitor], str]"
    admits: "Callable[[Ends], bool] | None" = None
    tls: "Tls | None" = None


class DashboardAccess(Value):
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
    fleet: FleetApp, log: "Log", place: "ListenAddress", *, actions: bool
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
        if actions:
            raise InvalidInputError(
                "--actions works on loopback only",
                where="--listen",
                hint="omit --actions or --listen",
            )
        secured = _over_tls(fleet, log, PEOPLE)

        def from_elsewhere(port: int) -> DashboardAccess:
            door, tls = secured(port)
            return DashboardAccess(door=door, tls=tls)

        return from_elsewhere

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


def api_way_in(fleet: FleetApp, log: "Log", place: "ListenAddress") -> "Callable[[int], ApiAccess]":
    """Return a function that builds the access to the API for a port.

    Args:
        fleet: The parts of a node of a fleet.
        log: The log.
        place: Address and port of the API.

    Raises:
        InvalidInputError: A setting is missing, or names an unknown user.
    """
    node = fleet.node
    if not place.is_loopback:
        secured = _over_tls(fleet, log, API_NAMES)

        def from_elsewhere(port: int) -> ApiAccess:
            door, tls = secured(port)
            return ApiAccess(rule=door, client=door.client, tls=tls)

        return from_elsewhere
    users = _local_users(node)
    users()  # report errors of the list at once

    def on_loopback(port: int) -> ApiAccess:
        rule = LocalUserRule(
            place.address, port, users=users, owner=socket_owner, monotonic=node.clock.monotonic
        )
        return ApiAccess(rule=rule, client=rule.client, admits=rule.admits)

    return on_loopback


def _local_users(node: "NodeApp") -> "Callable[[], Collection[int]]":
    """Return a function that returns the current readers on this machine."""
    import os
    import pwd

    from localpuppet.base.machine.reloaded_files import ReloadedFiles

    file = node.settings.root / FILE

    def users() -> "frozenset[int]":
        numbers = {0, os.geteuid()}
        for name in node.again().section(web_settings).puppetdb.users:
            try:
                numbers.add(pwd.getpwnam(name).pw_uid)
            except KeyError as error:
                raise InvalidInputError(
                    f"this machine has no user {name!r}",
                    where=f"{file}: web.puppetdb.users",
                    hint="create the user, or correct its name",
                ) from error
        return frozenset(numbers)

    return ReloadedFiles([file] if file.exists() else [], users)


def _over_tls(
    fleet: FleetApp, log: "Log", listed: CertificateList
) -> "Callable[[int], tuple[PeopleDoor, Tls]]":
    """Return a function that builds the access with certificates for a port.

    Raises:
        InvalidInputError: A setting is missing.
    """
    from localpuppet.base.machine.anchors import server_tls_context
    from localpuppet.base.machine.reloaded_files import ReloadedFiles
    from localpuppet.fleet.trust.authority import read_certificate, server_names
    from localpuppet.web.access.connections import ConnectionTable
    from localpuppet.web.access.tls import Tls

    node = fleet.node
    file = node.settings.root / FILE
    ca, certificate, key = _files(fleet, listed)
    names = server_names(read_certificate(certificate))
    if not names:
        raise InvalidInputError(
            "has no host name for browsers (subjectAltName)",
            where=str(certificate),
            hint="set web.certificate and web.key to another certificate",
        )

    def people() -> "frozenset[SignerName]":
        return frozenset(listed.names(node.again().section(web_settings)))

    renewed = ReloadedFiles([file], people)
    context = ReloadedFiles(
        [ca, certificate, key], lambda: server_tls_context(ca, certificate, key)
    )
    context()  # report errors of the files at once
    verifier = fleet.verifier

    def secured(port: int) -> "tuple[PeopleDoor, Tls]":
        door = PeopleDoor(
            names,
            port,
            people=renewed,
            holder=verifier.holder,
            monotonic=node.clock.monotonic,
            setting=listed.setting,
            methods=listed.methods,
        )
        return door, Tls(context=context, crowd=ConnectionTable(), log=log)

    return secured


def _files(fleet: FleetApp, listed: CertificateList) -> "tuple[Path, Path, Path]":
    """Return the CA, the dashboard's certificate and its key.

    Raises:
        InvalidInputError: A setting is missing, or the list of names is empty.
    """
    node = fleet.node
    file = node.settings.root / FILE
    web, identity = node.section(web_settings), FleetApp(node).peers.identity
    if not listed.names(web):
        port = listed.loopback.rpartition(":")[2]
        raise InvalidInputError(
            "lists no name",
            where=f"{file}: {listed.setting}",
            hint=f"{listed.loopback} needs no certificates; from another machine, use"
            f" ssh -L {port}:127.0.0.1:{port} HOST",
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
