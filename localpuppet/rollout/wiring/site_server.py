"""Build the client for Puppet servers that sites are read from."""

import secrets
from collections.abc import Sequence
from pathlib import Path

from localpuppet.fleet.wiring.fleet import peers
from localpuppet.node.enc.https import Https
from localpuppet.node.enc.input import Fetch
from localpuppet.node.wiring.node import NodeWiring
from localpuppet.rollout.plans.service import Record, ServiceFetch


def site_server(
    node: NodeWiring,
    *,
    ca: Path | None,
    certificate: Path | None,
    key: Path | None,
    default: str = "",
) -> Fetch:
    """Return a client for Puppet servers, with the node's own certificate by default.

    Args:
        node: The parts of the node.
        ca: The trusted authorities; `None` for those of the node's identity, `https_ca`, or the
            system's.
        certificate: A client certificate; requires `key`.
        key: Its key.
        default: The server, `HOST:PORT`, for a service without SRV records.
    """
    own = peers(node).identity
    shown = (certificate, key) if certificate is not None else (own.certificate, own.key)
    return ServiceFetch(
        lambda seconds: Https(
            ca=ca or own.ca or node.settings.https_ca,
            timeout=seconds,
            certificate=None if shown[0] is None or shown[1] is None else (shown[0], shown[1]),
        ),
        look_up=_look_up,
        timeout=node.settings.https_timeout,
        now=node.clock.monotonic,
        draw=secrets.randbelow,
        default=default,
    )


def _look_up(name: str) -> Sequence[Record]:
    """Return SRV records; dnspython (100 ms or more) is imported when first needed."""
    from localpuppet.rollout.plans.srv_records import look_up

    return look_up(name)
