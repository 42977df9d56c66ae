"""Catalogs for tests."""

from collections.abc import Mapping
from typing import Any

from localpuppet.base.formats.names import NodeName, RunId
from localpuppet.base.formats.values import Json
from localpuppet.fleet.catalogs.keeping import CatalogHeader, NodeCatalog, pack_catalog
from localpuppet.fleet.inventory.chunks import digest_of
from localpuppet.fleet.inventory.entry import CatalogSummary, InventoryEntry
from localpuppet.node.puppet.catalog import CanonicalCatalog
from tests.fleet.inventory.entries import entry

RUN = RunId("20261120T140000.000000Z-abcd")


def made(node: NodeName, **files: Mapping[str, Json]) -> NodeCatalog:
    """Return a catalog with a file for each name, with these parameters."""
    resources: list[dict[str, Any]] = [
        {"type": "File", "title": f"/{name}", "tags": ["file"], "parameters": parameters}
        for name, parameters in files.items()
    ]
    resources += [{"type": "Class", "title": "Main", "tags": [], "file": "/etc/a.pp", "line": 1}]
    catalog = CanonicalCatalog.of(
        {
            "name": node,
            "environment": "production",
            "classes": ["main"],
            "resources": resources,
            "edges": [{"source": "Class[Main]", "target": f"File[/{name}]"} for name in files],
        }
    )
    packed = pack_catalog(catalog)
    header = CatalogHeader(
        run=RUN,
        at=1_800_000_000.5,
        release="web/tags/r1",
        environment="production",
        commit="a" * 40,
        digest=digest_of(packed),
        size=len(packed),
    )
    return NodeCatalog.checked(node, header, packed)


def naming(catalog: NodeCatalog) -> InventoryEntry:
    """Return an entry whose node publishes a catalog."""
    summary = CatalogSummary(digest=catalog.header.digest, size=catalog.header.size)
    return entry(catalog.node, at=catalog.header.at, catalog=summary)
