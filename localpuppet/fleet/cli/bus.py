"""`localpuppet bus`: commands for the server of the bus."""

import click

from localpuppet.node.cli.lazy_group import CommandGroup


@click.group(
    cls=CommandGroup,
    sections={"Commands": {"permissions": "fleet.cli.permissions"}},
)
def bus_command() -> None:
    """Prepare the NATS or etcd server that carries the bus.

    Examples:
      localpuppet bus permissions nats roster.yaml > /etc/nats/accounts.conf
    """
