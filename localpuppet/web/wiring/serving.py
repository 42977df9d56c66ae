"""Serves the dashboard, the PuppetDB API, or both in one process."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from localpuppet.base.machine.extras import require_extra
from localpuppet.base.machine.heap import share_heap
from localpuppet.base.value import Value
from localpuppet.fleet.app import FleetApp

if TYPE_CHECKING:
    from pathlib import Path

    from localpuppet.base.machine.ports import Log


class WebOptions(Value):
    """What a process serves, and where.

    Attributes:
        listen: Address and port of the dashboard; `None` for no dashboard.
        puppetdb: Address and port of the API; `None` for no API.
        actions: Whether the dashboard's actions are enabled, in the signer's name.
        site: The file of the site whose plan is shown; `None` for the inventory's.
    """

    listen: str | None
    puppetdb: str | None = None
    actions: bool = False
    site: "Path | None" = None


class WebAddresses(Value):
    """The addresses of the services.

    Attributes:
        dashboard: The URL of the dashboard; empty without it.
        link: A one-time link to it; empty over TLS.
        puppetdb: The URL of the API; empty without it.
    """

    dashboard: str = ""
    link: str = ""
    puppetdb: str = ""


async def serve_web(
    fleet: FleetApp, log: "Log", options: WebOptions, opened: Callable[[WebAddresses], None]
) -> None:
    """Serve until a signal ends the process.

    Args:
        fleet: The parts of a node of a fleet.
        log: The log.
        options: What to serve.
        opened: Called with the addresses.

    Raises:
        InvalidInputError: The extra `web` is not installed, or an address or the site is invalid.
        StateError: A port is taken.
    """
    require_extra("web", where="localpuppet web")
    share_heap()
    from localpuppet.web.access.serving import bound
    from localpuppet.web.wiring.dashboard import DashboardWiring, FleetSources
    from localpuppet.web.wiring.puppetdb import ApiWiring

    board = api = None
    if options.listen is not None:
        board = DashboardWiring(
            fleet, log, options.listen, actions=options.actions, site=options.site
        )
    if options.puppetdb is not None:
        api = ApiWiring(fleet, log, options.puppetdb)
    sources = FleetSources.of(fleet, log)
    leave = asyncio.Event()
    url = link = puppetdb = ""
    with ExitStack() as held:
        held.callback(sources.view.close)
        sockets = [
            held.enter_context(bound(item.place)) for item in (board, api) if item is not None
        ]
        async with asyncio.TaskGroup() as group:
            if board is not None:
                url, link = board.begin(group, sources, sockets[0], leave)
            if api is not None:
                puppetdb = api.begin(group, sources, sockets[-1], leave)
            group.create_task(sources.feeding.run(leave))
            opened(WebAddresses(dashboard=url, link=link, puppetdb=puppetdb))
