"""Read the runs of a node from the bus: the last days that it has published.

A node without a running agent has no presence. What its last run did is in these runs.
"""

import asyncio

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus.key_value import KeyValue, RefusedError
from localpuppet.fleet.history.day import RUNS, SLOTS, history_key
from localpuppet.fleet.history.following import read_entry
from localpuppet.fleet.history.run_summary import RunSummary
from localpuppet.fleet.trust.signing import Verifier

RIGHT = "add 'reads: [history]' for this name to the roster, and apply its permissions"


async def read_runs(
    kv: KeyValue, node: NodeName, verifier: Verifier, *, now: float
) -> tuple[list[RunSummary], str]:
    """Return the runs of a node that the bus has, the newest first.

    A day that is rejected ends the list: a reinstalled node has another key than in the days
    before, and an upgraded one another form. Then the second value is the reason, else it is empty.

    Args:
        kv: The bus, connected.
        node: The node.
        verifier: Verifies signatures.
        now: Seconds since 1970, UTC.

    Raises:
        IntegrityError: The signature of the last written day is not trusted.
        InvalidInputError: That day is damaged.
        RefusedError: This name has no right to read history.
        UnavailableError: The bus is unreachable.
    """
    keys = [history_key(node, RUNS.kind, slot) for slot in range(SLOTS)]
    try:
        fetched = await asyncio.gather(*map(kv.get, keys))
    except RefusedError as error:
        raise RefusedError("no right to read history", where="bus", hint=RIGHT) from error
    runs: list[RunSummary] = []
    problem = ""
    for entry in sorted(filter(None, fetched), key=lambda entry: entry.revision, reverse=True):
        try:
            runs += read_entry(entry, verifier, now=now)[1].records
        except (IntegrityError, InvalidInputError) as error:
            if not runs:
                raise
            problem = f"days before are not read: {error}"
            break
    return sorted(runs, key=lambda run: run.at, reverse=True), problem
