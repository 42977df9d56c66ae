"""Read the runs of a node from the bus: the last days that it has published.

A node without a running agent has no presence. What its last run did is in these runs.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.history.day import RUNS, SLOTS, history_key
from localpuppet.fleet.history.following import read_entry
from localpuppet.fleet.history.run_summary import RunSummary
from localpuppet.fleet.inventory.node_row import NodeRow
from localpuppet.fleet.inventory.run_kind import Kind, kind_of
from localpuppet.fleet.trust.signing import Verifier
from localpuppet.node.puppet.fault import FailureCause


async def read_runs(
    kv: KeyValue, node: NodeName, verifier: Verifier, *, now: float
) -> list[RunSummary]:
    """Return the runs of a node that the bus has, the newest first.

    Args:
        kv: The bus, connected.
        node: The node.
        verifier: Verifies signatures.
        now: Seconds since 1970, UTC.

    Raises:
        IntegrityError: The signature of a day is not trusted, or another node signed it.
        InvalidInputError: A day is damaged.
        UnavailableError: The bus is unreachable, or denies reading.
    """
    keys = [history_key(node, RUNS.kind, slot) for slot in range(SLOTS)]
    fetched = await asyncio.gather(*map(kv.get, keys))
    runs: list[RunSummary] = []
    for entry in fetched:
        if entry is not None:
            runs += read_entry(entry, verifier, now=now)[1].records
    return sorted(runs, key=lambda run: run.at, reverse=True)


def kind_of_summary(run: RunSummary) -> Kind:
    """Return the result of a run."""
    if run.outcome is None:
        return Kind.REFUSED
    return kind_of(
        {
            "outcome": run.outcome,
            "category": run.category,
            "noop": run.noop,
            "corrective_change": run.corrective_change,
        }
    )


def with_runs(row: NodeRow, runs: Sequence[RunSummary]) -> NodeRow:
    """Return a row with what the runs of its node say; the same row without any.

    Args:
        row: A node without presence.
        runs: Its runs, in any order.
    """
    runs = sorted(runs, key=lambda run: run.at, reverse=True)
    if not runs:
        return row
    last, kind = runs[0], kind_of_summary(runs[0])
    failure = last.failure_cause if kind.bad and last.failure_cause else FailureCause(error="")
    failed = list(takewhile(lambda run: kind_of_summary(run).bad, runs))
    return replace(
        row,
        outcome=kind,
        error=failure.error,
        resource=failure.resource,
        place=failure.place,
        reason=last.reason,
        release=last.release,
        run="" if kind is Kind.REFUSED else str(last.run),
        finished_at=last.at,
        failing_since=failed[-1].at if failed else None,
        failed_runs=sum(run.times for run in failed),
    )
