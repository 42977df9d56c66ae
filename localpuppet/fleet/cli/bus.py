"""`localpuppet bus`: commands for the server of the bus."""

from pathlib import Path

import click

from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import CommandGroup, command, path_type


@click.group(
    cls=CommandGroup,
    sections={"Commands": {"permissions": "fleet.cli.bus"}},
)
def bus_command() -> None:
    """Prepare the NATS or etcd server that carries the bus.

    Examples:
      localpuppet bus permissions nats roster.yaml > /etc/nats/accounts.conf
    """


HEAD = "# Made by 'localpuppet bus permissions {engine} {file}': change that file, not this one.\n"
HOW = """\
# Run it as often as you like. etcdctl's own variables say how to reach the cluster as etcd's
# user root: ETCDCTL_ENDPOINTS, ETCDCTL_CACERT, ETCDCTL_CERT, ETCDCTL_KEY.
"""


@command("permissions")
@click.argument("engine", type=click.Choice(["nats", "etcd"]), metavar="ENGINE")
@click.argument("roster", type=path_type())
@click.pass_obj
def permissions_command(node: NodeApp, engine: str, roster: Path) -> None:
    """Print the permissions of a roster for NATS or etcd.

    ENGINE is nats or etcd. The output is a part of the NATS server's configuration, or a script for
    etcdctl. It allows each node, by the name in its client certificate, to write its own presence,
    to read its own triggers and requests, and to do what ROSTER allows.

    ROSTER lists the nodes that each node or person may trigger (triggers) and send requests to
    (asks), and the leases that it may take (leases).

    ROSTER is YAML:
      admins: [bus-admin]
      nodes:
        web01.example.com: {triggers: [lb01.example.com], leases: [db-migrate]}
        lb01.example.com: {}
      people:
        alice: {triggers: ['*'], asks: ['*']}

    Examples:
      localpuppet bus permissions nats roster.yaml > /etc/nats/accounts.conf
      localpuppet bus permissions etcd roster.yaml | sh
    """
    from localpuppet.base.machine.files import read_user_file
    from localpuppet.fleet.bus import permissions
    from localpuppet.fleet.bus.permissions import Roster

    where = str(roster)
    raw = node.documents.parse(read_user_file(roster), schema="roster", where=where)
    known = Roster.from_dict(raw, where=where)
    head = HEAD.format(engine=engine, file=render.user_text(roster.name))
    if engine == "nats":
        accounts = permissions.accounts(known.members(), known.admins, stream=known.stream)
        render.emit(head + accounts.rstrip("\n"))
    else:
        script = permissions.script(known.members())
        render.emit("#!/bin/sh\n" + head + HOW + script.rstrip("\n"))
