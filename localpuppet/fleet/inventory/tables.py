"""The tables of the view: an accepted entry as rows, and facts as queries see them.

- A value of a fact is JSON text as `compact` writes it, so equal texts are equal strings.
- Manifests for older Puppet versions use `hostname`, `ipaddress` or `osfamily`, which Puppet 8 no
  longer has. `facts_sql` derives them from structured facts. A derived fact never replaces a
  published one; `fqdn`, `clientcert`, `role` and `trusted` come from the entry, not from facts.
- `attach` gives a connection the names `live`, `nodes`, `facts`, `classes` and `servers`, with one
  entry replaced on request. Queries use these names only.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from localpuppet.base.formats.json_text import compact
from localpuppet.base.formats.names import EnvironmentName, NodeName
from localpuppet.base.formats.strict_json import loads_again
from localpuppet.base.formats.times import show_epoch
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.sqlite import sqlite3
from localpuppet.fleet.inventory.entry import MAIN, InventoryEntry
from localpuppet.node.enc.document import DEFAULT_ENVIRONMENT

ROLE = "role"
TRUSTED = "trusted"
# Puppet lists the default node block among the classes of a node.
NODE_BLOCK = "default"
# Facter 4's legacy facts that follow from one structured fact:
# https://www.puppet.com/docs/puppet/7/core_facts.html
_DERIVED = """
    architecture=os.architecture dhcp_servers=networking.dhcp domain=networking.domain
    gid=identity.group hardwareisa=processors.isa hardwaremodel=os.hardware
    hostname=networking.hostname id=identity.user ipaddress=networking.ip
    ipaddress6=networking.ip6 lsbdistcodename=os.distro.codename
    lsbdistdescription=os.distro.description lsbdistid=os.distro.id
    lsbdistrelease=os.distro.release.full lsbmajdistrelease=os.distro.release.major
    lsbminordistrelease=os.distro.release.minor macaddress=networking.mac
    memorysize=memory.system.total netmask=networking.netmask netmask6=networking.netmask6
    network=networking.network network6=networking.network6 operatingsystem=os.name
    operatingsystemmajrelease=os.release.major operatingsystemrelease=os.release.full
    osfamily=os.family physicalprocessorcount=processors.physicalcount
    processorcount=processors.count productname=dmi.product.name manufacturer=dmi.manufacturer
    rubyplatform=ruby.platform rubysitedir=ruby.sitedir rubyversion=ruby.version
    selinux=os.selinux.enabled swapsize=memory.swap.total
