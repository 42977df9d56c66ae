"""How tests name the servers of a bus, and their identity there."""

from typing import Any

from localpuppet.fleet.bus.servers import Endpoint, Servers


def servers_at(*urls: str, **options: Any) -> Servers:
    """Return servers by their URLs, with further settings."""
    parsed = tuple(
        Endpoint.parse(url, engine="etcd" if url.startswith("http") else "nats") for url in urls
    )
    return Servers(endpoints=parsed, **options)
