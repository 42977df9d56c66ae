"""The tables of the view: an accepted entry as rows, and facts as queries see them.

- A value of a fact is JSON text as `compact` writes it, so equal texts are equal strings.
- Manifests for older Puppet versions use `hostname`, `ipaddress` or `osfamily`, which Puppet 8 no
  longer has. `facts_sql` derives them from structured facts. A derived fact never replaces a
  published one; `fqdn`, `clientcert`, `role` and `trusted` come from the entry, not from facts.
- `attach` gives a connection the names `live` and those of `NAMES`, with one entry replaced on
  request. Queries use these names only.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from operator import itemgetter
from typing import Any

from localpuppet.base.formats.names import EnvironmentName, NodeName
from localpuppet.base.formats.strict_json import compact, loads_again
from localpuppet.base.formats.times import LAST_TIME, show_epoch
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
# Keys that SQLite's paths name as they are; `dig` reads the others.
_PLAIN_KEY = re.compile(r"[ !#-\[\]-~]+\Z")
# The row of a fact has the number of its name in the upper bits of its key, the number of its node
# in the lower ones: the values of a fact are side by side, and no index is needed. Most nodes have
# the same value of most facts: `common` of its name has it, and their rows have none.
_BITS = 28
_NODE = str(2**_BITS - 1)
TABLES = """
CREATE TABLE IF NOT EXISTS nodes (
    id INTEGER PRIMARY KEY, certname TEXT NOT NULL UNIQUE, at REAL NOT NULL,
    timestamp TEXT NOT NULL, environment TEXT NOT NULL, roles TEXT NOT NULL, release TEXT,
    exports TEXT, catalog TEXT, resources INTEGER, kind INTEGER
) STRICT;
CREATE INDEX IF NOT EXISTS nodes_by_kind ON nodes (kind);
CREATE TABLE IF NOT EXISTS fact_names (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, common TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS fact_values (id INTEGER PRIMARY KEY, value TEXT) STRICT;
CREATE TABLE IF NOT EXISTS kinds (id INTEGER PRIMARY KEY, names TEXT NOT NULL UNIQUE) STRICT;
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
# A fact's value, from its row `v` and that of its name, `n`. It has the affinity of other sources
# of facts, or SQLite would not merge them.
_VALUE = "CAST(ifnull(v.value, n.common) AS TEXT)"
# The facts of the nodes in `live`, each with its name.
FACTS = (
    f"(SELECT certname, name, {_VALUE} AS value FROM fact_values v"  # noqa: S608
    f" JOIN live ON live.id = v.id & {_NODE} JOIN fact_names n ON n.id = v.id >> {_BITS})"
)
NAMES = ("nodes", "fact_names", "fact_values", "kinds", "classes", "servers")
# Equal rows stay: an entry mostly repeats the one before, and each of its facts is on another page.
_OF_NODE = {
    "nodes": f"REPLACE INTO main.nodes VALUES ({', '.join('?' * 11)})",  # noqa: S608
    "fact_values": "INSERT INTO main.fact_values VALUES (?, ?) ON CONFLICT (id)"
    " DO UPDATE SET value = excluded.value WHERE value IS NOT excluded.value",
    "classes": "INSERT OR IGNORE INTO main.classes VALUES (?, ?)",
    "servers": "INSERT INTO main.servers VALUES (?, ?, ?, ?)",
}
_IDS = "SELECT f.value{} FROM main.kinds k, json_each(k.names, '$.facts') f WHERE k.id ="
# The rows of a node that its next entry does not have; without one, `kind` is null.
_STALE = (
    f"DELETE FROM main.fact_values WHERE id IN ({_IDS.format(f' << {_BITS} | :node')} :before"  # noqa: S608
    f" AND :before IS NOT :kind AND f.value NOT IN ({_IDS.format('')} :kind))",
    "DELETE FROM main.classes WHERE node = :node"
    " AND title NOT IN (SELECT value FROM json_each(:classes))",
    "DELETE FROM main.servers WHERE node = :node",
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
        name = str(entry.node)
        own: dict[str, Json] = {"fqdn": name, "clientcert": name, TRUSTED: _trusted(name)}
        if entry.roles:
            own[ROLE] = entry.roles[0] if len(entry.roles) == 1 else list(entry.roles)
        texts = {**fact_texts(entry.facts), **fact_texts(own)}
        return cls(
            certname=name,
            at=entry.at,
            node=(
                show_epoch(min(max(entry.at, 0.0), LAST_TIME)),
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
    known = _known(connection, [entry.certname for entry in entries], schema)
    facts = _facts(connection, f"{schema}.fact_names", entries)
    rows: dict[str, list[tuple[object, ...]]] = {table: [] for table in _OF_NODE}
    stale: list[dict[str, object]] = []
    (last,) = connection.execute(f"SELECT ifnull(max(id), 0) FROM {schema}.nodes").fetchone()  # noqa: S608
    new = count(last + 1)
    kinds: dict[tuple[object, ...], int] = {}  # most nodes have the same names
    for entry in entries:
        found = [facts[name] for name, _ in entry.facts]
        names = (entry.legacy, *[key for key, _ in found])
        if names not in kinds:
            kinds[names] = _kind(connection, f"{schema}.kinds", names)
        number, before = known.get(entry.certname) or (next(new), None)
        classes = compact(entry.classes)
        stale.append({"node": number, "before": before, "kind": kinds[names], "classes": classes})
        rows["nodes"].append((number, entry.certname, entry.at, *entry.node, kinds[names]))
        rows["fact_values"] += [
            (key << _BITS | number, None if text == common else text)
            for (key, common), (_, text) in zip(found, entry.facts, strict=True)
        ]
        rows["classes"] += ((title, number) for title in entry.classes)
        rows["servers"] += ((role, number, *more) for role, *more in entry.servers)
    # In the order of the keys: a third faster.
    for table in ("fact_values", "classes"):
        rows[table].sort(key=itemgetter(0))
    for statement in _STALE if known else ():
        connection.executemany(statement.replace("main.", f"{schema}."), stale)
    for table, statement in _OF_NODE.items():
        connection.executemany(statement.replace("main.", f"{schema}."), rows[table])
    _remove_kinds(connection, {kind for _, kind in known.values()}, schema)


def _known(
    connection: sqlite3.Connection, names: Collection[str], schema: str = "main"
) -> dict[str, tuple[int, int | None]]:
    """Return the number and the kind of the nodes that have rows."""
    rows = connection.execute(
        f"SELECT certname, id, kind FROM {schema}.nodes"  # noqa: S608
        " WHERE certname IN (SELECT value FROM json_each(?))",
        (compact([*names]),),
    )
    return {name: (number, kind) for name, number, kind in rows}


def _facts(
    connection: sqlite3.Connection, table: str, entries: Collection[EntryRows]
) -> dict[str, tuple[int, str]]:
    """Return the number and the common value of facts by name; new ones are added."""
    find = f"SELECT id, common FROM {table} WHERE name = ?"  # noqa: S608
    names = {name for entry in entries for name, _ in entry.facts}
    known = {name: connection.execute(find, (name,)).fetchone() for name in names}
    new = {name for name in names if known[name] is None}
    values = Counter(pair for entry in entries if new for pair in entry.facts if pair[0] in new)
    most = {name: text for (name, text), _ in reversed(values.most_common())}
    add = f"INSERT INTO {table} (name, common) VALUES (?, ?) RETURNING id, common"  # noqa: S608
    return known | {
        name: connection.execute(add, (name, most[name])).fetchone() for name in sorted(new)
    }


def _kind(connection: sqlite3.Connection, table: str, names: Sequence[object]) -> int:
    """Return the number of what names a node's facts have: `_legacy`, and the published ones."""
    legacy, *facts = names
    text = f'{{"facts":{compact(facts)},"legacy":{legacy}}}'
    connection.execute(f"INSERT OR IGNORE INTO {table} (names) VALUES (?)", (text,))  # noqa: S608
    find = f"SELECT id FROM {table} WHERE names = ?"  # noqa: S608
    return int(connection.execute(find, (text,)).fetchone()[0])


def remove(connection: sqlite3.Connection, name: str) -> None:
    """Delete the rows of a node."""
    for number, kind in _known(connection, [name]).values():
        every = {"node": number, "before": kind, "kind": None, "classes": "[]"}
        for statement in (*_STALE, "DELETE FROM main.nodes WHERE id = :node"):
            connection.execute(statement, every)
        _remove_kinds(connection, {kind})


def _remove_kinds(
    connection: sqlite3.Connection, kinds: Collection[int | None], schema: str = "main"
) -> None:
    """Delete those that no node has any more, and names of facts that only they had."""
    unused = connection.execute(
        f"DELETE FROM {schema}.kinds WHERE id IN (SELECT value FROM json_each(?))"  # noqa: S608
        f" AND NOT EXISTS (SELECT 1 FROM {schema}.nodes WHERE kind = kinds.id) RETURNING names",
        (compact([*kinds]),),
    )
    connection.executemany(
        f"DELETE FROM {schema}.fact_names"  # noqa: S608
        " WHERE id IN (SELECT value FROM json_each(?, '$.facts')) AND NOT EXISTS"
        f" (SELECT 1 FROM {schema}.fact_values v WHERE v.id BETWEEN fact_names.id << {_BITS}"
        f" AND fact_names.id << {_BITS} | {_NODE})",
        unused.fetchall(),
    )


def attach(connection: sqlite3.Connection, oldest: float, own: EntryRows | None = None) -> None:
    """Define the names that queries use."""
    connection.create_function("interface_facts", 1, interface_facts, deterministic=True)
    connection.create_function("legacy_names", 1, legacy_names, deterministic=True)
    connection.create_function("dig", 2, _dig, deterministic=True)
    if own is not None:
        connection.execute("ATTACH ':memory:' AS own")
        connection.executescript(TABLES.replace("NOT EXISTS ", "NOT EXISTS own."))
        connection.execute("INSERT INTO own.fact_names SELECT * FROM main.fact_names")
        connection.execute("INSERT INTO own.kinds SELECT max(id), '' FROM main.kinds")
        connection.execute(
            "INSERT INTO own.nodes (id, certname, at, timestamp, environment, roles)"
            " VALUES (0, ?, 0, '', '', '')",
            (own.certname,),
        )
        write(connection, [own], "own")
        find = "SELECT id FROM main.nodes WHERE certname = ?"
        number = (connection.execute(find, (own.certname,)).fetchone() or (0,))[0]
        connection.execute("CREATE TEMP VIEW fact_names AS SELECT * FROM own.fact_names")
        connection.execute(
            "CREATE TEMP VIEW kinds AS SELECT * FROM main.kinds UNION ALL"
            " SELECT * FROM own.kinds WHERE names <> ''"
        )
        keys = {"nodes": "id", "fact_values": f"id & {_NODE}", "classes": "node", "servers": "node"}
        for table, key in keys.items():
            connection.execute(
                f"CREATE TEMP VIEW {table} AS SELECT * FROM main.{table}"  # noqa: S608
                f" WHERE {key} <> {number} UNION ALL SELECT * FROM own.{table}"
            )
    connection.execute(f"CREATE TEMP VIEW live AS SELECT * FROM nodes WHERE at >= {oldest!r}")  # noqa: S608


PUBLISHED_NAMES = "SELECT name FROM fact_names"


# The facts of all nodes as numbers by name and environment: most nodes have the same names.
FACT_COUNTS = (
    "WITH alike AS MATERIALIZED (SELECT min(live.id) AS id, environment, names, count(*) AS number"
    " FROM live CROSS JOIN kinds k ON k.id = kind GROUP BY environment, kind)"
    " SELECT environment, number, a.id, n.name FROM alike a CROSS JOIN json_each(names, '$.facts')"
    " f CROSS JOIN fact_names n ON n.id = f.value UNION SELECT environment, number, a.id, d.value"
    " FROM alike a CROSS JOIN json_each(legacy_names(names -> 'legacy')) d"
)
# The nodes of a part of these rows.
FACT_OWNERS = (
    "SELECT certname FROM live WHERE (environment, kind) IN"
    " (SELECT environment, kind FROM live WHERE id IN (SELECT r.id {}))"
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
    own = some.format("n.name") or (
        " AND n.id IN (SELECT f.value FROM kinds k CROSS JOIN json_each(k.names, '$.facts') f"  # noqa: S608
        f" WHERE k.id = {node}.kind)"
    )
    statements = [
        f"SELECT {head}n.name, {_VALUE} AS value FROM {source}fact_names n"  # noqa: S608
        f" CROSS JOIN fact_values v ON v.id = n.id << {_BITS} | {node}.id WHERE 1{own}"
    ]
    absent = f"NOT EXISTS (SELECT 1 FROM fact_values p WHERE p.id = {{}} << {_BITS} | {node}.id)"  # noqa: S608
    derived = derived_sql(names)
    if derived:
        numbered = (
            f"SELECT d.*, n.id, n.common, o.id AS own_id FROM ({derived}) d JOIN fact_names n"  # noqa: S608
            " ON n.name = d.origin LEFT JOIN fact_names o ON o.name = d.name"
        )
        statements.append(
            f"SELECT {head}CAST(n.name AS TEXT) AS name, CAST({_VALUE} -> n.path AS TEXT) AS value"  # noqa: S608
            f" FROM {source}({numbered}) n CROSS JOIN fact_values v"
            f" ON v.id = n.id << {_BITS} | {node}.id"
            f" WHERE json_type({_VALUE}, n.path) <> 'null' AND {absent.format('n.own_id')}"
        )
    if names is None or any(map(_LEGACY.match, names)):
        statements.append(
            f"SELECT {head}CAST(d.key AS TEXT) AS name, CAST(d.value AS TEXT) AS value"  # noqa: S608
            f" FROM {source}fact_values v CROSS JOIN json_each(interface_facts("
            f"ifnull(v.value, {_of_name('common', 'networking')}))) d"
            # IN, of one row: after a unique one, SQLite would sort those of all nodes together.
            f" WHERE v.id IN (SELECT {_of_name('id', 'networking')} << {_BITS} | {node}.id)"
            f" AND {absent.format('(SELECT id FROM fact_names WHERE name = d.key)')}"
            + some.format("d.key")
        )
    return statements


def _of_name(column: str, name: str) -> str:
    """Return an SQL expression for a column of a fact's name, which SQLite evaluates once."""
    return f"(SELECT {column} FROM fact_names WHERE name = {quoted(name)})"  # noqa: S608


def value_sql(name: str, node: str) -> str:
    """Return an SQL expression for a published fact of the node with a number, as JSON text."""
    return (
        f"(SELECT CAST(ifnull(value, {_of_name('common', name)}) AS TEXT) FROM fact_values"  # noqa: S608
        f" WHERE id = {_of_name('id', name)} << {_BITS} | {node})"
    )


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
        f" WHERE v.id BETWEEN n.id << {_BITS} AND n.id << {_BITS} | {_NODE})"
        " UNION SELECT d.value FROM (SELECT DISTINCT kind FROM live) CROSS JOIN kinds k"
        " ON k.id = kind CROSS JOIN json_each(legacy_names(k.names -> 'legacy')) d"
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
