"""Where a run came from, and what it asked other nodes, as it may leave the node with its report.

- Texts of queries are those that the inventory entry publishes to every node; of answers only names
  and numbers leave the node, and no parameter of a collected resource.
- URLs lose their login and query.
"""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json, mapping_of
from localpuppet.node.runs.listed import read_listed
from localpuppet.node.runs.log_end import weight
from localpuppet.node.runs.query_record import RecordedQuery, read_queries
from localpuppet.node.runs.records import RunDirectory

# Bytes as JSON of each list, names of an answer, and characters of a text.
MAX_LIST = 8 * 1024
MAX_NAMES = 20
MAX_TEXT = 1000


def run_context(run: RunDirectory) -> dict[str, Json]:
    """Return the origin of a run, its causes, and its queries.

    Returns:
        `origin`: the source of its input (`input`), its `input_sha256`, and `by`: who assigned the
        release, empty if the input names it; `causes`: each with `kind`, `sender`, `path` (the
        nodes along which it came) and `tags`; `cause_count`: the number of all; `queries` and
        `collected`: each with `text`, `count`, `names` (the first), `age` in seconds and the
        `reason` of a missing answer. Each list is cut to its limit.
    """
    request = _read_request(run)
    causes = mapping_of(request.get("causes"))
    listed = causes.get("causes")
    spelt = (
        [_cause(item) for item in listed if isinstance(item, dict)]
        if isinstance(listed, list)
        else []
    )
    return {
        "origin": {
            "input": _place(_text(request.get("input"))),
            "input_sha256": _text(request.get("input_sha256")),
            "by": _text(mapping_of(request.get("assignment")).get("by")),
        },
        "causes": fitting(spelt),
        "cause_count": causes.get("count", len(spelt)),
        "queries": fitting(map(_query, read_queries(run))),
        "collected": fitting(read_listed(run.collected, "collectors", _collected)),
    }


def _read_request(run: RunDirectory) -> Mapping[str, Any]:
    try:
        return run.read_request()
    except FileNotFoundError:
        return {}


def _place(text: str) -> str:
    """Return a path, or a URL without the parts that may be secret."""
    if not text.startswith("https://"):
        return text
    try:
        parts = urlsplit(text)
    except ValueError:
        return "https"
    return f"https://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _cause(raw: Mapping[str, Any]) -> dict[str, Json]:
    return {
        "kind": _text(raw.get("kind")),
        "sender": _text(raw.get("sender")),
        "path": [_text(node) for node in raw.get("path") or ()],
        "tags": [_text(tag) for tag in raw.get("tags") or ()],
    }


def _query(query: RecordedQuery) -> dict[str, Json]:
    return {
        "text": _text(query.text),
        "count": len(query.names),
        "names": list(query.names[:MAX_NAMES]),
        "age": query.age,
        "reason": _text(query.reason),
    }


def _collected(raw: object) -> dict[str, Json]:
    record: Mapping[str, Any] = mapping_of(raw)
    resources = [
        resource for resource in record.get("resources") or () if isinstance(resource, dict)
    ]
    names: dict[Json, None] = dict.fromkeys(_text(resource.get("node")) for resource in resources)
    return {
        "text": _text(record.get("text")),
        "count": len(resources),
        "names": list(names)[:MAX_NAMES],
        "age": record.get("age"),
        "reason": _text(record.get("reason")),
    }


def fitting(entries: Iterable[dict[str, Json]]) -> list[Json]:
    """Return the first entries, up to the size limit."""
    fitting_items: list[Json] = []
    size = 0
    for entry in entries:
        size += weight(entry)
        if size > MAX_LIST:
            break
        fitting_items.append(entry)
    return fitting_items


def _text(value: Any) -> str:  # noqa: ANN401 - of a file
    return one_line(str(value)[:MAX_TEXT]) if value is not None else ""
