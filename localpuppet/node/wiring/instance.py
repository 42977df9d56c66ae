"""Builds the source of instance data from the settings."""

import os
import pwd
from functools import partial
from typing import TYPE_CHECKING

from localpuppet.node.enc.instance.source import InstanceSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from localpuppet.node.enc.instance.data import InstanceData, Service
    from localpuppet.node.settings.node import Settings


def instance_source(settings: "Settings", boot_id: "Callable[[], str]") -> InstanceSource:
    """Return the source of this node's instance data.

    cloud-init's user data belongs to root; other users read it only if the site sets its
    directories.
    """
    instance = settings.instance
    looks = instance.asked_for or os.geteuid() == 0
    return InstanceSource(
        files=instance.files if looks else None,
        service=instance.service,
        ask=partial(_ask, settings),
        memory=settings.state / "instance" / "answer.json",
        boot_id=boot_id,
    )


def _ask(settings: "Settings", service: "Service") -> "InstanceData":
    from localpuppet.node.enc.instance.services import (
        MetadataClient,
        ask_service,
        newest_lease,
        server_of,
    )

    lease = partial(newest_lease, settings.instance.leases, owners=_network_users())
    return ask_service(service, MetadataClient(server_of(service, lease)))


def _network_users() -> list[int]:
    """Return the user of systemd-networkd, who writes its leases; none without one."""
    try:
        return [pwd.getpwnam("systemd-network").pw_uid]
    except KeyError:
        return []
