"""Resources, as tests of exports make them."""

from base64 import b64encode
from hashlib import shake_256
from typing import Any

from localpuppet.fleet.exports.resource import ExportedResource, Offer


def resource(kind: str, title: str, *tags: str, **parameters: Any) -> ExportedResource:
    """Return an exported resource, as a catalog of a module `app` has it."""
    return ExportedResource(
        type=kind,
        title=title,
        tags=tuple(sorted({"app", *tags})),
        file="/etc/puppet/modules/app/init.pp",
        line=3,
        parameters=parameters,
    )


def offer(node: str, kind: str, title: str, *tags: str, **parameters: Any) -> Offer:
    """Return the same, as a node offers it."""
    return Offer(node=f"{node}.example.com", resource=resource(kind, title, *tags, **parameters))


def random_text(size: int, seed: int = 0) -> str:
    """Return text, the same each time, that does not pack into fewer than `size` bytes."""
    return b64encode(shake_256(b"%d" % seed).digest(size)).decode()