"""
DERIVED: Mapping[str, tuple[str, ...]] = {
    name: tuple(path.split("."))
    for name, _, path in (pair.partition("=") for pair in _DERIVED.split())
}
# Key in `networking.interfaces` → prefix of the legacy name of that fact.
_OF_INTERFACE = {"ip": "ipaddress", "ip6": "ipaddress6", "mac": "macaddress"} | {
    name: name for name in ("mtu", "netmask", "netmask6", "network", "network6")
}
# Characters of an interface name that are replaced in a legacy fact: `eth0.1` is `eth0_1`.
_NOT_IN_LEGACY = re.compile(r"[^A-Za-z0-9_]")
_LEGACY = re.compile(rf"interfaces\Z|(?:{'|'.join(_OF_INTERFACE.values())})_[A-Za-z0-9_]+\Z")
# With more interfaces, a node has no legacy facts for the others.
MAX_INTERFACES = 1000
# The end of the year 9999, the last one that a timestamp can have.
_LAST_TIME = 253_402_300_799.0
# Keys that SQLite's paths name as they are; `dig` reads the others.
_PLAIN_KEY = re.compile(r"[ !#-\[\]-~]+\Z")
TABLES = """
CREATE TABLE IF NOT EXISTS nodes (
    id INTEGER PRIMARY KEY, certname TEXT NOT NULL UNIQUE, at REAL NOT NULL,
    timestamp TEXT NOT NULL, environment TEXT NOT NULL, roles TEXT NOT NULL, release TEXT,
    exports TEXT, catalog TEXT, resources INTEGER
) STRICT;
CREATE TABLE IF NOT EXISTS facts (
    name TEXT NOT NULL, node INTEGER NOT NULL, value TEXT NOT NULL, PRIMARY KEY (name, node)
) STRICT;
CREATE INDEX IF NOT EXISTS facts_by_node ON facts (node, name);
CREATE TABLE IF NOT EXISTS classes (
    title TEXT NOT NULL, node INTEGER NOT NULL, PRIMARY KEY (title, node)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS classes_by_node ON classes (node);
CREATE TABLE IF NOT EXISTS servers (
    role TEXT NOT NULL, node INTEGER NOT NULL, since REAL NOT NULL, facts TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS servers_by_role ON servers (role);
CREATE INDEX IF NOT EXISTS servers_by_node ON servers (node);
CREATE TABLE IF NOT EXISTS legacy (names TEXT NOT NULL, node INTEGER PRIMARY KEY) STRICT;
"""
OF_NODE = {
    "facts": "name, node, value",
    "classes": "title, node",
    "servers": "role, node, since, facts",
    "legacy": "names, node",
}
_COLUMNS = "certname, at, timestamp, environment, roles, release, exports, catalog, resources"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRows:
    """The rows of an entry, which need less memory than the entry.

    Attributes:
        certname: The name of the node.
        at: When it was published, in seconds since 1970, UTC.
        node: The other columns of its row in `nodes`.
        facts: Names and values.
        classes: Titles.
        servers: Roles, times of the first export, and facts of the exported servers.
        legacy: The names of its legacy facts; see `_legacy`.
    """

    certname: str
    at: float
    node: tuple[str | int | None, ...]
    facts: tuple[tuple[str, str], ...]
    classes: tuple[tuple[str], ...]
    servers: tuple[tuple[str, float, str], ...]
    legacy: tuple[tuple[str], ...]

    @classmethod
    def of(cls, entry: InventoryEntry) -> "EntryRows":
        """Return the rows of an entry."""
        name = str(entry.node)
        facts = {**entry.facts, "fqdn": name, "clientcert": name, TRUSTED: _trusted(name)}
        if entry.roles:
            facts[ROLE] = entry.roles[0] if len(entry.roles) == 1 else list(entry.roles)
        return cls(
            certname=name,
            at=entry.at,
            node=(
                show_epoch(min(max(entry.at, 0.0), _LAST_TIME)),
                entry.environment or DEFAULT_ENVIRONMENT,
                compact(entry.roles),
                entry.release,
                entry.exports.digest,
                None if entry.catalog is None else entry.catalog.digest,
                None if entry.catalog is None else entry.catalog.resources,
            ),
            facts=tuple((key, compact(facts[key])) for key in facts if facts[key] is not None),
            classes=tuple((class_title(one),) for one in sorted({*entry.classes} - {NODE_BLOCK})),
            servers=tuple(
                (server.role, server.since, compact(server.facts(entry.node)))
                for server in entry.servers
            ),
            legacy=((_legacy(dict(entry.facts)),),),
        )


def write(
    connection: sqlite3.Connection, entries: Collection[EntryRows], schema: str = "main"
) -> None:
    """Write or replace the rows of nodes."""
    marks = ", ".join("?" * len(_COLUMNS.split()))
    connection.executemany(
        f"INSERT INTO {schema}.nodes ({_COLUMNS}) VALUES ({marks})"  # noqa: S608
        f" ON CONFLICT (certname) DO UPDATE SET ({_COLUMNS}) = ({marks})",
        ((entry.certname, entry.at, *entry.node) * 2 for entry in entries),
    )
    names = (compact([entry.certname for entry in entries]),)
    named = f"FROM {schema}.nodes WHERE certname IN (SELECT value FROM json_each(?))"  # noqa: S608
    numbers = dict(connection.execute(f"SELECT certname, id {named}", names))
    for table, columns in OF_NODE.items():
        old = f"DELETE FROM {schema}.{table} WHERE node IN (SELECT id {named})"  # noqa: S608
        connection.execute(old, names)
        # In the order of the index: a third faster, and the values of a fact are close together.
        rows = [
            (name, numbers[entry.certname], *more)
            for entry in entries
            for name, *more in getattr(entry, table)
        ]
        rows.sort(key=itemgetter(0))
        marks = ", ".join("?" * len(columns.split()))
        connection.executemany(
            f"INSERT INTO {schema}.{table} ({columns}) VALUES ({marks})",  # noqa: S608
            rows,
        )


def remove(connection: sqlite3.Connection, node: str) -> None:
    """Delete the rows of a node."""
    for table in OF_NODE:
        connection.execute(
            f"DELETE FROM {table} WHERE node = (SELECT id FROM nodes WHERE certname = ?)",  # noqa: S608
            (node,),
        )
    connection.execute("DELETE FROM nodes WHERE certname = ?", (node,))


def attach(connection: sqlite3.Connection, oldest: float, own: EntryRows | None = None) -> None:
    """Define the names that queries use.

    Args:
        connection: A connection to the view, outside of a transaction.
        oldest: Earlier entries are expired.
        own: The rows that replace those of their node.
    """
    connection.create_function("interface_facts", 1, interface_facts, deterministic=True)
    connection.create_function("legacy_names", 1, legacy_names, deterministic=True)
    connection.create_function("dig", 2, _dig, deterministic=True)
    if own is not None:
        connection.execute("ATTACH ':memory:' AS own")
        connection.executescript(TABLES.replace("NOT EXISTS ", "NOT EXISTS own."))
        name = own.certname
        connection.execute(
            "INSERT INTO own.nodes (id, certname, at, timestamp, environment, roles)"
            " VALUES (-1, ?, 0, '', '', '')",
            (name,),
        )
        write(connection, [own], "own")
        row = connection.execute("SELECT id FROM nodes WHERE certname = ?", (name,)).fetchone()
        number = 0 if row is None else row[0]
        for table, key in (("nodes", "id"), *((table, "node") for table in OF_NODE)):
            connection.execute(
                f"CREATE TEMP VIEW {table} AS SELECT * FROM main.{table}"  # noqa: S608
                f" WHERE {key} <> {number} UNION ALL SELECT * FROM own.{table}"
            )
    connection.execute(f"CREATE TEMP VIEW live AS SELECT * FROM nodes WHERE at >= {oldest!r}")  # noqa: S608


# The names of all published facts: one look-up in the index for each.
PUBLISHED_NAMES = (
    "WITH RECURSIVE known(name) AS (SELECT min(name) FROM facts UNION ALL SELECT"
    " (SELECT min(name) FROM facts WHERE name > known.name) FROM known WHERE name IS NOT NULL)"
    " SELECT name FROM known WHERE name IS NOT NULL"
)


def facts_sql(names: Collection[str] | None = None, node: str = "") -> list[str]:
    """Return SELECT statements that have all facts together: node, name and value.

    Args:
        names: The names of the facts that are needed; `None` for all.
        node: The number of the only node, as SQL; empty for all nodes.
    """
    only = f" AND f.node = {node}" if node else ""
    some = "" if names is None else f" AND f.name IN ({', '.join(map(quoted, names))})"
    statements = [f"SELECT f.node, f.name, f.value FROM facts f WHERE 1{only}{some}"]  # noqa: S608
    absent = "NOT EXISTS (SELECT 1 FROM facts p WHERE p.node = f.node AND p.name = "
    derived = derived_sql(names)
    if derived:
        statements.append(
            "SELECT f.node, CAST(d.name AS TEXT) AS name,"  # noqa: S608
            f" CAST(f.value -> d.path AS TEXT) AS value FROM ({derived}) d"
            " CROSS JOIN facts f ON f.name = d.origin"
            f" WHERE json_type(f.value, d.path) <> 'null' AND {absent}d.name){only}"
        )
    if names is None or any(map(_LEGACY.match, names)):
        statements.append(
            "SELECT f.node, CAST(d.key AS TEXT) AS name, CAST(d.value AS TEXT) AS value"  # noqa: S608
            " FROM facts f CROSS JOIN json_each(interface_facts(f.value)) d"
            f" WHERE f.name = 'networking' AND {absent}d.key){only}"
            + some.replace("f.name", "d.key")
        )
    return statements


def derived_sql(names: Collection[str] | None = None) -> str:
    """Return a SELECT of the derived facts: name, origin and path there; empty for none."""
    return " UNION ALL ".join(
        f"SELECT {quoted(name)} AS name, '{path[0]}' AS origin, {json_path(path[1:])} AS path"
        for name, path in sorted(DERIVED.items())
        if names is None or name in names
    )


def fact_names_sql() -> str:
    """Return a SELECT of the different names of facts, legacy names included."""
    live = "SELECT 1 FROM live JOIN facts f ON f.node = live.id"
    return (
        f"SELECT name FROM ({PUBLISHED_NAMES}) n WHERE EXISTS ({live} AND f.name = n.name)"  # noqa: S608
        " UNION SELECT d.value FROM (SELECT DISTINCT names FROM live JOIN legacy l"
        " ON l.node = live.id) CROSS JOIN json_each(legacy_names(names)) d"
    )


def fact_sql(node: str, path: tuple[str | int, ...]) -> str:
    """Return an SQL expression for the fact at a path of a node, as JSON text."""
    name, value = str(path[0]), "(SELECT value FROM facts WHERE name = {} AND node = {})"
    published = value.format(quoted(name), node)
    if name in DERIVED:
        origin, *rest = DERIVED[name]
        derived = dig_sql(value.format(quoted(origin), node), tuple(rest))
        published = f"coalesce({published}, {derived})"
    elif _LEGACY.match(name):
        networking = value.format("'networking'", node)
        published = f"coalesce({published}, interface_facts({networking}) ->> {quoted(name)})"
    return dig_sql(published, path[1:])


def has_fact(connection: sqlite3.Connection, path: tuple[str | int, ...]) -> bool:
    """Return whether a live entry has a fact, or a part of one."""
    found = f"SELECT 1 FROM live WHERE {fact_sql('live.id', path)} IS NOT NULL LIMIT 1"  # noqa: S608
    return bool(path) and connection.execute(found).fetchone() is not None


def whole_facts_sql(node: str) -> str:
    """Return an SQL expression for all facts of a node, sorted by name, as a JSON object."""
    every = " UNION ALL ".join(facts_sql(None, node))
    return (
        "(SELECT json_group_object(name, json(value)) FROM"  # noqa: S608
        f" (SELECT name, value FROM ({every}) WHERE name <> '{TRUSTED}' ORDER BY name))"
    )


def dig_sql(value: str, path: tuple[str | int, ...]) -> str:
    """Return an SQL expression for the place in a value; null for none, and for a null there."""
    if not path:
        return value
    # A number is an index of a list or a key of a hash, which SQLite's paths cannot say.
    if is_plain_path(path) and not any(isinstance(step, int) for step in path):
        return f"nullif({value} -> {json_path(path)}, 'null')"
    return f"dig({value}, {quoted(compact(path))})"


def is_plain_path(path: Sequence[Json]) -> bool:
    """Return whether SQLite's paths name the steps of a path as they are."""
    return all(
        _PLAIN_KEY.match(step) if isinstance(step, str) else type(step) is int for step in path
    )


def json_path(path: Sequence[Json]) -> str:
    """Return a path as SQLite's JSON functions take it, as an SQL literal."""
    steps = (f"[{step}]" if isinstance(step, int) else f'."{step}"' for step in path)
    return quoted("$" + "".join(steps))


def quoted(text: str) -> str:
    """Return a text as an SQL literal."""
    if "\0" in text:  # no SQL text may contain it
        return f"CAST(x'{text.encode().hex()}' AS TEXT)"
    return "'" + text.replace("'", "''") + "'"


def _dig(text: str | None, path: str) -> str | None:
    steps = tuple(loads_again(path.encode()))
    value = None if text is None else dig(loads_again(text.encode()), steps)
    return None if value is None else compact(value)


def dig(value: Json, path: tuple[str | int, ...]) -> Json:
    """Return the value at a path in a value; `None` if it is missing."""
    for step in path:
        if isinstance(value, dict):
            value = value.get(str(step))
        elif isinstance(value, list) and isinstance(step, int) and 0 <= step < len(value):
            value = value[step]
        else:
            return None
    return value


def interface_facts(networking: str | None) -> str:
    """Return the legacy facts of the network interfaces: a JSON object with JSON texts."""
    interfaces = _interfaces(None if networking is None else loads_again(networking.encode()))
    named = [(_NOT_IN_LEGACY.sub("_", name), about) for name, about in interfaces]
    legacy = {
        f"{kind}_{name}": compact(about[key])
        for name, about in named
        if isinstance(about, dict)
        for key, kind in _OF_INTERFACE.items()
        if about.get(key) is not None
    }
    if named:
        legacy["interfaces"] = compact(",".join(name for name, _ in named))
    return compact(legacy)


def _interfaces(networking: Json) -> list[tuple[str, Json]]:
    interfaces = dig(networking, ("interfaces",))
    return list(interfaces.items())[:MAX_INTERFACES] if isinstance(interfaces, dict) else []


def _legacy(facts: dict[str, Json]) -> str:
    """Return which legacy facts there are; `legacy_names` reads it.

    Interfaces are grouped by their keys, and derived facts are listed if they are missing: most
    nodes are alike, so that these texts are short, and few are different.
    """
    groups: dict[str, list[str]] = {}
    for name, about in _interfaces(facts.get("networking")):
        keys: list[str] = []
        if isinstance(about, dict):
            keys = [key for key in about if key in _OF_INTERFACE and about[key] is not None]
        groups.setdefault(" ".join(keys), []).append(name)
    missing = [name for name, path in DERIVED.items() if dig(facts, path) is None]
    return compact([missing, groups])


def legacy_names(text: str) -> str:
    """Return the names of legacy facts as a JSON list."""
    missing, groups = loads_again(text.encode())
    names = {
        f"{_OF_INTERFACE[key]}_{_NOT_IN_LEGACY.sub('_', name)}"
        for keys, named in groups.items()
        for key in keys.split()
        for name in named
    }
    names |= DERIVED.keys() - set(missing) | ({"interfaces"} if groups else set())
    return compact([*names])


def _trusted(name: str) -> Json:
    """Return the signed identity in the form of Puppet's `trusted` hash."""
    hostname, _, domain = name.partition(".")
    return {
        "authenticated": "local",
        "certname": name,
        "domain": domain or None,
        "extensions": {},
        "hostname": hostname,
    }


def class_title(name: str) -> str:
    """Return the title of a class in a catalog: `Foo::Bar`, but `main`."""
    return name if name == MAIN else capitalized(name)


def capitalized(name: str) -> str:
    """Return the name of a type or class as Puppet shows it: `Foo::Bar`."""
    return "::".join(part.capitalize() for part in name.split("::"))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBrief:
    """A node of the inventory without its facts.

    Attributes:
        node: Its name.
        at: When it published its entry, in seconds since 1970, UTC.
        environment: Puppet's environment.
        roles: Its roles.
        release: The applied release; `None` if its input has none.
    """

    node: NodeName
    at: float
    environment: EnvironmentName
    roles: tuple[str, ...]
    release: str | None


def briefs(
    connection: sqlite3.Connection, names: Collection[str] | None = None
) -> Iterator[NodeBrief]:
    """Yield nodes, sorted by name.

    Args:
        connection: A connection that `attach` has prepared.
        names: The names of nodes; `None` for all.
    """
    some = "" if names is None else " WHERE certname IN (SELECT value FROM json_each(?))"
    rows = connection.execute(
        f"SELECT certname, at, environment, roles, release FROM live{some} ORDER BY certname",  # noqa: S608
        () if names is None else (compact(list(names)),),
    )
    for name, at, environment, roles, release in rows:
        yield NodeBrief(
            node=NodeName(name),
            at=at,
            environment=EnvironmentName(environment),
            roles=tuple(loads_again(roles.encode())),
            release=release,
        )
