"""Runs in a memory, and the rows of reports and events that a source makes of them."""

import json
import sqlite3
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from localpuppet.base.formats.values import Json
from localpuppet.fleet.history.run_summary import RunCounts
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.node_row import NodeRow
from localpuppet.fleet.inventory.query.client_query import parse_client_query
from localpuppet.fleet.inventory.query.evaluating import Evaluation
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.web.dashboard import nodes as node_tables
from localpuppet.web.dashboard import reported_rollouts
from localpuppet.web.dashboard.nodes import NodeTable
from localpuppet.web.dashboard.run_row import RunRow
from localpuppet.web.dashboard.tables import run_table
from localpuppet.web.dashboard.tables.run_table import RunTableWriter
from localpuppet.web.puppetdb.reports.report_views import ReportViews
from tests.doubles.inventory import MemoryInventory
from tests.fleet.make import a_row
from tests.web.dashboard.site import run_id

NOW = 1_795_000_000.0
MINUTE = 60.0


def run(node: str, at: float, outcome: Kind = Kind.UNCHANGED, **more: Any) -> RunRow:
    """Return a run that took 20 seconds; `more` are its fields."""
    whole = RunRow(
        node=node,
        run=run_id(at - 20),
        at=at,
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
    """A memory with runs.

    Args:
        runs: The runs.
        nodes: The nodes.
    """

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
            file,
            self.snapshot,
            now=lambda: NOW,
            forgotten=lambda: self.forgotten,
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
