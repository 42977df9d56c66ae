"""Builds the PuppetDB API from the settings: its sources, its readers, its sockets."""

import asyncio
from collections.abc import Sequence
from socket import socket
from typing import TYPE_CHECKING

from localpuppet.fleet.wiring.fleet import FleetWiring
from localpuppet.web.wiring.access import api_way_in
from localpuppet.web.wiring.dashboard import FleetSources

if TYPE_CHECKING:
    from localpuppet.base.machine.ports import Log


class ApiWiring:
    """The API as a service of this process.

    Args:
        fleet: The parts of a node of a fleet.
        log: The log.
        listen: Address and port; outside of loopback for certificates on a list.

    Raises:
        InvalidInputError: The address is invalid, or a setting is missing.
    """

    def __init__(self, fleet: FleetWiring, log: "Log", listen: str) -> None:
        from localpuppet.web.access.listening import ListenAddress

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
        from localpuppet.web.access.serving import serve
        from localpuppet.web.puppetdb.answering import Answering
        from localpuppet.web.puppetdb.app import ApiContext, application
        from localpuppet.web.puppetdb.combined_records import CombinedRecords
        from localpuppet.web.puppetdb.ports import ApiSources
        from localpuppet.web.puppetdb.reports.details import NodeReportDetails
        from localpuppet.web.puppetdb.reports.population import PopulationMetrics
        from localpuppet.web.puppetdb.reports.run_records import RunRecords

        node, rows = sources.fleet.node, sources.rows
        snapshot = sources.memory.history.snapshot
        runs = RunRecords(
            snapshot,
            nodes=lambda: list(rows.rows),  # a copy, because queries run in threads
            now=lambda: node.clock.now().timestamp(),
        )
        way = self._way_in(listening[0].getsockname()[1])
        directory = node.settings.state / "web"
        make_private(directory)
        context = ApiContext(
            answering=Answering(
                reader=sources.view,
                records=CombinedRecords([runs]),
                ask=sources.inventory.ask,
                directory=directory,
                monotonic=node.clock.monotonic,
            ),
            clock=node.clock,
            client=way.client,
            sources=ApiSources(
                details=NodeReportDetails(find=runs.run, ask=sources.reports.log),
                metrics=PopulationMetrics(
                    snapshot=snapshot, nodes=lambda: sources.view.since(None)
                ),
            ),
        )
        group.create_task(serve(application(context, way.rule), listening, leave, tls=way.tls))
        return way.rule.url
