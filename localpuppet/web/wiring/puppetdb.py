"""Builds the PuppetDB API from the settings: its sources, its readers, its sockets."""

import asyncio
import sys
from collections.abc import Sequence
from socket import socket
from typing import TYPE_CHECKING

from localpuppet.base.errors import UnavailableError
from localpuppet.fleet.app import FleetApp
from localpuppet.web.wiring.access import api_way_in
from localpuppet.web.wiring.dashboard import FleetSources

if TYPE_CHECKING:
    from localpuppet.base.machine.ports import Log
    from localpuppet.fleet.catalogs.keeping import NodeCatalog
    from localpuppet.fleet.inventory.entry import InventoryEntry
    from localpuppet.web.puppetdb.catalogs import CatalogSource
    from localpuppet.web.puppetdb.reports.report_views import ReportViews

# Seconds for the catalogs of a few nodes.
FETCH_PATIENCE = 30.0
# Seconds for which a thread keeps the interpreter while others wait for it.
SWITCH = 0.001


class ApiWiring:
    """The API as a service of this process.

    Args:
        fleet: The parts of a node of a fleet.
        log: The log.
        listen: Address and port; outside of loopback for certificates on a list.

    Raises:
        InvalidInputError: The address is invalid, or a setting is missing.
    """

    def __init__(self, fleet: FleetApp, log: "Log", listen: str) -> None:
        from localpuppet.web.access.serving import ListenAddress

        self.place = ListenAddress.parse(listen, option="--puppetdb")
        self._way_in = api_way_in(fleet, log, self.place)

    def begin(
        self,
        group: asyncio.TaskGroup,
        sources: FleetSources,
        listening: Sequence[socket],
        leave: asyncio.Event,
    ) -> str:
        """Serve the API, and return its URL.

        Args:
            group: The tasks of the process.
            sources: What the API reads.
            listening: The sockets.
            leave: Ends the API.
        """
        from localpuppet.base.machine.files import make_private
        from localpuppet.fleet.inventory.query.records import CombinedRecords
        from localpuppet.web.access.serving import serve
        from localpuppet.web.puppetdb.answering import Answering
        from localpuppet.web.puppetdb.app import ApiContext, application
        from localpuppet.web.puppetdb.bodies import AnswerBodies
        from localpuppet.web.puppetdb.questions import ApiSources
        from localpuppet.web.puppetdb.reports.details import NodeReportDetails
        from localpuppet.web.puppetdb.reports.population import PopulationMetrics
        from localpuppet.web.puppetdb.reports.report_views import ReportViews

        # Queries run in threads: the event loop waits that long for each of them, not 5 ms.
        sys.setswitchinterval(SWITCH)
        node = sources.fleet.node
        snapshot = sources.memory.snapshot
        reports = ReportViews(
            sources.memory.path,
            snapshot,
            now=lambda: node.clock.now().timestamp(),
            forgotten=sources.view.forgotten,
        )
        metrics = PopulationMetrics(snapshot=snapshot, nodes=lambda: sources.view.since(None))
        way = self._way_in(listening[0].getsockname()[1])
        directory = node.settings.state / "web"
        make_private(directory)
        answering = Answering(
            reader=sources.view,
            records=CombinedRecords([reports, _catalogs(sources, reports)]),
            ask=sources.fleet.entries.ask,
            bodies=AnswerBodies(directory),
            monotonic=node.clock.monotonic,
        )
        context = ApiContext(
            answering=answering,
            clock=node.clock,
            client=way.client,
            sources=ApiSources(
                details=NodeReportDetails(
                    find=reports.find,
                    ask=sources.reports.log,
                ),
                metrics=metrics,
            ),
        )
        app = application(context, way.rule)

        async def serving() -> None:
            try:
                await serve(app, listening, leave, tls=way.tls, knows=way.admits)
            finally:
                answering.close()

        group.create_task(serving())
        return way.rule.url


def _catalogs(sources: FleetSources, reports: "ReportViews") -> "CatalogSource":
    """Return the source of whole catalogs, which reads from the bus and asks nodes."""
    from localpuppet.fleet.catalogs.keeping import CatalogKeeper, CatalogReader
    from localpuppet.web.puppetdb.catalogs import CatalogSource

    fleet = sources.fleet
    reader = CatalogReader(
        fleet.name,
        CatalogKeeper(fleet.node.settings.state),
        store=sources.feeding.store,
        client=fleet.requests,
        monotonic=fleet.node.clock.monotonic,
    )
    loop = asyncio.get_running_loop()

    def fetch(entries: "Sequence[InventoryEntry]") -> "Sequence[NodeCatalog]":
        reading = asyncio.run_coroutine_threadsafe(reader.read_all(entries), loop)
        try:
            return reading.result(FETCH_PATIENCE)
        except TimeoutError as error:
            reading.cancel()
            raise UnavailableError(
                f"not read within {FETCH_PATIENCE:g} s", where="catalogs"
            ) from error

    return CatalogSource(sources.view, fetch, reports)
