"""Metrics in the forms of PuppetDB's `/metrics/v2` (Jolokia) and `/metrics/v1`.

- An MBean that does not exist is an error in the body, with status 200, as in Jolokia.
"""

import re
from collections.abc import Mapping

from localpuppet.base.formats.values import Json

_ESCAPED = re.compile(r"!(.)")
MBeans = Mapping[str, Mapping[str, Json]]


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
