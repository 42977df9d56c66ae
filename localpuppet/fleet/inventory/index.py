"""The index of the view: the paths in it, and how values become comparable terms.

- Values that any query language treats as equal have the same term. Different values may share one,
  because queries filter again.
"""

from collections.abc import Iterator, Mapping

from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.entry import InventoryEntry

ROLE = "role"
NODE = "node"
# Not fact paths: the digests of a node's exports and of its catalog, and the roles of its exported
# servers.
EXPORTS = "(exports)"
CATALOG = "(catalog)"
SERVER = "(server)"
# The indexed facts, besides `role` and `node`.
PATHS = (
    "datacenter",
    "domain",
    "environment",
    "kernel",
    "os.distro.codename",
    "os.family",
    "os.name",
    "os.release.major",
    "tier",
    "virtual",
)
MAX_TERM = 200


def term(value: Json) -> str | None:
    """Return the term for a scalar; `None` for other values."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{float(value):g}"
    if not isinstance(value, str):
        return None
    try:
        return f"{float(value):g}"
    except ValueError:
        return value.lower()[:MAX_TERM]


def terms_of(entry: InventoryEntry) -> Iterator[tuple[str, str]]:
    """Yield the paths and terms of an entry."""
    for role in entry.roles:
        yield ROLE, str(term(role))
    if entry.exports.digest is not None:
        yield EXPORTS, entry.exports.digest
    if entry.catalog is not None:
        yield CATALOG, entry.catalog.digest
    for server in entry.servers:
        yield SERVER, str(term(server.role))
    for path in PATHS:
        text = term(at_path(entry.facts, path))
        if text is not None:
            yield path, text


def at_path(facts: Mapping[str, Json], path: str) -> Json:
    """Return the fact at a dotted path; `None` if it is missing."""
    value: Json = dict(facts)
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    return value
