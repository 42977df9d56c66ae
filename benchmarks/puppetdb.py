"""Compare the answers of localpuppet's PuppetDB API with those of a real PuppetDB: same nodes.

Starts PuppetDB (`puppetdb_server.py` says what that needs) and `localpuppet web --puppetdb`, loads
the same simulated nodes into both, sends both the requests of `puppetdb_requests.py`, and prints a
table with the reasons of `EXPECTED` for those that differ. Exit code 1: another one differs.

    benchmarks/puppetdb.py [--nodes 12] [--differences] [--record FILE | --recorded FILE]
"""

import argparse
import http.client
import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the rigs of the tests

from puppetdb_fleet import FleetNode, serving
from puppetdb_queries import catalog_of, fleet
from puppetdb_requests import Request, get, order, requests
from puppetdb_runs import history_of, report_of, stamp
from puppetdb_server import running

from localpuppet.base.formats.values import Json

PATIENCE = 120.0
UNEXPECTED = "≠"
DAY = 86400.0
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
# Characters of a difference that are printed.
SHOWN = 1200
# Columns that cannot be equal: times of receipt, hashes and ids that PuppetDB makes, and what run
# summaries do not have.
SPARE = frozenset(
    {
        *("timestamp", "facts_timestamp", "catalog_timestamp", "receive_time", "resource"),
        *("transaction_uuid", "catalog_uuid", "latest_report_hash", "report", "href", "hash"),
        *("report_receive_time", "run_start_time", "producer_timestamp", "puppet_version"),
        *("containment_path", "logs"),
        *("corrective_change", "latest_report_corrective_change"),
    }
)
# Requests that are answered differently, as regular expressions, and why.
EXPECTED = (
    (r"facts\.\S+ is null", "PuppetDB 7.12 finds nothing; later versions answer as localpuppet"),
    (r"meta/v1/version", "the version of the API, which clients check"),
    (r"order by count\(\)", "PuppetDB has no order by a function"),
    (r'"function", "nosuch"', "PuppetDB fails with an internal error"),
    (r'\["certname", "name"\], \["array"', "both fail; PuppetDB with an internal error"),
    (r"^/nosuch|/nodes/a/b/c|pdb/nosuch", "PuppetDB redirects to its own page"),
    (r'"?corrective_change"?\W', "PuppetDB keeps it in Puppet Enterprise only"),
    (r"^/catalogs/\S+/edges", "PuppetDB 7.12 returns the edges of all nodes"),
    (r"distinct_resources", "not supported"),
    (r"^/reports/[0-9a-f]\w+/events", "Debian's PuppetDB fails here"),
    (r"^/reports/[0-9a-f]\w+/logs", "logs come from the node, which does not run here"),
)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer.

    Attributes:
        status: Its status.
        total: The header `X-Records`.
        body: JSON, or the text of an error.
    """

    status: int
    total: str | None
    body: Json

    def __str__(self) -> str:
        if self.status != 200:
            return str(self.status)
        return str(len(self.body)) if isinstance(self.body, list) else "1"


class Client:
    """A client of one of the servers."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)

    def send(self, request: Request) -> Answer:
        """Send a request, and return the answer."""
        if (body := request.body) is not None:
            headers = {"Content-Type": "application/json"}
            self._connection.request("POST", request.path, body, headers)
        else:
            self._connection.request("GET", request.target)
        response = self._connection.getresponse()
        text = response.read().decode()
        kind = response.getheader("Content-Type", "")
        parsed: Json = json.loads(text) if "json" in kind else text
        return Answer(status=response.status, total=response.getheader("X-Records"), body=parsed)

    def until(self, nodes: int) -> None:
        """Wait until the server has the reports of all nodes."""
        end = time.monotonic() + PATIENCE
        wanted = get("", "nodes[count()] { report_timestamp is not null }")
        while time.monotonic() < end:
            try:
                if self.send(wanted).body == [{"count": nodes}]:
                    return
            except OSError:
                self._connection.close()
            time.sleep(0.5)
        raise SystemExit("localpuppet web does not have the nodes")


def normal(body: Json) -> Json:
    """Return a body without what cannot be equal, and lists without order in an order."""
    if isinstance(body, list):
        parts = [normal(part) for part in body]
        return sorted(parts, key=lambda part: json.dumps(part, sort_keys=True))
    if isinstance(body, dict):
        return {
            key: normal(value or [] if key == "data" else value)
            for key, value in body.items()
            if key not in SPARE and key != "trusted"
        }
    return body


def same(request: Request, theirs: Answer, mine: Answer) -> bool:
    """Whether both answers mean the same; of errors the status counts."""
    if theirs.status != mine.status or theirs.total != mine.total:
        return False
    if mine.status != 200:
        return True
    if request.is_ordered and isinstance(theirs.body, list) and isinstance(mine.body, list):
        return [*map(normal, theirs.body)] == [*map(normal, mine.body)]
    return normal(theirs.body) == normal(mine.body)


