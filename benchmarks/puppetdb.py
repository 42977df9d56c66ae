"""Holds the answers of `puppetdb_query` against a real PuppetDB: same facts, same classes.

Starts PostgreSQL and PuppetDB of Debian (apt-get install puppetdb postgresql) in a directory of
their own on loopback, loads a fleet of simulated nodes into PuppetDB and into our evaluator, asks
both the queries of `puppetdb_queries.py`, and prints a table. As root: PostgreSQL must not be run
by root, so its files belong to the user postgres.

    benchmarks/puppetdb.py [--nodes 12] [--differences]
"""

import argparse
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the inventory of the tests

from puppetdb_queries import QUERIES, exports_of, fleet

from localpuppet.errors import LocalpuppetError
from localpuppet.formats.values import Json
from localpuppet.inventory.entry import InventoryEntry
from localpuppet.inventory.query.functions import Question
from localpuppet.inventory.query.rows import NodeRows, capitalized
from localpuppet.inventory.query.tree import Entity
from tests.doubles.inventory import MemoryInventory

START = 300.0
CALL = 60.0
STAMP = "2026-11-22T04:00:00.000Z"
# Columns that only one of the two can know.
SPARE = ("timestamp", "facts_timestamp", "catalog_timestamp", "resource")
OF_REPORTS = ("report", "latest_report", "cached_catalog_status", "expires_facts")


