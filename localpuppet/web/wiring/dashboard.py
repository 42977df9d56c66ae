"""Builds the dashboard from the settings: its sources, its requests, its sockets."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.value import Value
from localpuppet.fleet.app import FleetApp
from localpuppet.fleet.inventory.presence import believe
from localpuppet.node.app import NodeApp

if TYPE_CHECKING:
    from pathlib import Path
    from socket import socket

    from localpuppet.base.formats.names import NodeName, RunId
    from localpuppet.base.formats.values import Json
    from localpuppet.base.machine.ports import Log
    from localpuppet.fleet.bus.key_value import KeyValue
    from localpuppet.fleet.inventory.view import View
    from localpuppet.fleet.trust.signing import Verifier
    from localpuppet.rollout.journal import Journals
    from localpuppet.web.dashboard.fleet import Fleet
    from localpuppet.web.dashboard.fleet_feed import FleetFeed, FleetFeeder
    from localpuppet.web.dashboard.inventory_questions import Reports, SiteInventory
    from localpuppet.web.dashboard.memory import DashboardStore
    from localpuppet.web.dashboard.remote_rollouts import RemoteRollouts
    from localpuppet.web.dashboard.staged import StagedReleases

    Store = Callable[[], Awaitable[KeyValue]]

# Seconds that a node has to answer.
PATIENCE = 10.0


class FleetSources(Value):
    """What the dashboard and the API read, from one connection to the bus.

    Attributes:
        fleet: The parts of a node of a fleet.
        log: The log.
        memory: The dashboard's memory.
        rows: The nodes.
        view: This node's copy of the inventory.
        feeding: Keeps all of them current.
        reports: Requests reports and logs from nodes.
    """

    fleet: FleetApp
    log: "Log"
    memory: "DashboardStore"
    rows: "Fleet"
    view: "View"
    feeding: "FleetFeeder"
    reports: "Reports"

    @classmethod
    def of(cls, fleet: FleetApp, log: "Log") -> "FleetSources":
        """Return the sources of a node.

        Raises:
            InvalidInputError: A setting of the node is invalid.
        """
        from localpuppet.web.dashboard.fleet_feed import FleetFeeder
        from localpuppet.web.dashboard.inventory_questions import Reports

        node = fleet.node

        def now() -> float:
            return node.clock.now().timestamp()

        memory = _memory(node, now, log)
        rows = _rows(memory, fleet.verifier, now)
        view = fleet.view()
        feeding = FleetFeeder(rows, memory, _feed(fleet, view, log))
        return cls(
            fleet=fleet,
            log=log,
            memory=memory,
            rows=rows,
            view=view,
            feeding=feeding,
            reports=Reports(_tell(fleet, fleet.name, feeding.store)),
        )


class DashboardWiring:
    """The dashboard as a service of this process.

    Args:
        fleet: The parts of a node of a fleet.
        log: The log.
        listen: Address and port; outside of loopback for people with certificates.
        actions: Whether actions are enabled, in the signer's name.
        site: The file of the site whose plan is shown; `None` for the inventory's.

    Raises:
        InvalidInputError: The address or the site is invalid, or a setting is missing.
    """

    def __init__(
        self, fleet: FleetApp, log: "Log", listen: str, *, actions: bool, site: "Path | None"
    ) -> None:
        from localpuppet.web.access.serving import ListenAddress
        from localpuppet.web.wiring.access import way_in

        self.place = ListenAddress.parse(listen)
        self._actions = actions
        self._site = None if site is None else _site(fleet.node, site)
        self._way_in = way_in(fleet, log, self.place, actions=actions)

    def begin(
        self,
        group: asyncio.TaskGroup,
        sources: FleetSources,
        listening: "Sequence[socket]",
        leave: asyncio.Event,
    ) -> tuple[str, str]:
        """Serve the dashboard; return its URL, and a one-time link (empty over TLS).

        Args:
            group: The tasks of the process.
            sources: What the dashboard reads.
            listening: The sockets.
            leave: Ends the dashboard.
        """
        from localpuppet.rollout.svg import draw_svg
        from localpuppet.web.access.serving import serve
        from localpuppet.web.dashboard.app import application
        from localpuppet.web.dashboard.inventory_questions import Inventory
        from localpuppet.web.dashboard.live import Live
        from localpuppet.web.dashboard.rollouts import Rollouts
        from localpuppet.web.dashboard.view_context import ViewContext
        from localpuppet.web.wiring.actions import SigningActor

        fleet, rows, store = sources.fleet, sources.rows, sources.feeding.store
        journals, elsewhere = _rollouts(fleet.node)
        way = self._way_in(listening[0].getsockname()[1])
        parts = ViewContext(
            fleet=rows,
            memory=sources.memory,
            inventory=Inventory(sources.view, fleet.entries.ask, site=self._site),
            staged=_staged(fleet.node),
            rollouts=Rollouts(journals, elsewhere, sources.memory),
            reports=sources.reports,
            live=Live(rows.changes, leave),
            door=way.door,
            clock=fleet.node.clock,
            log=sources.log,
            draw=draw_svg,
            entrance=way.entrance,
            actor=SigningActor(fleet, store, journals) if self._actions else None,
        )
        group.create_task(parts.rollouts.watch(rows.stir, leave))
        group.create_task(elsewhere.follow(store, rows.stir, leave))
        group.create_task(serve(application(parts), listening, leave, tls=way.tls))
        return way.door.url, way.link()


def _feed(fleet: FleetApp, view: "View", log: "Log") -> "FleetFeed":
    """Return the sources of the dashboard's rows."""
    from localpuppet.web.dashboard.fleet_feed import FleetFeed

    return FleetFeed(
        connect=fleet.connect,
        view=view,
        follow=lambda store, leave: fleet.follower(store, log).follow(leave),
        agent_is_there=fleet.entries.agent_is_there,
        log=log,
        follow_history=lambda board, store: fleet.history_follower(board, store, log).run(),
    )