def newest_failed(client: Client) -> str:
    """Return the hash of the newest report of a failed run."""
    failed = get("/reports", ["=", "status", "failed"], order_by=order("-end_time"), limit=1)
    rows = client.send(failed).body
    assert isinstance(rows, list) and isinstance(rows[0], dict), rows
    return str(rows[0]["hash"])


def members_of(count: int, now: float) -> list[FleetNode]:
    """Return nodes and their runs."""
    return [
        FleetNode(entry=entry, runs=tuple(history_of(number, now)))
        for number, entry in enumerate(fleet(count), 1)
    ]


def record(members: Sequence[FleetNode], now: float, file: Path) -> None:
    """Start PuppetDB, load nodes, and write its answers to a file, one in a line."""
    with running() as server, file.open("w") as out:
        for member in members:
            server.load(member.entry, catalog_of(member.entry))
            for run in member.runs:
                server.store_report(report_of(str(member.entry.node), run))
        client = Client(server.port)
        chosen = newest_failed(client)
        print(json.dumps({"now": now, "report": chosen}), file=out)
        for request in requests(chosen):
            row = {"request": asdict(request), "answer": asdict(client.send(request))}
            print(json.dumps(row), file=out)


@dataclass(frozen=True)
class Recorded:
    """Answers of PuppetDB, as if it had given them now.

    Attributes:
        report: The hash of the report that requests name.
        answers: The answers by request.
    """

    report: str
    answers: list[tuple[Request, Answer]]

    @classmethod
    def read(cls, file: Path, now: float) -> "Recorded":
        """Read a file of `record`, and move the times of its runs."""
        head, *lines = file.read_text().splitlines()
        begun = json.loads(head)["now"]

        def moved(found: re.Match[str]) -> str:
            at = datetime.fromisoformat(found[0]).timestamp()
            return stamp(at + now - begun) if begun - 2 * DAY < at <= begun else found[0]

        rows = [json.loads(_TIME.sub(moved, line)) for line in lines]
        answers = [(Request(**row["request"]), Answer(**row["answer"])) for row in rows]
        return cls(json.loads(head)["report"], answers)


def main() -> None:
    """Compare, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=12, help="how many nodes [12]")
    parser.add_argument("--differences", action="store_true", help="print the answers that differ")
    parser.add_argument("--record", type=Path, help="write PuppetDB's answers to a file")
    parser.add_argument("--recorded", type=Path, help="compare with the answers in a file")
    chosen = parser.parse_args()
    now = float(int(time.time()))
    members = members_of(chosen.nodes, now)
    with tempfile.NamedTemporaryFile() as file:
        path = chosen.recorded or chosen.record or Path(file.name)
        if not chosen.recorded:
            record(members, now, path)
        found = Recorded.read(path, now)
    with tempfile.TemporaryDirectory() as directory, serving(Path(directory), members) as port:
        client = Client(port)
        client.until(chosen.nodes)
        compare(found, client, differences=chosen.differences)


def only(body: Json, other: Json) -> str:
    """Return the rows of a body that another one does not have, or the whole body."""
    mine, theirs = normal(body), normal(other)
    if isinstance(mine, list) and isinstance(theirs, list):
        return json.dumps([row for row in mine if row not in theirs])
    return json.dumps(mine)


def compare(recorded: Recorded, client: Client, *, differences: bool) -> None:
    """Print a table of PuppetDB's answers and those of localpuppet."""
    print("| request | PuppetDB | localpuppet | difference |\n|---|---|---|---|")
    unexpected = equal = 0
    own = newest_failed(client)  # the hash is not PuppetDB's
    for request, theirs in recorded.answers:
        asked = json.dumps(asdict(request)).replace(recorded.report, own)
        mine = client.send(Request(**json.loads(asked)))
        reason = "" if same(request, theirs, mine) else reason_of(str(request))
        unexpected += reason == UNEXPECTED
        equal += not reason
        if reason:
            text = str(request).replace("|", "\\|")
            print(f"| `{text}` | {theirs} | {mine} | {reason} |")
        if differences and reason:
            print(f"  PuppetDB:    {theirs.total or ''} {only(theirs.body, mine.body)[:SHOWN]}")
            print(f"  localpuppet: {mine.total or ''} {only(mine.body, theirs.body)[:SHOWN]}")
    print(
        f"\n{len(recorded.answers)} requests, {equal} with the same answer, {unexpected} unexpected"
    )
    sys.exit(unexpected > 0)


def reason_of(request: str) -> str:
    """Return why an answer differs."""
    return next((why for form, why in EXPECTED if re.search(form, request)), UNEXPECTED)


if __name__ == "__main__":
    main()
