"""A fleet and queries that `puppetdb.py` gives to PuppetDB and to us."""

from collections.abc import Sequence

from localpuppet.base.formats.names import ClassName, EnvironmentName, NodeName, RunId
from localpuppet.base.formats.values import Json
from localpuppet.fleet.exports.resource import ExportedResource
from localpuppet.fleet.inventory.entry import NO_EXPORTS, ExportsSummary, InventoryEntry
from localpuppet.fleet.inventory.tables import capitalized
from localpuppet.node.puppet.catalog import CanonicalCatalog, CatalogEdge, CatalogResource

_ROLES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("web", ("apache", "profile::web")),
    ("db", ("postgresql::server", "profile::db")),
    ("lb", ("haproxy", "profile::loadbalancer")),
    ("", ("ntp",)),
)
_RUN = RunId("20261122T040000.000000Z-abcd")


def fleet(count: int) -> list[InventoryEntry]:
    """Return nodes, sorted by name."""
    return [_node(number) for number in range(1, count + 1)]


def _node(number: int) -> InventoryEntry:
    role, classes = _ROLES[number % len(_ROLES)]
    name = f"n{number:02}.example.com"
    debian = number % 3 != 0
    facts: dict[str, Json] = {
        "kernel": "Linux",
        "is_virtual": number % 2 == 0,
        "os": {
            "family": "Debian" if debian else "RedHat",
            "name": "Debian" if debian else "CentOS",
            "release": {"full": "12.11" if debian else "9", "major": "12" if debian else "9"},
        },
        "networking": {
            "hostname": name.partition(".")[0],
            "domain": "example.com",
            "fqdn": name,
            "ip": f"10.0.0.{number}",
            "interfaces": {
                "eth0": {"ip": f"10.0.0.{number}", "mac": f"aa:00:00:00:00:{number:02}"},
                **({"eth1": {"ip": f"192.168.0.{number}"}} if number % 4 == 1 else {}),
                "lo": {"ip": "127.0.0.1"},
            },
        },
        "processors": {"count": number, "models": ["Intel", "Intel" if debian else "AMD"]},
        "uptime": f"{number} days",
        "load": number + 0.5,
        "nested.name": {"a.b": number},
    }
    if number % 5 == 0:
        facts["cluster"] = "blue"
        facts["tags"] = ["x", "y"]
    return InventoryEntry(
        node=NodeName(name),
        at=1_795_000_000.0 + number,
        run=_RUN,
        release="foo/tags/r1",
        environment=EnvironmentName("production" if number % 6 else "testing"),
        facts=facts,
        roles=(role,) if role else (),
        classes=tuple(ClassName(one) for one in ("settings", *classes)),
        exports=ExportsSummary(count=2, digest="0" * 64) if role == "web" else NO_EXPORTS,
    )


def exports_of(entry: InventoryEntry) -> list[ExportedResource]:
    """Return what a node exports: a web server has a balancer member and a key."""
    if entry.exports.digest is None:
        return []
    name, ip = str(entry.node), str(entry.facts["networking"]["ip"])  # type: ignore[index, call-overload]
    member: dict[str, Json] = {
        "ipaddresses": [ip],
        "ports": 80,
        "options": "check",
        "backup": name < "n05",
    }
    place = {"file": "/etc/puppet/modules/web/manifests/init.pp", "line": 7}
    return [
        ExportedResource(
            type="Haproxy::Balancermember",
            title=f"member {name}",
            tags=("balancermember", "haproxy", "haproxy::balancermember", "www"),
            parameters=member,
            **place,  # type: ignore[arg-type]
        ),
        ExportedResource(
            type="Sshkey",
            title=name,
            tags=("ssh", "sshkey"),
            parameters={"key": "AAAA", "host_aliases": [ip, name.partition(".")[0]]},
            **place,  # type: ignore[arg-type]
        ),
    ]


