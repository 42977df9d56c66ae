"""Requests of clients that are not packaged, recorded from their sources, and what they must get.

Each file of tests/data/puppetdb_clients/ has one client: its repository with the commit and the
file that sends the requests. A request has one of `get` and `post` with the path, and may have

- `query`, `form` (a form in the body), `json` (a JSON body) and `headers`: what is sent;
- `status`: the status code that the client expects, unless it is 200;
- `reads`: members that the client reads of each row;
- `certnames`: the sorted `certname` of all rows;
- `all`: members of every row; `has`: members of at least one row;
- `contains`: a row that is no object; `rows`: the number of rows.

The text `{hash}` is replaced by the hash of the last report of db01.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode, urlsplit

import yaml

from tests.rigs.node import PATIENCE, REPOSITORY

DIRECTORY = REPOSITORY / "tests" / "data" / "puppetdb_clients"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """A request of a client."""

    client: str
    purpose: str
    sent: dict[str, Any]

    def problems(self, api: str, hash_: str) -> list[str]:
        """Send the request; return what the client would miss in the answer."""
        status, answer = self._send(api, hash_)
        if status != self.sent.get("status", 200):
            return [f"{self}: status {status}: {answer}"]
        if status != 200:
            return [] if answer else [f"{self}: no reason"]
        rows = answer if isinstance(answer, list) else [answer]
        return [f"{self}: {problem}: {rows[:3]}" for problem in self._missing(rows)]

    def __str__(self) -> str:
        return f"{self.client}: {self.purpose}"

    def _send(self, api: str, hash_: str) -> tuple[int, Any]:
        method = "GET" if "get" in self.sent else "POST"
        path = self.sent[method.lower()]
        headers, body = dict(self.sent.get("headers", {})), None
        if query := self.sent.get("query"):
            path += f"?{urlencode(query)}"
        if form := self.sent.get("form"):
            headers, body = {**headers, **FORM}, urlencode(form)
        if "json" in self.sent:
            headers, body = {**headers, **JSON}, json.dumps(self.sent["json"])
        sent = body and body.replace("{hash}", hash_)
        return exchange(api, method, path.replace("{hash}", hash_), headers, sent)

    def _missing(self, rows: list[Any]) -> list[str]:
        sent = self.sent
        problems = []
        if lacks := {name for row in rows for name in sent.get("reads", ()) if name not in row}:
            problems.append(f"a row lacks {sorted(lacks)}")
        if "certnames" in sent and sorted(row["certname"] for row in rows) != sent["certnames"]:
            problems.append(f"not the nodes {sent['certnames']}")
        if "all" in sent and not all(sent["all"].items() <= row.items() for row in rows):
            problems.append(f"a row is not of {sent['all']}")
        if "has" in sent and not any(sent["has"].items() <= row.items() for row in rows):
            problems.append(f"no row has {sent['has']}")
        if "contains" in sent and sent["contains"] not in rows:
            problems.append(f"no {sent['contains']}")
        if "rows" in sent and len(rows) != sent["rows"]:
            problems.append(f"not {sent['rows']} rows")
        return problems


def exchange(
    api: str,
    method: str,
    path: str,
    headers: Mapping[str, str] = MappingProxyType({}),
    body: str | None = None,
) -> tuple[int, Any]:
    """Send a request; return the status code and the answer: JSON, or the text of an error."""
    connection = HTTPConnection(str(urlsplit(api).netloc), timeout=PATIENCE)
    try:
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        text = answer.read().decode()
        return answer.status, json.loads(text) if answer.status == 200 else text
    finally:
        connection.close()


def recorded() -> list[RecordedRequest]:
    """Return the requests of all clients."""
    files = [yaml.safe_load(path.read_text()) for path in sorted(DIRECTORY.glob("*.yaml"))]
    return [
        RecordedRequest(client=file["client"], purpose=sent.pop("purpose"), sent=sent)
        for file in files
        for sent in file["requests"]
    ]
