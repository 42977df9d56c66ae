"""A catalog as items, which nodes share: one for each resource, and one for the whole.

    CanonicalCatalog  ->  head, [item, item, …]  ->  CanonicalCatalog

- An item has a resource with the relationships that lead to it. Items with the same bytes are the
  same in two catalogs.
- The head has the classes, the types of resources, and the files that resources get from modules.
- The digest of a catalog is the one of its items' digests.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from localpuppet.base.formats.json_text import canonical
from localpuppet.base.formats.strict_json import loads_again
from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value
from localpuppet.node.puppet.catalog import CanonicalCatalog, CatalogEdge, CatalogResource

DIGEST_BYTES = 20
# Puppet ignores the case of the scheme, and a query.
_SERVED = re.compile("puppet:(?://)?/modules/([^?]*)", re.IGNORECASE)


class CatalogHead(Value):
    """What a catalog has as a whole.

    Attributes:
        certname: The node.
        environment: Puppet's environment.
        classes: The names of its classes.
        types: The types of its resources.
        sources: Reference of a resource → path below `modules` of its sources, of files and
            directories; types of modules, such as `Concat_fragment`, have them as well.
    """

    certname: str
    environment: str
    classes: tuple[str, ...]
    types: tuple[str, ...]
    sources: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, catalog: CanonicalCatalog) -> "CatalogHead":
        """Return the head of a catalog."""
        return cls(
            certname=catalog.certname,
            environment=catalog.environment,
            classes=catalog.classes,
            types=tuple(sorted({resource.type for resource in catalog.resources})),
            sources={
                f"{resource.type}[{resource.title}]": served
                for resource in catalog.resources
                if resource.type != "Class"
                and "::" not in resource.type  # a definition, which passes it on
                and (served := tuple(_served(resource.parameters.get("source"))))
            },
        )

    def parts(self) -> tuple[bytes, bytes]:
        """Return the bytes that are the node's own, and those that nodes may share."""
        sources = {name: [*paths] for name, paths in self.sources.items()}
        shared = [[*self.classes], [*self.types], sources]
        return canonical([self.certname, self.environment]), canonical(shared)

    @classmethod
    def parse(cls, own: bytes, shared: bytes) -> "CatalogHead":
        """Return the head in bytes of `parts`.

        Raises:
            ValueError: They are damaged.
        """
        (certname, environment), (classes, types, sources) = loads_again(own), loads_again(shared)
        return cls(
            certname=certname,
            environment=environment,
            classes=tuple(classes),
            types=tuple(types),
            sources={name: tuple(paths) for name, paths in sources.items()},
        )


def items_of(catalog: CanonicalCatalog) -> Iterator[bytes]:
    """Yield the items of a catalog, in the order of its resources."""
    leading: dict[tuple[str, str], list[list[str]]] = {}
    for edge in catalog.edges:
        target = edge.target_type, edge.target_title
        leading.setdefault(target, []).append(
            [edge.source_type, edge.source_title, edge.relationship]
        )
    for resource in catalog.resources:
        yield canonical(
            [
                *(resource.type, resource.title, resource.exported, resource.file, resource.line),
                *([*resource.tags], resource.parameters, leading.pop(resource.reference, [])),
            ]
        )
    for (kind, title), ends in leading.items():  # to a resource that the catalog lacks
        yield canonical([kind, title, None, None, None, [], {}, ends])


def catalog_of(head: CatalogHead, items: Iterable[bytes]) -> CanonicalCatalog:
    """Return the catalog of items, or a part of it with some of its items.

    Raises:
        ValueError: An item is damaged.
    """
    resources, edges = [], []
    for data in items:
        kind, title, exported, file, line, tags, parameters, leading = loads_again(data)
        if exported is not None:
            resource = CatalogResource(
                type=kind,
                title=title,
                exported=exported,
                file=file,
                line=line,
                tags=tuple(tags),
                parameters=parameters,
            )
            resources.append(resource)
        edges += [
            CatalogEdge(source, name, kind, title, relationship)
            for source, name, relationship in leading
        ]
    return CanonicalCatalog(
        certname=head.certname,
        environment=head.environment,
        classes=head.classes,
        resources=tuple(sorted(resources, key=lambda item: item.reference)),
        edges=tuple(sorted(edges)),
    )


def with_ends(
    before: CanonicalCatalog, after: CanonicalCatalog
) -> tuple[CanonicalCatalog, CanonicalCatalog]:
    """Return two partial catalogs in which each relationship has both of its ends.

    An end that is in neither part is the same in both whole catalogs. It gets no parameters.
    """
    present = {item.reference for side in (before, after) for item in side.resources}
    ends = {
        (edge.source_type, edge.source_title) for side in (before, after) for edge in side.edges
    }
    bare = tuple(
        CatalogResource(
            type=kind, title=title, exported=False, file=None, line=None, tags=(), parameters={}
        )
        for kind, title in sorted(ends - present)
    )
    first, second = (replace(side, resources=(*side.resources, *bare)) for side in (before, after))
    return first, second


def digest(data: bytes) -> bytes:
    """Return the digest by which the cache names data."""
    return hashlib.sha256(data).digest()[:DIGEST_BYTES]


def catalog_digest(own: bytes, shared: bytes, items: Sequence[bytes]) -> bytes:
    """Return the digest of a catalog.

    Args:
        own: The own bytes of its head.
        shared: The digest of the shared bytes of its head.
        items: The digests of its items, in any order.
    """
    return digest(b"".join(chain((digest(own), shared), sorted(items))))


def _served(source: Json) -> Iterator[str]:
    """Yield the paths below `modules` that a file's parameter `source` names."""
    for item in source if isinstance(source, list) else [source]:
        if isinstance(item, str) and (served := _SERVED.match(item)):
            yield "/".join(part for part in served[1].split("/") if part not in ("", "."))