def catalog_of(
    entry: InventoryEntry, exported: Sequence[ExportedResource] | None = None
) -> CanonicalCatalog:
    """Return a node's catalog: its classes, two files, a service, and what it exports."""
    classes = sorted(capitalized(name) for name in entry.classes)
    files = [
        _resource("File", f"/etc/shop/{line}.conf", line, ensure="file", content=f"line {line}")
        for line in (1, 2)
    ]
    resources = [
        *(_resource("Class", name) for name in classes),
        _resource("Stage", "main"),
        *files,
        _resource("Service", "sshd", 5, ensure="running", subscribe="File[/etc/shop/1.conf]"),
        *(
            CatalogResource(
                type=one.type,
                title=one.title,
                exported=True,
                file=one.file,
                line=one.line,
                tags=one.tags,
                parameters=one.parameters,
            )
            for one in (exports_of(entry) if exported is None else exported)
        ),
    ]
    edges = [
        *(_edge("Stage", "main", "Class", name, "contains") for name in classes),
        *(
            _edge("Class", name, "File", file.title, "contains")
            for name in classes[:1]
            for file in files
        ),
        _edge("File", files[0].title, "Service", "sshd", "subscription-of"),
    ]
    return CanonicalCatalog(
        certname=str(entry.node),
        environment=str(entry.environment),
        classes=tuple(map(str, sorted(entry.classes))),
        resources=tuple(sorted(resources, key=lambda one: (one.type, one.title))),
        edges=tuple(sorted(edges)),
    )


def _edge(*words: str) -> CatalogEdge:
    return CatalogEdge(**dict(zip(CatalogEdge.__slots__, words, strict=True)))


def _resource(
    type_: str, title: str, line: int | None = None, **parameters: Json
) -> CatalogResource:
    return CatalogResource(
        type=type_,
        title=title,
        exported=False,
        file=None if line is None else "modules/profile/manifests/shop.pp",
        line=line,
        tags=tuple(sorted({type_.lower(), *([] if "/" in title else title.lower().split("::"))})),
        parameters=parameters,
    )


