"""The API over entries and runs that tests make, on a real socket."""

import asyncio
import gzip
import json
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

from localpuppet.base.formats.values import Json
from localpuppet.fleet.history.history_records import RunCounts
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.presence import NodeRow
from localpuppet.fleet.inventory.query.evaluating import Evaluation
from localpuppet.fleet.inventory.query.pql import parse_client_query, to_array
from localpuppet.fleet.inventory.query.records import RecordSource
from localpuppet.fleet.inventory.reading import InventoryReader, must_ask
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.web.access.rules import LocalUserRule, socket_owner
from localpuppet.web.access.serving import PATIENCE, ConnectionLimits, ListenAddress, bound, serve
from localpuppet.web.dashboard import nodes as node_tables
from localpuppet.web.dashboard import reported_rollouts, run_table
from localpuppet.web.dashboard.nodes import NodeTable
from localpuppet.web.dashboard.run_table import RunRow, RunTableWriter
from localpuppet.web.puppetdb.answering import Answering
from localpuppet.web.puppetdb.answers import AnswerBodies, AnswerLimits
from localpuppet.web.puppetdb.app import ApiContext, application
from localpuppet.web.puppetdb.report_views import ReportViews
from tests.doubles.inventory import MemoryInventory
from tests.doubles.ports import FakeClock
from tests.fleet.make import a_row
from tests.web.make import run_id

V4 = "/pdb/query/v4"
LIMITS = AnswerLimits()


@dataclass
class Answer:
    """A response of the API."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        packed = self.headers.get("content-encoding") == "gzip"
        return (gzip.decompress(self.body) if packed else self.body).decode()

    @property
    def json(self) -> Any:
        assert self.status == 200, self.text
        return json.loads(self.text)

    @property
    def error(self) -> tuple[int, str]:
        return self.status, self.text


class ServedApi:
    """The API, served by a thread.

    Args:
        directory: Takes large answers.
        users: The numbers of the users with access.
    """

    def __init__(
        self,
        directory: Path,
        reader: InventoryReader | None = None,
        *,
        records: RecordSource | None = None,
        limits: AnswerLimits = LIMITS,
        patience: ConnectionLimits = PATIENCE,
        users: Collection[int] = frozenset({os.geteuid()}),
        sources: Mapping[str, Any] = MappingProxyType({}),
        parse_pql: Callable[[str], list[Json]] = to_array,
    ) -> None:
        self.clock = FakeClock()
        now = self.clock.now().timestamp()
        self.reader = reader or MemoryInventory([], current=now)
        self.users = users
        self._sources = sources
        self._patience = patience
        self._parse_pql = parse_pql
        self.bodies = AnswerBodies(directory, limits)
        self._answering = Answering(
            reader=self.reader,
            records=records,
            ask=lambda reader, question: must_ask(
                reader, question, now=self.clock.now().timestamp(), max_stale=900.0
            ),
            monotonic=self.clock.monotonic,
            bodies=self.bodies,
        )
        self.port = 0
        self._ready = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> "ServedApi":
        self.thread.start()
        assert self._ready.wait(300)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._leave.set)
        self.thread.join(300)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler = lambda *_: None  # type: ignore[method-assign]  # not the main thread
        self._leave = asyncio.Event()
        with bound(ListenAddress(address="127.0.0.1", port=0)) as listening:
            self.port = listening[0].getsockname()[1]
            rule = LocalUserRule(
                "127.0.0.1",
                self.port,
                users=lambda: self.users,
                owner=socket_owner,
                monotonic=self.clock.monotonic,
            )
            context = ApiContext(
                answering=self._answering,
                clock=self.clock,
                client=rule.client,
                **self._sources,
                body_patience=self._patience.head,
                parse_pql=self._parse_pql,
            )
            self._ready.set()
            app, limits = application(context, rule), self._patience
            try:
                await serve(app, listening, self._leave, patience=limits, knows=rule.admits)
            finally:
                self._answering.close()

    def ask(
        self,
        path: str,
        query: Json = None,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        **parameters: str,
    ) -> Answer:
        """Send a request; `query` is sent as JSON if it is no string."""
        if query is not None:
            parameters["query"] = query if isinstance(query, str) else json.dumps(query)
        target = f"{path}?{urlencode(parameters)}" if parameters else path
        connection = HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request(method, target, body=body, headers=dict(headers or {}))
            came = connection.getresponse()
            lower = {name.lower(): value for name, value in came.getheaders()}
            return Answer(came.status, lower, came.read())
        finally:
            connection.close()


NOW = 1_795_000_000.0
MINUTE = 60.0


def run(node: str, at: float, outcome: Kind = Kind.UNCHANGED, **more: Any) -> RunRow:
    """Return a run that took 20 seconds; `more` are its fields."""
    whole = RunRow(
        node=node,
        run=run_id(at - 20),
        finished_at=at,
        outcome=outcome,
        release="web/tags/r7",
        reason="",
        cause="timer",
        seconds=20,
        commit="c" * 40,
        environment="production",
        counts=RunCounts(total=9),
    )
    return replace(whole, **more)


def node(name: str, **more: Any) -> NodeRow:
    """Return a node that is online and ran an hour ago without a change."""
    usual = {"outcome": Kind.UNCHANGED, "finished_at": NOW - 60 * MINUTE}
    seen = {"state": "idle", "received_at": NOW - MINUTE, "in_inventory": True}
    return a_row(name, **{**usual, **seen, **more})


class PlayedRuns:
    """A memory with runs."""

    def __init__(self, runs: Iterable[RunRow], nodes: Iterable[NodeRow] = ()) -> None:
        directory = TemporaryDirectory()
        weakref.finalize(self, directory.cleanup)
        file = Path(directory.name, "fleet.sqlite")
        self.connection = sqlite3.connect(file, check_same_thread=False)
        weakref.finalize(self, self.connection.close)  # Python 3.13 warns of one that is open
        self.connection.execute("PRAGMA synchronous = OFF")
        self.connection.executescript(
            run_table.TABLES + reported_rollouts.TABLES + node_tables.TABLES
        )
        self.put(*nodes)
        self.add(*runs)
        self.forgotten: set[str] = set()
        self.records = ReportViews(
            file, self.snapshot, now=lambda: NOW, forgotten=lambda: self.forgotten
        )

    def add(self, *runs: RunRow) -> None:
        """Write runs."""
        writing = RunTableWriter(self.connection)
        for one in runs:
            writing.add(one)
        self.connection.commit()

    def put(self, *nodes: NodeRow) -> None:
        """Have these nodes, and no others."""
        table = NodeTable(self.connection, NOW)
        for name in table.names():
            table.forget(name)
        for row in nodes:
            table.put(row, None)
        self.connection.commit()

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection."""
        yield self.connection

    def ask(self, query: Json, entries: Sequence[InventoryEntry] = ()) -> list[dict[str, Json]]:
        """Return the rows of a query in AST form."""
        select = parse_client_query({"query": query}).select
        found = Evaluation(MemoryInventory(entries), records=self.records).stream(select)
        return [json.loads(text) for text in found.rows]
