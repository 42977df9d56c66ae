"""Which parts of an entry the view can be asked for without reading all entries.

Owns: the paths that are indexed, and how values become words that compare. Refuses to know: SQL.

Invariant: two values that any query language would call equal have one word; two that differ may
have one, too, since whoever asks filters again.
"""

from collections.abc import Iterator, Mapping

from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.entry import InventoryEntry

ROLE = "role"
NODE = "node"
# Not paths of facts: the digest of what a node exports, and the roles of its exported servers.
EXPORTS = "(exports)"
SERVER = "(server)"
# Facts that people ask for; `role` and `node` besides.
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
MAX_WORD = 200


def word(value: Json) -> str | None:
    """Return the word that a scalar is found by; `None` for what is not a scalar."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{float(value):g}"
    if not isinstance(value, str):
        return None
    try:
        return f"{float(value):g}"
    except ValueError:
        return value.lower()[:MAX_WORD]


def words_of(entry: InventoryEntry) -> Iterator[tuple[str, str]]:
    """Yield the paths and words by which an entry is found."""
    for role in entry.roles:
        yield ROLE, str(word(role))
    if entry.exports.digest is not None:
        yield EXPORTS, entry.exports.digest
    for server in entry.servers:
        yield SERVER, str(word(server.role))
    for path in PATHS:
        found = word(at_path(entry.facts, path))
        if found is not None:
            yield path, found


def at_path(facts: Mapping[str, Json], path: str) -> Json:
    """Return the fact at a dotted path; `None` where there is none."""
    value: Json = dict(facts)
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    return value
