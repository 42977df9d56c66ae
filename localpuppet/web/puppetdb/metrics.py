"""Metrics of the population, in the forms of PuppetDB's `/metrics/v2` (Jolokia) and `/metrics/v1`.

- `num-resources` counts the resources that the newest runs report, and `avg-resources-per-node`
  divides it by the nodes with such a run.
- There is no `pct-resource-dupes`, because nodes do not publish whole catalogs, and nothing about a
  Java virtual machine or a database. A client gets an error instead of an invented number.
- An MBean that does not exist is an error in the body, with status 200, as in Jolokia.
"""

import re
from collections.abc import Collection, Mapping

from localpuppet.base.formats.values import Json
from localpuppet.base.machine.sqlite import Connection
from localpuppet.web.dashboard.tables.run_queries import resource_totals

_ESCAPED = re.compile(r"!(.)")
_DOMAIN = "puppetlabs.puppetdb.population"
MBeans = Mapping[str, Mapping[str, Json]]


def population(connection: Connection, nodes: Collection[str]) -> MBeans:
    """Return the MBeans of a population by name.

    Args:
        connection: A snapshot of the dashboard's memory.
        nodes: The names of the nodes in the inventory.
    """
    totals = resource_totals(connection, nodes)
    values: dict[str, Json] = {
        "num-nodes": len(nodes),
        "num-active-nodes": len(nodes),
        "num-inactive-nodes": 0,
        "num-resources": sum(totals),
        "avg-resources-per-node": sum(totals) / len(totals) if totals else 0,
    }
    return {f"{_DOMAIN}:name={name}": {"Value": value} for name, value in values.items()}


def read(mbeans: MBeans, path: str, now: float) -> dict[str, Json]:
    """Return the answer to `/metrics/v2/read/PATH`.

    Args:
        path: The name of an MBean, and perhaps one of its attributes; `!` escapes a character.
        now: Seconds since 1970, UTC.
    """
    name, _, attribute = _ESCAPED.sub(r"\1", path).partition("/")
    request: dict[str, Json] = {"mbean": name, "type": "read"}
    attributes = mbeans.get(name)
    if attribute:
        request["attribute"] = attribute
    if attributes is None or (attribute and attribute not in attributes):
        kind = "javax.management.InstanceNotFoundException"
        return {
            "request": request,
            "error_type": kind,
            "error": f"{kind} : {name}",
            "status": 404,
        }
    value: Json = attributes[attribute] if attribute else dict(attributes)
    return {"request": request, "value": value, "timestamp": int(now), "status": 200}


def listed(mbeans: MBeans, now: float) -> dict[str, Json]:
    """Return the answer to `/metrics/v2/list`: domain → properties → attributes."""
    domains: dict[str, Json] = {}
    for name, attributes in mbeans.items():
        domain, _, properties = name.partition(":")
        described: Json = {
            attribute: {"rw": False, "type": "java.lang.Object"} for attribute in attributes
        }
        inner = domains.setdefault(domain, {})
        if isinstance(inner, dict):
            inner[properties] = {"attr": described}
    return {
        "request": {"type": "list"},
        "value": domains,
        "timestamp": int(now),
        "status": 200,
    }
