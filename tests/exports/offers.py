"""Resources, as tests of exports make them."""

from typing import Any

from localpuppet.exports.resource import ExportedResource, Offer


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
