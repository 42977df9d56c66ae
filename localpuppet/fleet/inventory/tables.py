"""The tables of the view: an accepted entry as rows, and facts as queries see them.

- A value of a fact is JSON text as `compact` writes it, so equal texts are equal strings.
- Manifests for older Puppet versions use `hostname`, `ipaddress` or `osfamily`, which Puppet 8 no
  longer has. `facts_sql` derives them from structured facts. A derived fact never replaces a
  published one; `fqdn`, `clientcert`, `role` and `trusted` come from the entry, not from facts.
- `attach` gives a connection the names `live` and those of `NAMES`, with one entry replaced on
  request. Queries use these names only.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from operator import itemgetter
from typing import Any

from localpuppet.base.formats.names import EnvironmentName, NodeName
from localpuppet.base.formats.strict_json import compact, loads_again
from localpuppet.base.formats.times import show_epoch
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.sqlite import sqlite3
from localpuppet.fleet.inventory.entry import MAIN, InventoryEntry, fact_texts
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
# The row of a fact has the number of its name in the upper half of its key, the number of its node
# in the lower half: the values of a fact are side by side, and no index is needed.
_NODE = "4294967295"
TABLES = """
CREATE TABLE IF NOT EXISTS nodes (
    id INTEGER PRIMARY KEY, certname TEXT NOT NULL UNIQUE, at REAL NOT NULL,
    timestamp TEXT NOT NULL, environment TEXT NOT NULL, roles TEXT NOT NULL, release TEXT,
    exports TEXT, catalog TEXT, resources INTEGER, fact_ids TEXT NOT NULL, legacy INTEGER
) STRICT;
CREATE INDEX IF NOT EXISTS nodes_by_legacy ON nodes (legacy);
CREATE TABLE IF NOT EXISTS fact_names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE IF NOT EXISTS fact_values (id INTEGER PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS legacy (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE IF NOT EXISTS classes (
    title TEXT NOT NULL, node INTEGER NOT NULL, PRIMARY KEY (title, node)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS classes_by_node ON classes (node);
CREATE TABLE IF NOT EXISTS servers (
    role TEXT NOT NULL, node INTEGER NOT NULL, since REAL NOT NULL, facts TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS servers_by_role ON servers (role);
CREATE INDEX IF NOT EXISTS servers_by_node ON servers (node);
"""
# The facts of the nodes in `live`, each with its name.
FACTS = (
    f"fact_values JOIN live ON live.id = fact_values.id & {_NODE}"
    " JOIN fact_names ON fact_names.id = fact_values.id >> 32"
)
NAMES = ("nodes", "fact_names", "fact_values", "legacy", "classes", "servers")
_OF_NODE = {
    "nodes": ", ".join("?" * 12),
    **{"fact_values": "?, ?", "classes": "?, ?", "servers": "?, ?, ?, ?"},
}
_ASKED = "IN (SELECT value FROM json_each(?1))"
_ITS_FACTS = f"main.nodes n, json_each(n.fact_ids) f WHERE n.id {_ASKED})"
# Names of facts and lists of legacy names that no node has any more are deleted, too.
_REMOVE = (
    f"DELETE FROM main.fact_values WHERE id IN (SELECT f.value << 32 | n.id FROM {_ITS_FACTS}",  # noqa: S608
    f"DELETE FROM main.fact_names WHERE id IN (SELECT f.value FROM {_ITS_FACTS} AND NOT EXISTS"  # noqa: S608
    " (SELECT 1 FROM main.fact_values v WHERE v.id BETWEEN fact_names.id << 32"
    f" AND fact_names.id << 32 | {_NODE})",
    f"DELETE FROM main.legacy WHERE id IN (SELECT legacy FROM main.nodes WHERE id {_ASKED})"  # noqa: S608
    f" AND NOT EXISTS (SELECT 1 FROM main.nodes n WHERE legacy = legacy.id AND NOT n.id {_ASKED})",
    *(
        f"DELETE FROM main.{table} WHERE {key} {_ASKED}"  # noqa: S608
        for table, key in (("classes", "node"), ("servers", "node"), ("nodes", "id"))
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRows:
    """The rows of an entry, which need less memory than the entry.

    `node` has the other columns of its row in `nodes`; `servers` roles, times of the first export,
    and facts of the exported servers; `legacy` the names of its legacy facts.
    """

    certname: str
    at: float
    node: tuple[str | int | None, ...]
    facts: tuple[tuple[str, str], ...]
    classes: tuple[str, ...]
    servers: tuple[tuple[str, float, str], ...]
    legacy: str

    @classmethod
    def of(cls, entry: InventoryEntry) -> "EntryRows":
        """Return the rows of an entry."""
        name = str(entry.node)
        own: dict[str, Json] = {"fqdn": name, "clientcert": name, TRUSTED: _trusted(name)}
        if entry.roles:
            own[ROLE] = entry.roles[0] if len(entry.roles) == 1 else list(entry.roles)
        texts = {**fact_texts(entry.facts), **fact_texts(own)}
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
            facts=tuple(pair for pair in texts.items() if pair[1] != "null"),
            classes=tuple(map(class_title, sorted({*entry.classes} - {NODE_BLOCK}))),
            servers=tuple(
                (server.role, server.since, compact(server.facts(entry.node)))
                for server in entry.servers
            ),
            legacy=_legacy(dict(entry.facts)),
        )


def write(
    connection: sqlite3.Connection, entries: Collection[EntryRows], schema: str = "main"
) -> None:
    """Write or replace the rows of nodes."""
    known = remove(connection, [entry.certname for entry in entries], schema)
    facts = _numbers(
        connection, f"{schema}.fact_names", {name for entry in entries for name, _ in entry.facts}
    )
    legacy = _numbers(connection, f"{schema}.legacy", {entry.legacy for entry in entries})
    rows: dict[str, list[tuple[object, ...]]] = {table: [] for table in _OF_NODE}
    (last,) = connection.execute(f"SELECT ifnull(max(id), 0) FROM {schema}.nodes").fetchone()  # noqa: S608
    new = count(max([last, *known.values()]) + 1)
    ids: dict[tuple[int, ...], str] = {}  # most nodes have the same names
    for entry in entries:
        number = known[entry.certname] if entry.certname in known else next(new)
        keys = tuple([facts[name] for name, _ in entry.facts])
        if keys not in ids:
            ids[keys] = compact(keys)
        columns = (entry.certname, entry.at, *entry.node, ids[keys], legacy[entry.legacy])
        rows["nodes"].append((number, *columns))
        rows["fact_values"] += [
            (key << 32 | number, text) for key, (_, text) in zip(keys, entry.facts, strict=True)
        ]
        rows["classes"] += ((title, number) for title in entry.classes)
        rows["servers"] += ((role, number, *more) for role, *more in entry.servers)
    # In the order of the keys: a third faster.
    rows["fact_values"].sort(key=itemgetter(0))
    for table, marks in _OF_NODE.items():
        connection.executemany(f"INSERT INTO {schema}.{table} VALUES ({marks})", rows[table])  # noqa: S608


def _numbers(connection: sqlite3.Connection, table: str, texts: Collection[str]) -> dict[str, int]:
    """Return the numbers of texts in one of the tables of texts, which gets the new ones."""
    connection.executemany(
        f"INSERT OR IGNORE INTO {table} (name) VALUES (?)",  # noqa: S608
        ((text,) for text in sorted(texts)),
    )
    find = f"SELECT id FROM {table} WHERE name = ?"  # noqa: S608
    return {text: connection.execute(find, (text,)).fetchone()[0] for text in texts}


def remove(
    connection: sqlite3.Connection, names: Collection[str], schema: str = "main"
) -> dict[str, int]:
    """Delete the rows of nodes; return the numbers of those that had rows."""
    rows = connection.execute(
        f"SELECT certname, id FROM {schema}.nodes"  # noqa: S608
        " WHERE certname IN (SELECT value FROM json_each(?))",
        (compact([*names]),),
    )
    known = dict(rows.fetchall())
    for statement in _REMOVE if known else ():
        connection.execute(statement.replace("main.", f"{schema}."), (compact([*known.values()]),))
    return known


def attach(connection: sqlite3.Connection, oldest: float, own: EntryRows | None = None) -> None:
    """Define the names that queries use."""
    connection.create_function("interface_facts", 1, interface_facts, deterministic=True)
    connection.create_function("legacy_names", 1, legacy_names, deterministic=True)
    connection.create_function("dig", 2, _dig, deterministic=True)
    if own is not None:
        connection.execute("ATTACH ':memory:' AS own")
        connection.executescript(TABLES.replace("NOT EXISTS ", "NOT EXISTS own."))
        connection.execute("INSERT INTO own.fact_names SELECT * FROM main.fact_names")
        connection.execute("INSERT INTO own.legacy SELECT max(id), '' FROM main.legacy")
        connection.execute(
            "INSERT INTO own.nodes (id, certname, at, timestamp, environment, roles, fact_ids)"
            " VALUES (0, ?, 0, '', '', '', '[]')",
            (own.certname,),
        )
        write(connection, [own], "own")
        find = "SELECT id FROM main.nodes WHERE certname = ?"
        number = (connection.execute(find, (own.certname,)).fetchone() or (0,))[0]
        connection.execute("CREATE TEMP VIEW fact_names AS SELECT * FROM own.fact_names")
        connection.execute(
            "CREATE TEMP VIEW legacy AS SELECT * FROM main.legacy UNION ALL"
            " SELECT * FROM own.legacy WHERE name <> ''"
        )
        for table, key in (
            ("nodes", "id"),
            ("fact_values", f"id & {_NODE}"),
            ("classes", "node"),
            ("servers", "node"),
        ):
            connection.execute(
                f"CREATE TEMP VIEW {table} AS SELECT * FROM main.{table}"  # noqa: S608
                f" WHERE {key} <> {number} UNION ALL SELECT * FROM own.{table}"
            )
    connection.execute(f"CREATE TEMP VIEW live AS SELECT * FROM nodes WHERE at >= {oldest!r}")  # noqa: S608


PUBLISHED_NAMES = "SELECT name FROM fact_names"


# The facts of all nodes as numbers by name and environment: most nodes have the same names.
FACT_COUNTS = (
    "WITH alike AS MATERIALIZED (SELECT min(id) AS id, environment, fact_ids, legacy,"
    " count(*) AS number FROM live GROUP BY environment, fact_ids, legacy)"
    " SELECT environment, number, a.id, n.name FROM alike a CROSS JOIN json_each(fact_ids) f"
    " CROSS JOIN fact_names n ON n.id = f.value UNION SELECT environment, number, a.id, d.value"
    " FROM alike a CROSS JOIN legacy l ON l.id = a.legacy"
    " CROSS JOIN json_each(legacy_names(l.name)) d"
)


def facts_sql(names: Collection[str] | None = None, row: str = "") -> list[str]:
    """Return SELECT statements that have all facts together.

    Args:
        names: The names of the facts that are needed; `None` for all.
        row: The name of a row of `live`, to select name and value of its facts; empty to select
            name and environment of each node, too.
    """
    node, head, source = row, "", ""
    if not row:
        node, head, source = "l", "l.certname, l.environment, ", "live l CROSS JOIN "
    some = "" if names is None else f" AND {{}} IN ({', '.join(map(quoted, names))})"
    # Not joined: SQLite sorts the facts of one node only.
    own = some.format("n.name") or f" AND n.id IN (SELECT value FROM json_each({node}.fact_ids))"  # noqa: S608
    statements = [
        f"SELECT {head}n.name, v.value FROM {source}fact_names n"  # noqa: S608
        f" CROSS JOIN fact_values v ON v.id = n.id << 32 | {node}.id WHERE 1{own}"
    ]
    absent = f"NOT EXISTS (SELECT 1 FROM fact_values p WHERE p.id = {{}} << 32 | {node}.id)"  # noqa: S608
    derived = derived_sql(names)
    if derived:
        numbered = (
            f"SELECT d.*, o.id AS origin_id, n.id AS name_id FROM ({derived}) d"  # noqa: S608
            " JOIN fact_names o ON o.name = d.origin LEFT JOIN fact_names n ON n.name = d.name"
        )
        statements.append(
            f"SELECT {head}CAST(d.name AS TEXT) AS name, CAST(v.value -> d.path AS TEXT) AS value"  # noqa: S608
            f" FROM {source}({numbered}) d CROSS JOIN fact_values v"
            f" ON v.id = d.origin_id << 32 | {node}.id"
            f" WHERE json_type(v.value, d.path) <> 'null' AND {absent.format('d.name_id')}"
        )
    if names is None or any(map(_LEGACY.match, names)):
        statements.append(
            f"SELECT {head}CAST(d.key AS TEXT) AS name, CAST(d.value AS TEXT) AS value"  # noqa: S608
            f" FROM {source}fact_values v CROSS JOIN json_each(interface_facts(v.value)) d"
            # IN, of one row: after a unique one, SQLite would sort those of all nodes together.
            f" WHERE v.id IN (SELECT {_number('networking')} << 32 | {node}.id)"
            f" AND {absent.format('(SELECT id FROM fact_names WHERE name = d.key)')}"
            + some.format("d.key")
        )
    return statements


def _number(name: str) -> str:
    """Return an SQL expression for the number of a fact's name, which SQLite evaluates once."""
    return f"(SELECT id FROM fact_names WHERE name = {quoted(name)})"  # noqa: S608


def value_sql(name: str, node: str) -> str:
    """Return an SQL expression for a published fact of the node with a number, as JSON text."""
    return f"(SELECT value FROM fact_values WHERE id = {_number(name)} << 32 | {node})"  # noqa: S608


def derived_sql(names: Collection[str] | None = None) -> str:
    """Return a SELECT of the derived facts: name, origin and path there; empty for none."""
    return " UNION ALL ".join(
        f"SELECT {quoted(name)} AS name, '{path[0]}' AS origin, {json_path(path[1:])} AS path"
        for name, path in sorted(DERIVED.items())
        if names is None or name in names
    )


def fact_names_sql() -> str:
    """Return a SELECT of the different names of facts, legacy names included."""
    return (
        "SELECT name FROM fact_names n WHERE EXISTS (SELECT 1 FROM fact_values v"  # noqa: S608
        f" CROSS JOIN live ON live.id = v.id & {_NODE}"
        f" WHERE v.id BETWEEN n.id << 32 AND n.id << 32 | {_NODE})"
        " UNION SELECT d.value FROM (SELECT DISTINCT legacy FROM live) CROSS JOIN legacy l"
        " ON l.id = legacy CROSS JOIN json_each(legacy_names(l.name)) d"
    )


def fact_sql(node: str, path: tuple[str | int, ...]) -> str:
    """Return an SQL expression for the fact at a path of a node, as JSON text."""
    name = str(path[0])
    published = value_sql(name, node)
    if name in DERIVED:
        origin, *rest = DERIVED[name]
        published = f"coalesce({published}, {dig_sql(value_sql(origin, node), tuple(rest))})"
    elif _LEGACY.match(name):
        derived = f"interface_facts({value_sql('networking', node)}) ->> {quoted(name)}"
        published = f"coalesce({published}, {derived})"
    return dig_sql(published, path[1:])


def has_fact(connection: sqlite3.Connection, path: tuple[str | int, ...]) -> bool:
    """Return whether a live entry has a fact, or a part of one."""
    found = f"SELECT 1 FROM live WHERE {fact_sql('live.id', path)} IS NOT NULL LIMIT 1"  # noqa: S608
    return bool(path) and connection.execute(found).fetchone() is not None


def whole_facts_sql(row: str) -> str:
    """Return an SQL expression for all facts of a row of `live`, sorted, as a JSON object."""
    every = " UNION ALL ".join(facts_sql(None, row))
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
        about = about if isinstance(about, dict) else {}
        keys = tuple(about)
        if None in about.values():
            keys = tuple(key for key in keys if about[key] is not None)
        groups.setdefault(_legacy_keys(keys), []).append(name)
    missing = []
    for name, path in DERIVED.items():
        value: Any = facts
        try:
            for step in path:
                value = value[step]
        except (LookupError, TypeError):
            value = None
        if value is None:
            missing.append(name)
    return compact([missing, groups])


@lru_cache(maxsize=256)
def _legacy_keys(keys: tuple[str, ...]) -> str:
    return " ".join(key for key in keys if key in _OF_INTERFACE)


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
    """A node of the inventory without its facts."""

    node: NodeName
    at: float
    environment: EnvironmentName
    roles: tuple[str, ...]
    release: str | None


def briefs(
    connection: sqlite3.Connection, names: Collection[str] | None = None
) -> Iterator[NodeBrief]:
    """Yield nodes, sorted by name."""
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
