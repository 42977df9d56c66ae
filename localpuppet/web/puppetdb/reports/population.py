"""Metrics of the population, as PuppetDB names them.

- `num-resources` counts the resources that the newest runs report, and `avg-resources-per-node`
  divides it by the nodes with such a run.
- There is no `pct-resource-dupes`, because nodes do not publish whole catalogs, and nothing about a
  Java virtual machine or a database. A client gets an error instead of an invented number.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from localpuppet.base.formats.values import Json
from localpuppet.base.machine.sqlite import Connection
from localpuppet.web.dashboard.tables import run_queries

_DOMAIN = "puppetlabs.puppetdb.population"


@dataclass(frozen=True, slots=True, kw_only=True)
class PopulationMetrics:
    """Reads the metrics; a `ReadMetrics`.

    Attributes:
        snapshot: Lends a connection to the memory that sees no later write.
        nodes: Returns the names of the nodes in the inventory; called in a thread.
    """

    snapshot: Callable[[], AbstractContextManager[Connection]]
    nodes: Callable[[], Collection[str]]

    async def __call__(self) -> Mapping[str, Mapping[str, Json]]:
        """Return the MBeans by name; see `ReadMetrics`."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> Mapping[str, Mapping[str, Json]]:
        nodes = self.nodes()
        with self.snapshot() as connection:
            totals = run_queries.resource_totals(connection, nodes)
        resources = sum(totals)
        values: dict[str, Json] = {
            "num-nodes": len(nodes),
            "num-active-nodes": len(nodes),
            "num-inactive-nodes": 0,
            "num-resources": resources,
            "avg-resources-per-node": resources / len(totals) if totals else 0,
        }
        return {f"{_DOMAIN}:name={name}": {"Value": value} for name, value in values.items()}
