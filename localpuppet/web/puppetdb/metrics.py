"""Metrics of the population, in the forms of PuppetDB's `/metrics/v2` (Jolokia) and `/metrics/v1`.

- Nodes and resources are those that queries count.
- There is no `pct-resource-dupes`, because nodes do not publish whole catalogs, and nothing about a
  Java virtual machine or a database. A client gets an error instead of an invented number.
- An MBean that does not exist is an error in the body, with status 200, as in Jolokia.
"""

import re
from collections.abc import Mapping

from localpuppet.base.formats.strict_json import loads_again
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query.compiling import COUNT
from localpuppet.fleet.inventory.query.evaluating import Evaluation
from localpuppet.fleet.inventory.query.tree import Entity, Select

_ESCAPED = re.compile(r"!(.)")
_DOMAIN = "puppetlabs.puppetdb.population"
MBeans = Mapping[str, Mapping[str, Json]]


def population(evaluation: Evaluation) -> MBeans:
    """Return the MBeans of a population by name."""
    nodes, resources = (
        loads_again(row.encode())["count"]
        for entity in (Entity.INVENTORY, Entity.RESOURCES)
        for row in evaluation.stream(Select(entity=entity, columns=(COUNT,))).rows
    )
    values: dict[str, Json] = {
        "num-nodes": nodes,
        "num-active-nodes": nodes,
        "num-inactive-nodes": 0,
        "num-resources": resources,
        "avg-resources-per-node": resources / nodes if nodes else 0,
    }
    return {f"{_DOMAIN}:name={name}": {"Value": value} for name, value in values.items()}


def read(mbeans: MBeans, path: str, now: float) -> dict[str, Json]:
    """Return the answer to `/metrics/v2/read/PATH`; `!` escapes a character in the MBean's name."""
    name, _, attribute = _ESCAPED.sub(r"\1", path).partition("/")
    request: dict[str, Json] = {"mbean": name, "type": "read"}
    attributes = mbeans.get(name)
    if attribute:
        request["attribute"] = attribute
    if attributes is None or (attribute and attribute not in attributes):
        kind = "javax.management.InstanceNotFoundException"
        error = f"{kind} : {name}"
        return {"request": request, "error_type": kind, "error": error, "status": 404}
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
    request: Json = {"type": "list"}
    return {"request": request, "value": domains, "timestamp": int(now), "status": 200}