def _memory(node: NodeApp, now: Callable[[], float], log: "Log") -> "DashboardStore":
    """Return the dashboard's memory; drop one that an earlier version wrote."""
    from localpuppet.web.dashboard.memory import FILE, DashboardStore

    memory = DashboardStore(node.settings.state / FILE, now=now)
    if memory.begin(lambda: log.info("waiting for another dashboard that creates the database")):
        log.warning("deleted the database of another version, with the results of earlier runs")
    return memory


def _rows(memory: "DashboardStore", verifier: "Verifier", now: Callable[[], float]) -> "Fleet":
    """Return the rows from the memory."""
    from localpuppet.web.dashboard.fleet import Fleet

    return Fleet(
        memory,
        believe=lambda node, token: believe(verifier, node, token),
        now=now,
    )


def _site(node: NodeApp, file: "Path") -> "SiteInventory":
    """Return the site in a file, which is read again when it has changed.

    Raises:
        InvalidInputError: The file is invalid.
    """
    from localpuppet.base.machine.reloaded_files import ReloadedFiles
    from localpuppet.rollout.site_file import read_site
    from localpuppet.web.dashboard.inventory_questions import SiteInventory

    read = ReloadedFiles([file], lambda: read_site(str(file), node.documents))
    read()
    return SiteInventory(name=str(file), read=read)


def _staged(node: NodeApp) -> "StagedReleases":
    """Return the staged releases of this machine."""
    from localpuppet.node.releases.staged import StagedRecords
    from localpuppet.node.releases.tag_memory import TagMemory
    from localpuppet.web.dashboard.staged import LocalStagedReleases

    return LocalStagedReleases(
        StagedRecords(node.settings.state),
        node.resolve,
        repository=node.git(),
        sources=node.settings.sources,
        reader=node.files,
        tags=TagMemory(node.settings.state),
        monotonic=node.clock.monotonic,
    )


def _rollouts(node: NodeApp) -> "tuple[Journals, RemoteRollouts]":
    """Return the journals of the rollouts of this machine, and the rollouts on other machines."""
    from localpuppet.rollout.app import RolloutApp
    from localpuppet.web.dashboard.remote_rollouts import RemoteRollouts

    rollouts = RolloutApp(node)
    return rollouts.journals, RemoteRollouts(rollouts.checkpoints)


@contextmanager
def opening(node: NodeApp) -> Iterator[Callable[[str], bool]]:
    """Yield a function that opens a link in a browser, and returns whether one exists.

    Every user of this machine can read a browser's arguments and so could use the link first. The
    browser gets a private file that redirects to the link, and is removed at the end.
    """
    file = node.settings.state / "web" / "open.html"

    def open_(link: str) -> bool:
        import webbrowser

        from localpuppet.base.machine.files import make_private, write_durably

        make_private(file.parent)
        write_durably(
            file, f'<!doctype html><meta http-equiv="refresh" content="0; url={link}">'.encode()
        )
        return webbrowser.open(file.as_uri())

    try:
        yield open_
    finally:
        file.unlink(missing_ok=True)


def _tell(
    fleet: FleetApp, me: "NodeName", store: "Store"
) -> "Callable[[str, NodeName, RunId], Awaitable[Mapping[str, Json]]]":
    """Return a function that reads a run from this machine's record or asks its node."""

    async def tell(action: str, name: "NodeName", run: "RunId") -> "Mapping[str, Json]":
        if name == me:
            return await asyncio.to_thread(_own, fleet, action, run)
        from localpuppet.fleet.requests.request import RunArguments

        client = fleet.requests(await store())
        answer = await client.ask(name, action, RunArguments(run=run), patience=PATIENCE)
        if answer.reply is None:
            raise LocalpuppetError(answer.problem, where=name)
        if not answer.ok:
            raise LocalpuppetError(answer.reply.error or "rejects the request", where=name)
        return answer.reply.result

    return tell


def _own(fleet: FleetApp, action: str, run: "RunId") -> "Mapping[str, Json]":
    from localpuppet.base.formats.records import to_record
    from localpuppet.node.runs.run_replies import log_reply, report_reply

    records = fleet.node.records
    directory = records.get(run)
    status = records.status(directory)
    if action == "log":
        return log_reply(directory, status)
    return to_record(report_reply(directory, status))