class PuppetDb:
    """A PuppetDB that answers.

    Args:
        port: Its port on loopback.
        pid: Its process.
        database_pid: PostgreSQL's.
        execute: Has PostgreSQL execute statements.
    """

    def __init__(
        self, port: int, *, pid: int, database_pid: int, execute: Callable[[str], None]
    ) -> None:
        self.port = port
        self.pid = pid
        self.database_pid = database_pid
        self.execute = execute
        self._base = f"http://127.0.0.1:{port}"

    def load(self, entry: InventoryEntry) -> None:
        """Give it a node's facts and catalog."""
        (row,) = NodeRows.of(entry, MemoryInventory([])).rows(Entity.INVENTORY)
        facts = row.at("facts")
        common: dict[str, Json] = {
            "certname": str(entry.node),
            "environment": str(entry.environment),
            "producer_timestamp": STAMP,
            "producer": None,
        }
        values = {**facts, "trusted": row.at("trusted")} if isinstance(facts, dict) else {}
        self.replace_facts({**common, "values": values})
        resources: list[Json] = [
            {
                "type": "Class",
                "title": capitalized(name),
                "aliases": [],
                "exported": False,
                "file": None,
                "line": None,
                "tags": ["class", str(name)],
                "parameters": {},
            }
            for name in entry.classes
        ]
        resources += [
            {**one.to_dict(), "tags": [*one.tags], "aliases": [], "exported": True}
            for one in exports_of(entry)
        ]
        catalog: dict[str, Json] = {
            **common,
            "version": "1",
            "transaction_uuid": None,
            "catalog_uuid": None,
            "code_id": None,
            "job_id": None,
            "edges": [],
            "resources": resources,
        }
        self._command("replace catalog", 9, catalog)

    def replace_facts(self, payload: dict[str, Json]) -> None:
        """Give it a node's facts; return when it holds them."""
        self._command("replace facts", 5, payload)

    def ask(self, query: Json) -> list[dict[str, Json]] | str:
        """Return the rows of an answer, or why there is none."""
        text = query if isinstance(query, str) else json.dumps(query)
        try:
            data = self._get(f"/pdb/query/v4?{urllib.parse.urlencode({'query': text})}")
        except urllib.error.HTTPError as error:
            return f"{error.code}: {error.read().decode()[:80]}"
        rows: list[dict[str, Json]] = json.loads(data)
        return rows

    def wait(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until it answers."""
        end = time.monotonic() + START
        while time.monotonic() < end and process.poll() is None:
            try:
                self._get("/pdb/meta/v1/version")
            except OSError:
                time.sleep(1)
            else:
                return
        raise SystemExit("PuppetDB did not start; see its log in the directory")

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(self._base + path, timeout=CALL) as answer:  # noqa: S310
            data: bytes = answer.read()
        return data

    def _command(self, name: str, version: int, payload: dict[str, Json]) -> None:
        query = urllib.parse.urlencode(
            {
                "command": name.replace(" ", "_"),
                "version": version,
                "certname": payload["certname"],
                "secondsToWaitForCompletion": int(CALL),
            }
        )
        request = urllib.request.Request(  # noqa: S310 - loopback
            f"{self._base}/pdb/cmd/v1?{query}",
            data=json.dumps(payload).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=2 * CALL) as answer:  # noqa: S310
            told = json.loads(answer.read())
        if not told.get("processed"):
            raise SystemExit(f"PuppetDB did not take {name}: {told}")


@contextmanager
def running() -> Iterator[PuppetDb]:
    """Start both servers; end them, and remove what they wrote."""
    directory = Path(tempfile.mkdtemp(prefix="puppetdb"))
    user = pwd.getpwnam("postgres")
    os.chown(directory, user.pw_uid, user.pw_gid)
    binaries = max(Path("/usr/lib/postgresql").glob("*/bin"))
    database, port = _free_port(), _free_port()

    def postgres(*command: str) -> None:
        subprocess.run(
            command,
            user=user.pw_uid,
            group=user.pw_gid,
            cwd=directory,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=CALL,
        )

    data = str(directory / "data")
    postgres(str(binaries / "initdb"), "-D", data, "-A", "trust")
    options = f"-p {database} -k {directory} -c listen_addresses=127.0.0.1"
    log = str(directory / "postgres.log")
    control = str(binaries / "pg_ctl")
    postgres(control, "-D", data, "-o", options, "-l", log, "-w", "start")
    try:
        psql = ("psql", "-h", str(directory), "-p", str(database))
        postgres(*psql, "-c", "create role puppetdb login", "-c", "create database puppetdb")
        grants = ("-c", "alter database puppetdb owner to puppetdb")
        postgres(*psql, *grants)
        extension = ("-c", "create extension pg_trgm", "-c", "grant all on schema public to public")
        postgres(*psql, "puppetdb", *extension)
        with _started(directory, database, port) as process:
            pid = int((directory / "data" / "postmaster.pid").read_text().split()[0])

            def execute(statements: str) -> None:
                file = directory / "statements.sql"
                file.write_text(statements)
                postgres(*psql, "-v", "ON_ERROR_STOP=1", "puppetdb", "-f", str(file))

            server = PuppetDb(port, pid=process.pid, database_pid=pid, execute=execute)
            server.wait(process)
            yield server
    finally:
        postgres(control, "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(directory)


@contextmanager
def _started(directory: Path, database: int, port: int) -> Iterator[subprocess.Popen[bytes]]:
    settings = directory / "conf.d"
    settings.mkdir()
    shutil.copy("/etc/puppetdb/conf.d/auth.conf", settings)
    (settings / "puppetdb.ini").write_text(
        f"[global]\nvardir = {directory}/var\n"
        f"[database]\nsubname = //127.0.0.1:{database}/puppetdb\nusername = puppetdb\n"
        "password = unused\ngc-interval = 0\n"
        f"[jetty]\nhost = 127.0.0.1\nport = {port}\n"
        "[puppetdb]\ndisable-update-checking = true\n"
    )
    (directory / "var").mkdir()
    with (directory / "puppetdb.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *("java", "-Xmx512m", "-cp", "/usr/share/puppetdb/puppetdb.jar", "clojure.main"),
                *("-m", "puppetlabs.puppetdb.core", "services", "--config", str(settings)),
                *("--bootstrap-config", "/etc/puppetdb/bootstrap.cfg"),
            ],
            stdout=log,
            stderr=log,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def ours(entries: Sequence[InventoryEntry], query: Json) -> list[dict[str, Json]] | str:
    """Return our rows, or why there are none."""
    try:
        exports = {str(entry.node): exports_of(entry) for entry in entries}
        reader = MemoryInventory(entries, exports=exports)
        result = Question.of("puppetdb_query", [query]).answer(reader).result
    except LocalpuppetError as error:
        return str(error)[:80]
    return [row for row in result if isinstance(row, dict)] if isinstance(result, list) else []


def normal(rows: list[dict[str, Json]], query: Json) -> list[str]:
    """Return rows as texts that compare, sorted unless the query says how."""
    kept = []
    for row in rows:
        shown = {
            key: value
            for key, value in row.items()
            if key not in SPARE and not key.startswith(OF_REPORTS)
        }
        facts = shown.get("facts")
        if isinstance(facts, dict):
            shown["facts"] = {key: value for key, value in facts.items() if key != "trusted"}
        tags = shown.get("tags")
        if isinstance(tags, list):
            shown["tags"] = [*sorted(map(str, tags))]  # PuppetDB keeps them in no order
        kept.append(json.dumps(shown, sort_keys=True))
    ordered = "order" in json.dumps(query)
    return kept if ordered else sorted(kept)


def main() -> None:
    """Compare, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=12, help="how many nodes")
    parser.add_argument("--differences", action="store_true", help="print the rows that differ")
    chosen = parser.parse_args()
    entries = fleet(chosen.nodes)
    differ = 0
    with running() as server:
        for entry in entries:
            server.load(entry)
        print("| query | PuppetDB | localpuppet | |\n|---|---|---|---|")
        for query in QUERIES:
            theirs, mine = server.ask(query), ours(entries, query)
            same = (
                not isinstance(theirs, str)
                and not isinstance(mine, str)
                and normal(theirs, query) == normal(mine, query)
            )
            differ += not same
            text = (query if isinstance(query, str) else json.dumps(query)).replace("|", "\\|")
            print(f"| `{text}` | {_shown(theirs)} | {_shown(mine)} | {'same' if same else '≠'} |")
            if chosen.differences and not same:
                print(f"  PuppetDB: {str(theirs)[:600]}\n  ours:     {str(mine)[:600]}")
    print(f"\n{len(QUERIES)} queries, {len(QUERIES) - differ} with the same answer")
    sys.exit(differ > 0)


def _shown(answer: list[dict[str, Json]] | str) -> str:
    return "refused" if isinstance(answer, str) else f"{len(answer)} rows"


if __name__ == "__main__":
    main()
