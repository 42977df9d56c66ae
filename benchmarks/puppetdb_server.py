"""A real PuppetDB of Debian with its PostgreSQL, in a separate directory on loopback.

Needs PuppetDB's packages, which `scripts/puppetdb` unpacks below `UNPACKED`, an installed
PostgreSQL, and root: PostgreSQL must not run as root, so its files belong to the user postgres.
"""

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the inventory of the tests

from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.query.evaluating import Evaluation
from localpuppet.fleet.inventory.query.tree import Entity, Select
from localpuppet.node.puppet.catalog import CanonicalCatalog
from tests.doubles.inventory import MemoryInventory

START = 900.0
CALL = 60.0
STAMP = "2026-11-22T04:00:00.000Z"
UNPACKED = Path("/var/cache/localpuppet/puppetdb")
_JARS = ":".join(
    map(str, (UNPACKED / "usr/share/puppetdb/puppetdb.jar", UNPACKED / "usr/share/java/*"))
)


@dataclass(frozen=True, kw_only=True)
class Tls:
    """TLS on a second port, which Puppet's terminus requires.

    Attributes:
        port: The port.
        key, certificate, authority: Files in PEM.
    """

    port: int
    key: Path
    certificate: Path
    authority: Path


class PuppetDb:
    """A PuppetDB that answers.

    Args:
        port: Its port on loopback.
        pid: Its process.
        database_pid: PostgreSQL's.
        execute: Executes statements in PostgreSQL.
    """

    def __init__(
        self, port: int, *, pid: int, database_pid: int, execute: Callable[[str], None]
    ) -> None:
        self.port = port
        self.pid = pid
        self.database_pid = database_pid
        self.execute = execute
        self._base = f"http://127.0.0.1:{port}"

    def load(self, entry: InventoryEntry, catalog: CanonicalCatalog) -> None:
        """Load the facts and the catalog of a node."""
        select = Select(entity=Entity.INVENTORY)
        (row,) = Evaluation(MemoryInventory([entry])).answer(select).rows
        facts = row["facts"]
        values = {**facts, "trusted": row["trusted"]} if isinstance(facts, dict) else {}
        self.replace_facts({**_common(catalog), "values": values})
        self.replace_catalog(wire_of(catalog))

    def replace_catalog(self, payload: dict[str, Json]) -> None:
        """Load the catalog of a node, and return when it is stored."""
        self._command("replace catalog", 9, payload)

    def replace_facts(self, payload: dict[str, Json]) -> None:
        """Load the facts of a node, and return when they are stored."""
        self._command("replace facts", 5, payload)

    def store_report(self, payload: dict[str, Json]) -> None:
        """Load a report, and return when it is stored."""
        self._command("store report", 8, payload)

    def ask(self, query: Json) -> list[Json] | str:
        """Return the rows of an answer, or the reason of a refusal."""
        text = query if isinstance(query, str) else json.dumps(query)
        try:
            data = self._get(f"/pdb/query/v4?{urllib.parse.urlencode({'query': text})}")
        except urllib.error.HTTPError as error:
            return f"{error.code}: {error.read().decode()[:80]}"
        rows: list[Json] = json.loads(data)
        return rows

    def wait(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until it answers."""
        end = time.monotonic() + START
        while time.monotonic() < end and process.poll() is None:
            try:
                self._get("/pdb/query/v4/nodes?limit=1")  # 503 until it takes commands
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


def wire_of(catalog: CanonicalCatalog) -> dict[str, Json]:
    """Return the payload of `replace catalog`, version 9."""
    resources: list[Json] = [
        {
            "type": one.type,
            "title": one.title,
            "aliases": [],
            "exported": one.exported,
            "file": one.file,
            "line": one.line,
            "tags": [*one.tags],
            "parameters": dict(one.parameters),
        }
        for one in catalog.resources
    ]
    edges: list[Json] = [
        {
            "source": {"type": one.source_type, "title": one.source_title},
            "target": {"type": one.target_type, "title": one.target_title},
            "relationship": one.relationship,
        }
        for one in catalog.edges
    ]
    return {
        **_common(catalog),
        "version": "foo/tags/r1",
        "transaction_uuid": None,
        "catalog_uuid": None,
        "code_id": None,
        "job_id": None,
        "edges": edges,
        "resources": resources,
    }


def _common(catalog: CanonicalCatalog) -> dict[str, Json]:
    return {
        "certname": catalog.certname,
        "environment": catalog.environment,
        "producer_timestamp": STAMP,
        "producer": catalog.certname,
    }


@contextmanager
def running(tls: Tls | None = None) -> Iterator[PuppetDb]:
    """Start both servers; afterwards end them, and remove their files.

    Args:
        tls: The port and files for TLS; `None` for no TLS.
    """
    directory = Path(tempfile.mkdtemp(prefix="puppetdb"))
    user = pwd.getpwnam("postgres")
    os.chown(directory, user.pw_uid, user.pw_gid)
    binaries = max(Path("/usr/lib/postgresql").glob("*/bin"))
    database, port = free_port(), free_port()

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
        with _started(directory, database, port, tls) as process:
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
def _started(
    directory: Path, database: int, port: int, tls: Tls | None
) -> Iterator[subprocess.Popen[bytes]]:
    settings = directory / "conf.d"
    settings.mkdir()
    shutil.copy(UNPACKED / "etc/puppetdb/conf.d/auth.conf", settings)
    (settings / "puppetdb.ini").write_text(
        f"[global]\nvardir = {directory}/var\n"
        f"[database]\nsubname = //127.0.0.1:{database}/puppetdb\nusername = puppetdb\n"
        "password = unused\ngc-interval = 0\n"
        f"[jetty]\nhost = 127.0.0.1\nport = {port}\n{_jetty(tls)}"
        "[puppetdb]\ndisable-update-checking = true\n"
    )
    (directory / "var").mkdir()
    with (directory / "puppetdb.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *("java", "-Xmx512m", "-cp", f"{_JARS}:/usr/share/java/*", "clojure.main"),
                *("-m", "puppetlabs.puppetdb.core", "services", "--config", str(settings)),
                *("--bootstrap-config", str(UNPACKED / "etc/puppetdb/bootstrap.cfg")),
            ],
            stdout=log,
            stderr=log,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _jetty(tls: Tls | None) -> str:
    if tls is None:
        return ""
    return (
        f"ssl-host = 127.0.0.1\nssl-port = {tls.port}\nssl-key = {tls.key}\n"
        f"ssl-cert = {tls.certificate}\nssl-ca-cert = {tls.authority}\n"
    )


def free_port() -> int:
    """Return a port on loopback that no process listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