QUERIES: tuple[Json, ...] = (
    # entities, whole and projected
    "nodes[certname] { }",
    "nodes { }",
    "inventory[certname] { }",
    "inventory[certname, facts.os.family] { }",
    "inventory[facts.networking.ip, trusted.certname] { certname = 'n01.example.com' }",
    "inventory { certname = 'n03.example.com' }",
    "facts { certname = 'n01.example.com' and name = 'kernel' }",
    "facts[certname, value] { name = 'osfamily' }",
    "fact_contents { certname = 'n01.example.com' and name = 'os' }",
    "resources[certname, title] { type = 'Class' }",
    "resources[certname, type, title, exported, environment] { type = 'Class' and title ~ '::' }",
    # equality
    'inventory[certname] { facts.role = "web" }',
    "inventory[certname] { facts.role != 'web' }",
    "inventory[certname] { facts.os.family = 'Debian' }",
    "inventory[certname] { ! (facts.cluster = 'blue') }",
    "inventory[certname] { facts.cluster != 'blue' }",
    "inventory[certname] { facts.processors.count = 4 }",
    "inventory[certname] { facts.processors.count = '4' }",
    "inventory[certname] { facts.is_virtual = true }",
    "inventory[certname] { facts.is_virtual = 'true' }",
    "inventory[certname] { facts.load = 4.5 }",
    "inventory[certname] { facts.tags = ['x', 'y'] }",
    "inventory[certname] { facts.tags = ['x'] }",
    "inventory[certname] { facts.tags = 'x' }",
    "inventory[certname] { facts.tags[0] = 'x' }",
    "inventory[certname] { ! (facts.tags[0] = 'y') }",
    "inventory[certname] { facts.processors.models[1] = 'AMD' }",
    'inventory[certname] { facts."nested.name"."a.b" = 3 }',
    "inventory[certname] { trusted.certname = 'n02.example.com' }",
    "inventory[certname] { trusted.domain = 'example.com' and environment = 'testing' }",
    # order
    "inventory[certname] { facts.processors.count > 4 }",
    "inventory[certname] { facts.processors.count >= 4 and facts.processors.count <= 6 }",
    "inventory[certname] { facts.processors.count < 2.5 }",
    "inventory[certname] { ! (facts.processors.count > 4) }",
    "inventory[certname] { facts.load > 10 }",
    "inventory[certname] { facts.nosuch > 1 }",
    "inventory[certname] { ! (facts.nosuch > 1) }",
    "facts[certname] { name = 'load' and value > 10 }",
    "fact_contents[certname] { name = 'processors' and value >= 11 }",
    # regular expressions
    "nodes[certname] { certname ~ '^n0[1-3]' }",
    "nodes[certname] { certname !~ '^n0[1-3]' }",
    "inventory[certname] { facts.os.release.full ~ '^1' }",
    "inventory[certname] { facts.os.release.full !~ '^1' }",
    "inventory[certname] { facts.cluster ~ 'b' }",
    "inventory[certname] { facts.cluster !~ 'b' }",
    "inventory[certname] { facts.processors.count ~ '^1' }",
    "inventory[certname] { facts.is_virtual ~ 'tr' }",
    "facts[certname, value] { name ~ 'ipaddress' and value ~ '^192' }",
    "fact_contents[certname, value] { path ~> ['networking', 'interfaces', '.*', 'mac'] }",
    "fact_contents[certname] { path ~> ['networking', 'interfaces', 'eth', 'ip'] }",
    "fact_contents[certname] { path ~> ['processors', 'models', '.*'] and value = 'AMD' }",
    "fact_contents[certname, value] { path = ['os', 'family'] }",
    "fact_contents[certname, value] { path = ['processors', 'models', 0] }",
    # null
    "nodes[certname] { deactivated is null and expired is null }",
    "nodes[certname] { deactivated is not null }",
    "inventory[certname] { facts.cluster is null }",
    "inventory[certname] { facts.cluster is not null }",
    "inventory[certname] { facts.os.nosuch is null }",
    # in, subqueries, nesting
    "nodes[certname] { certname in ['n01.example.com', 'n02.example.com', 'zz'] }",
    "facts[certname, name] { name in ['kernel', 'osfamily'] and certname ~ 'n01' }",
    "nodes[certname] { certname in resources[certname] { type = 'Class' and title = 'Apache' } }",
    "nodes[certname] { resources { type = 'Class' and title = 'Apache' } }",
    "nodes[certname] { ! resources { type = 'Class' and title = 'Apache' } }",
    "inventory[certname] { resources { type = 'Class' and title ~ 'Profile' } and facts.load < 5 }",
    "facts[certname] { name = 'ipaddress' and resources { type = 'Class' and title = 'Ntp' } }",
    "facts[certname, value] { name = 'fqdn' and inventory { facts.role = 'db' } }",
    "facts[certname, name] { fact_contents { path ~> ['networking', '.*', 'eth1', 'ip'] } }",
    "nodes[certname] { facts { name = 'cluster' and value = 'blue' } }",
    "nodes[certname] { certname in facts[certname] { name = 'osfamily' and value = 'RedHat' }"
    " and (certname ~ '3' or ! certname ~ '^n0') }",
    "inventory[certname] { [certname] in nodes[certname] { certname ~ '1' } }",
    # order, pages, counts
    "nodes[certname] { order by certname desc limit 3 }",
    "nodes[certname] { order by certname limit 2 offset 4 }",
    "facts[certname, value] { name = 'uptime' order by certname desc limit 2 }",
    "nodes[count()] { }",
    "nodes[count()] { certname = 'zz' }",
    "facts[name, count()] { name ~ '^(os|cluster)' group by name }",
    "facts[value, count()] { name = 'osfamily' group by value }",
    "inventory[environment, count()] { group by environment }",
    "resources[title, count()] { type = 'Class' group by title }",
    "nodes[certname] { facts_environment = 'testing' }",
    # arrays
    ["from", "nodes", ["=", ["node", "active"], True]],
    ["from", "nodes", ["extract", "certname", ["=", ["fact", "osfamily"], "Debian"]]],
    ["from", "nodes", ["extract", "certname", [">", ["fact", "load"], 8]]],
    ["from", "nodes", ["extract", ["certname"], ["null?", "deactivated", True]]],
    [
        "from",
        "nodes",
        ["extract", ["certname"], ["in", "certname", ["array", ["n01.example.com"]]]],
    ],
    [
        "from",
        "facts",
        [
            "extract",
            ["certname", "value"],
            [
                "and",
                ["=", "name", "ipaddress"],
                [
                    "in",
                    "certname",
                    [
                        "extract",
                        "certname",
                        [
                            "select_resources",
                            ["and", ["=", "type", "Class"], ["=", "title", "Haproxy"]],
                        ],
                    ],
                ],
            ],
        ],
    ],
    [
        "from",
        "inventory",
        ["extract", ["certname", "facts.uptime"], ["or", ["=", "facts.role", "lb"]]],
        ["order_by", [["certname", "desc"]]],
        ["limit", 2],
    ],
    [
        "from",
        "nodes",
        ["in", "certname", ["from", "facts", ["extract", "certname", ["=", "name", "cluster"]]]],
    ],
    [
        "from",
        "facts",
        ["extract", [["function", "count"], "name"], ["=", "name", "os"], ["group_by", "name"]],
    ],
    ["from", "nodes", ["extract", "certname", ["subquery", "facts", ["=", "value", "blue"]]]],
    [
        "from",
        "nodes",
        ["extract", "certname", ["in", ["fact", "cluster"], ["array", ["blue", "red"]]]],
    ],
    # exported resources
    "resources[certname, type, title] { exported = true }",
    "resources { exported = true and type = 'Sshkey' }",
    "resources[certname, parameters] { exported = true and type = 'Haproxy::Balancermember' }",
    "resources[certname, parameters.options] { exported = true and parameters.ports = 80 }",
    "resources[title] { exported = true and parameters.ports = '80' }",
    "resources[title] { exported = true and parameters.backup = true }",
    "resources[title] { exported = true and parameters.ipaddresses = ['10.0.0.4'] }",
    "resources[title] { exported = true and parameters.host_aliases = ['10.0.0.4'] }",
    "resources[title] { exported = true and parameters.nosuch = 1 }",
    "resources[title] { exported = true and ! (parameters.ports = 80) }",
    "resources[title] { exported = true and tag = 'WWW' }",
    "resources[title] { exported = true and tag ~ '^ss' }",
    "resources[title] { exported = true and ! (tag = 'www') }",
    "resources[title, line] { exported = true and file ~ 'web' and line > 6 }",
    "resources[type, count()] { exported = true group by type }",
    "resources[title] { (type = 'Class' and title = 'Apache') or exported = true }",
    "nodes[certname] { resources { type = 'Sshkey' and exported = true } }",
    "nodes[certname] { ! resources { exported = true } }",
    [
        "from",
        "resources",
        [
            "extract",
            ["certname", "tags"],
            ["and", ["=", "exported", True], ["=", ["parameter", "options"], "check"]],
        ],
    ],
    [
        "from",
        "resources",
        [
            "extract",
            "title",
            ["and", ["=", "exported", True], ["=", ["parameter", "host_aliases"], ["10.0.0.4"]]],
        ],
    ],
    # entities whose rows are different values, and fact sets
    "environments { }",
    "environments { name ~ '^t' }",
    "environments { facts { name = 'cluster' and value = 'blue' } }",
    "fact_paths { name = 'processors' }",
    "fact_paths[path, type] { path ~> ['networking', '.*'] }",
    "fact_paths[type] { path = ['load'] }",
    "fact_paths { depth = 2 and name = 'os' }",
    "factsets[certname, environment] { certname ~ '1' }",
    # functions over the rows of a group
    "facts[count(), sum(value), avg(value), min(value), max(value)] { name = 'load' }",
    "facts[sum(value), avg(value)] { name = 'nosuch' }",
    "facts[certname, max(value)] { name = 'load' group by certname }",
    "nodes[facts_environment, count()] { group by facts_environment }",
    "nodes[min(certname)] { }",
    # times
    "nodes[certname] { facts_timestamp > '2026-11-01T05:00:00+02:00' }",
    "nodes[certname] { facts_timestamp <= '2020-01-01' }",
    "inventory[certname] { timestamp >= '2026-11-01 04:00:00' }",
    "inventory[certname] { ! (timestamp < '2026-11') }",
    ["from", "nodes", ["extract", "certname", [">", "facts_timestamp", 1_700_000_000_000]]],
    # forms of the array
    ["from", "nodes", ["extract", "certname", ["=", "node_state", "active"]]],
    ["from", "nodes", ["extract", "certname", ["=", "node_state", "inactive"]]],
    ["from", "nodes", ["extract", "certname", ["=", "deactivated", None]]],
    [
        "from",
        "resources",
        ["extract", ["certname", "title"], ["and", ["=", "exported", True], ["~", "tags", "^c"]]],
    ],
    [
        "from",
        "resources",
        ["extract", ["certname", "title"], ["and", ["=", "exported", True], ["=", "tags", "C"]]],
    ],
    [
        "from",
        "facts",
        ["extract", [["function", "count"], "name"], ["~", "name", "^n"], ["group_by", "name"]],
        ["order_by", ["name"]],
    ],
    [
        "from",
        "nodes",
        [
            "extract",
            "certname",
            [
                "in",
                ["certname"],
                ["extract", "certname", ["select_fact_contents", [">", "value", 10]]],
            ],
        ],
    ],
    ["from", "nodes", ["extract", "certname", ["in", ["fact", "cluster"], ["array", ["blue"]]]]],
)
