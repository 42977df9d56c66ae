"""Read the runs of a node from the bus: the last days that it has published."""

import asyncio

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.history.day import RUNS, SLOTS, history_key
from localpuppet.fleet.history.following import read_entry
from localpuppet.fleet.history.run_summary import RunSummary
from localpuppet.fleet.trust.signing import Verifier


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
