"""The parts of `localpuppet web`: the dashboard, the PuppetDB API, or both in one process.

The dashboard has a link on loopback, and the API a list of local users. Elsewhere both require
certificates over TLS.
"""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, UnavailableError, errors_at
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.machine.anchors import server_tls_context
from localpuppet.base.machine.files import ReloadedFiles, make_private, write_durably
from localpuppet.base.machine.flock import Flock
from localpuppet.base.machine.own_program import require_extra
from localpuppet.base.machine.processes import share_heap
from localpuppet.base.value import Value
from localpuppet.fleet.app import FleetApp
from localpuppet.node.settings import FILE
from localpuppet.web.access import rules
from localpuppet.web.access.serving import ConnectionTable, ListenAddress, Tls, bound, serve
from localpuppet.web.web_settings import WebSettings, web_settings

if TYPE_CHECKING:
    from pathlib import Path
    from socket import socket

    from localpuppet.base.formats.names import NodeName, RunId, SignerName
    from localpuppet.base.formats.values import Json
    from localpuppet.base.machine.ports import Log
    from localpuppet.fleet.inventory.entry import InventoryEntry
    from localpuppet.fleet.inventory.view import View
    from localpuppet.fleet.kept_catalogs import NodeCatalog
    from localpuppet.fleet.leases.lease import Leases
    from localpuppet.node.app import NodeApp
    from localpuppet.web.access.rules import AccessRule, Visitor
    from localpuppet.web.dashboard.fleet_feed import FleetFeeder
    from localpuppet.web.dashboard.inventory_questions import Reports, SiteInventory
    from localpuppet.web.dashboard.memory import DashboardStore
    from localpuppet.web.dashboard.releases import StagedReleases
    from localpuppet.web.dashboard.rollout_previews import RolloutPreviews
    from localpuppet.web.dashboard.rollouts import Rollouts
    from localpuppet.web.hooks.hook_worker import HookWorker
    from localpuppet.web.hooks.receiver import HookReceiver
    from localpuppet.web.notify.notifier import Notifier
    from localpuppet.web.puppetdb.catalogs import CatalogSource
    from localpuppet.web.puppetdb.report_views import ReportViews

LISTEN, PUPPETDB = "--listen 127.0.0.1:8141", "--puppetdb 127.0.0.1:8080"
HOOKS = "--hooks 127.0.0.1:8142"
# The file of the host name on loopback, in the state directory.
NAME_FILE = "web/host-name"
# Seconds that a node has to answer, and for the catalogs of a few nodes.
PATIENCE = 10.0
FETCH_PATIENCE = 30.0
# Seconds for which a thread keeps the interpreter while others wait for it.
SWITCH = 0.001


class WebOptions(Value):
    """What a process serves, and where; a service without an address is not served."""

    listen: str | None
    notify: bool = False
    puppetdb: str | None = None
    hooks: str | None = None  # address and port for deliveries of git hosts
    actions: bool = False  # whether the dashboard's actions are enabled, in the signer's name
    # The file of the site whose plan is shown; `None` for the inventory's.
    site: "Path | None" = None


class WebAddresses(Value):
    """The URLs of the services, and a one-time link to the dashboard without TLS."""

    dashboard: str = ""
    link: str = ""
    puppetdb: str = ""
    hooks: str = ""


class DashboardAccess(Value):
    door: "AccessRule"
    entrance: rules.LoopbackDoor | None = None  # the same rules with a link; `None` over TLS
    tls: Tls | None = None
    # Returns whether a visitor with access may read releases; all on loopback, where the visitor
    # started the dashboard.
    reads_code: "Callable[[Visitor], bool]" = lambda _: True

    def link(self) -> str:
        """Return a one-time link; empty over TLS."""
        if self.entrance is None:
            return ""
        return f"{self.entrance.url[:-1]}{rules.ENTER}?key={self.entrance.sessions.link()}"


# The access to the API.
ApiAccess = tuple[rules.LocalUserRule | rules.PeopleDoor, Tls | None]


class WebApp:
    """The services of this process, with one connection to the bus."""

    def __init__(self, fleet: FleetApp, log: "Log") -> None:
        self.fleet = fleet
        self.node = fleet.node
        self.log = log

    def now(self) -> float:
        """Return the time in seconds since 1970, UTC."""
        return self.node.clock.now().timestamp()

    @cached_property
    def view(self) -> "View":
        """This node's copy of the inventory."""
        return self.fleet.view()

    @cached_property
    def memory(self) -> "DashboardStore":
        """The dashboard's memory; one that an earlier version wrote is converted or dropped."""
        from localpuppet.web.dashboard.memory import FILE as MEMORY
        from localpuppet.web.dashboard.memory import DashboardStore

        memory, log = DashboardStore(self.node.settings.state / MEMORY, now=self.now), self.log
        if memory.begin(
            lambda: log.info("waiting for another dashboard that creates the database")
        ):
            log.warning("deleted the database of another version, with the results of earlier runs")
        return memory

    @cached_property
    def feeder(self) -> "FleetFeeder":
        """Keeps memory and view current."""
        from localpuppet.fleet.inventory.presence import believe
        from localpuppet.fleet.trust.signing import certificate_end
        from localpuppet.web.dashboard.fleet import Fleet
        from localpuppet.web.dashboard.fleet_feed import FleetFeeder

        fleet, log, verifier = self.fleet, self.log, self.fleet.verifier
        heard = Fleet(
            self.memory,
            believe=lambda node, token: believe(verifier, node, token),
            certificate_end=certificate_end,
            now=self.now,
        )
        heard.has_no_bus = not fleet.settings.bus.named
        return FleetFeeder(
            heard,
            self.memory,
            connect=fleet.connect,
            view=self.view,
            follow=lambda store, leave: fleet.follower(store, log).follow(leave),
            agent_is_there=fleet.entries.agent_is_there,
            log=log,
            follow_history=lambda board, store: fleet.history_follower(board, store, log).run(),
        )

    @cached_property
    def reports(self) -> "Reports":
        """Requests reports and logs from nodes; this machine's are read from its records."""
        from localpuppet.web.dashboard.inventory_questions import Reports

        async def tell(action: str, name: "NodeName", run: "RunId") -> "Mapping[str, Json]":
            if name == self.fleet.name:
                return await asyncio.to_thread(self._own, action, run)
            from localpuppet.fleet.requests.request import RunArguments

            client = self.fleet.requests(await self.feeder.store())
            answer = await client.ask(name, action, RunArguments(run=run), patience=PATIENCE)
            if answer.reply is None:
                raise LocalpuppetError(answer.problem, where=name)
            if not answer.ok:
                raise LocalpuppetError(answer.reply.error or "rejects the request", where=name)
            return answer.reply.result

        return Reports(tell)

    def _own(self, action: str, run: "RunId") -> "Mapping[str, Json]":
        from localpuppet.base.formats.converter import to_record
        from localpuppet.node.runs.run_replies import log_reply, report_reply

        records = self.node.records
        directory = records.get(run)
        status = records.status(directory)
        if action == "log":
            return log_reply(directory, status)
        return to_record(report_reply(directory, status))

    @cached_property
    def rollouts(self) -> "Rollouts":
        """The rollouts that this machine knows."""
        from localpuppet.rollout.app import RolloutApp
        from localpuppet.web.dashboard.reported_rollouts import RemoteRollouts
        from localpuppet.web.dashboard.rollouts import Rollouts

        known = RolloutApp(self.node)
        return Rollouts(known.journals, RemoteRollouts(known.checkpoints), self.memory)

    def notifier(self) -> "Notifier":
        """Return what tells the channels of the settings what goes wrong."""
        from random import SystemRandom
        from uuid import uuid4

        from localpuppet.web.dashboard.inventory_questions import Inventory
        from localpuppet.web.notify.channels import verified_releases
        from localpuppet.web.notify.notice_ledger import FILE as LEDGER
        from localpuppet.web.notify.notice_ledger import NoticeLedger
        from localpuppet.web.notify.notifier import Election, FleetSight, Notifier
        from localpuppet.web.notify.routing import notify_settings

        node, fleet = self.node, self.fleet
        settings = node.section(notify_settings)
        if not settings.channels:
            raise InvalidInputError(
                "names no channel", where=f"{node.settings.root / FILE}: notify.channels"
            )
        session = str(uuid4())

        async def leases() -> "Leases":
            kv = await self.feeder.store()
            return fleet.leases(kv, holder=fleet.signer.name, session=session)

        return Notifier(
            settings,
            FleetSight(
                fleet=self.feeder.fleet,
                memory=self.memory,
                rollouts=self.rollouts.rows,
                certificates=self._certificate_ends,
                names=Inventory(self.view, fleet.entries.ask).names,
                releases=lambda source: verified_releases(
                    node.settings.state, node.settings.sources, source=source
                ),
            ),
            NoticeLedger(
                node.settings.state / LEDGER,
                settings.fleet,
                settings.dashboard,
                SystemRandom().random,
            ),
            Election(leases) if fleet.settings.bus.named else None,
            root=node.settings.root,
            metrics=node.settings.metrics,
            clock=node.clock,
            log=self.log,
        )

    def hooks(self) -> "tuple[HookReceiver, HookWorker]":
        """Return the receiver of deliveries, and the worker for what they lead to."""
        from localpuppet.web.dashboard.inventory_questions import Inventory
        from localpuppet.web.dashboard.signing_actor import SigningActor
        from localpuppet.web.hooks.hook_settings import hook_settings
        from localpuppet.web.hooks.hook_worker import HookActor, HookWorker, TagSearch, rollout_of
        from localpuppet.web.hooks.receiver import HookReceiver

        node, fleet, log = self.node, self.fleet, self.log
        hooks, file = node.section(hook_settings), node.settings.root / FILE
        if not hooks:
            raise InvalidInputError("names no hook", where=f"{file}: hooks")
        fleet.require_bus()
        me = fleet.signer.name
        for name, hook in hooks.items():
            hook.secret()
            if hook.caller != me:
                where = f"{file}: hooks.{name}.caller"
                raise InvalidInputError(
                    f"is {hook.caller}, and requests are signed by {me}", where=where
                )
            if hook.rollout:
                with errors_at(f"{file}: hooks.{name}.rollout"):
                    rollout_of(hook, ReleasePath(f"{hook.source}/tags/example"))
        actor = HookActor(
            SigningActor(fleet, self.feeder.store, self.rollouts.journals),
            Inventory(self.view, fleet.entries.ask).names,
            self.memory,
            node.clock,
            log,
        )
        worker = HookWorker(
            hooks,
            TagSearch(node.supply, node.git()).look,
            actor.act,
            state=node.settings.state,
            metrics=node.settings.metrics,
            clock=node.clock,
            log=log,
        )
        receiver = HookReceiver(hooks, worker.deliver, node.clock, log)
        worker.forget, worker.refused = receiver.forget, lambda: receiver.refused
        worker.show = partial(self.feeder.fleet.note_failing, "hook")
        return receiver, worker

    async def _serve_hooks(
        self,
        receiver: "HookReceiver",
        worker: "HookWorker",
        tls: Tls | None,
        group: asyncio.TaskGroup,
        listening: "Sequence[socket]",
        leave: asyncio.Event,
    ) -> dict[str, str]:
        from localpuppet.web.hooks.receiver import CONNECTIONS

        app = receiver.application()
        group.create_task(serve(app, listening, leave, tls=tls, patience=CONNECTIONS))
        group.create_task(worker.run(leave))
        host, port = listening[0].getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        return {"hooks": f"http{'s' if tls else ''}://{shown}:{port}/hooks/NAME"}

    def _certificate_ends(self) -> "Mapping[str, float]":
        """Return when the certificates of this machine end, by file."""
        from localpuppet.fleet.trust.authority import read_certificate

        identity, web = self.fleet.peers.identity, self.node.section(web_settings)
        bus = self.fleet.settings.bus
        server = bus.servers.get(bus.engine)
        of_bus = () if server is None else (server.ca, server.certificate)
        files = (identity.ca, identity.certificate, web.certificate, *of_bus)
        ends = {}
        for file in filter(None, files):
            with suppress(InvalidInputError):  # other parts report it
                ends[str(file)] = read_certificate(file).not_valid_after_utc.timestamp()
        return ends

    def staged(self) -> "StagedReleases":
        """Return the staged releases of this machine."""
        from localpuppet.node.releases.release_records import StagedRecords, TagMemory
        from localpuppet.web.dashboard.releases import StagedReleases

        node, state = self.node, self.node.settings.state
        return StagedReleases(
            StagedRecords(state),
            node.resolve,
            repository=node.git(),
            sources=node.settings.sources,
            reader=node.files,
            tags=TagMemory(state),
            monotonic=node.clock.monotonic,
        )

    def previews(self) -> "RolloutPreviews":
        from localpuppet.node.app import program_environment
        from localpuppet.node.releases.release_records import StagedRecords
        from localpuppet.web.dashboard.rollout_previews import RolloutPreviews

        return RolloutPreviews(
            captures=self.node.section(web_settings).captures,
            records=StagedRecords(self.node.settings.state),
            root=self.node.settings.root,
            env=program_environment(),
            now=self.now,
        )

    def site(self, file: "Path") -> "SiteInventory":
        """Return the site in a file, which is read again when it has changed."""
        from localpuppet.rollout.site_file import read_site
        from localpuppet.web.dashboard.inventory_questions import SiteInventory

        read = ReloadedFiles([file], lambda: read_site(str(file), self.node.documents))
        read()
        return SiteInventory(name=str(file), read=read)

    async def serve(self, options: WebOptions, opened: Callable[[WebAddresses], None]) -> None:
        """Serve until a signal ends the process; a port that is taken is a `StateError`."""
        require_extra("web", where="localpuppet web")

        share_heap()
        leave, starts = asyncio.Event(), list[tuple[ListenAddress, Callable[..., Any]]]()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, leave.set)
        notifier = self.notifier() if options.notify else None
        # All settings are checked, and all ports are taken, before anything is served.
        if options.puppetdb is not None:
            place = ListenAddress.parse(options.puppetdb, option="--puppetdb")
            starts.append((place, partial(self._serve_api, self.api_way_in(place))))
        if options.hooks is not None:
            place = ListenAddress.parse(options.hooks, option="--hooks")
            tls = None if place.is_loopback else self._tls(None)
            starts.append((place, partial(self._serve_hooks, *self.hooks(), tls)))
        if options.listen is not None:
            place = ListenAddress.parse(options.listen)
            site = None if options.site is None else self.site(options.site)
            way_in = self.way_in(place, actions=options.actions)
            board = partial(self._serve_dashboard, way_in, site, actions=options.actions)
            starts.append((place, board))
        addresses = dict[str, str]()
        with ExitStack() as held:
            gc.disable()  # for the modules that are loaded now; see `localpuppet.__main__`
            held.callback(gc.enable)
            held.callback(self.view.close)
            for option, serves in (
                ("notify", options.notify),
                ("hooks", options.hooks is not None),
            ):
                if serves:
                    held.enter_context(self._alone(option))
            sockets = [held.enter_context(bound(place)) for place, _ in starts]
            async with asyncio.TaskGroup() as group:
                for (_, start), listening in zip(starts, sockets, strict=True):
                    addresses |= await start(group, listening, leave)
                gc.freeze()
                gc.enable()
                group.create_task(self.feeder.run(leave))
                if options.notify or options.listen is not None:
                    stir, rollouts = self.feeder.fleet.stir, self.rollouts
                    group.create_task(rollouts.watch(stir, leave))
                    group.create_task(rollouts.elsewhere.follow(self.feeder.store, stir, leave))
                if notifier is not None:
                    group.create_task(notifier.run(leave))
                opened(WebAddresses(**addresses))

    def _alone(self, option: str) -> Flock:
        """Return a lock: two processes would send each message, or begin each rollout, twice."""
        return Flock.need(
            self.node.settings.state / "web" / f"{option}.lock",
            f"another process serves with --{option}",
            hint=f"end it, or omit --{option}",
        )

    async def _serve_dashboard(
        self,
        way_in: "Callable[[int], DashboardAccess]",
        site: "SiteInventory | None",
        group: asyncio.TaskGroup,
        listening: "Sequence[socket]",
        leave: asyncio.Event,
        *,
        actions: bool,
    ) -> dict[str, str]:
        # The API, which is served already, answers meanwhile.
        await asyncio.to_thread(import_module, "localpuppet.web.dashboard.pages")
        from localpuppet.rollout.svg import draw_svg
        from localpuppet.web.dashboard.inventory_questions import Inventory
        from localpuppet.web.dashboard.live import Live
        from localpuppet.web.dashboard.pages import application
        from localpuppet.web.dashboard.signing_actor import SigningActor
        from localpuppet.web.dashboard.view_context import ViewContext

        way = way_in(listening[0].getsockname()[1])
        heard, store = self.feeder.fleet, self.feeder.store
        parts = ViewContext(
            fleet=heard,
            memory=self.memory,
            inventory=Inventory(self.view, self.fleet.entries.ask, site=site),
            staged=self.staged(),
            rollouts=self.rollouts,
            reports=self.reports,
            live=Live(heard.changes, leave),
            door=way.door,
            clock=self.node.clock,
            log=self.log,
            draw=draw_svg,
            entrance=way.entrance,
            reads_code=way.reads_code,
            actor=SigningActor(self.fleet, store, self.rollouts.journals) if actions else None,
            previews=self.previews() if actions else None,
        )
        group.create_task(serve(application(parts), listening, leave, tls=way.tls))
        return {"dashboard": way.door.url, "link": way.link()}

    async def _serve_api(
        self,
        way_in: "Callable[[int], ApiAccess]",
        group: asyncio.TaskGroup,
        listening: "Sequence[socket]",
        leave: asyncio.Event,
    ) -> dict[str, str]:
        from localpuppet.fleet.inventory.query.evaluating import Evaluation
        from localpuppet.fleet.inventory.query.records import CombinedRecords
        from localpuppet.web.puppetdb.answering import Answering
        from localpuppet.web.puppetdb.answers import AnswerBodies
        from localpuppet.web.puppetdb.app import ApiContext, application, population
        from localpuppet.web.puppetdb.report_rows import part_of_report
        from localpuppet.web.puppetdb.report_views import ReportViews

        # Queries run in threads: the event loop waits that long for each of them, not 5 ms.
        sys.setswitchinterval(SWITCH)
        clock, view, memory = self.node.clock, self.view, self.memory
        reports = ReportViews(memory.path, memory.snapshot, now=self.now, forgotten=view.forgotten)
        rule, tls = way_in(listening[0].getsockname()[1])
        directory = self.node.settings.state / "web"
        make_private(directory)
        answering = Answering(
            reader=view,
            records=CombinedRecords([reports, self._catalogs(reports)]),
            ask=self.fleet.entries.ask,
            bodies=AnswerBodies(directory),
            monotonic=clock.monotonic,
        )
        context = ApiContext(
            answering=answering,
            clock=clock,
            client=rule.client,
            details=partial(
                part_of_report,
                find=reports.find,
                ask=lambda node, run: self.reports.ask("log", node, run, again=True),
            ),
            metrics=lambda: population(Evaluation(view, answering.records)),
        )

        async def serving() -> None:
            try:
                knows = rule.admits if isinstance(rule, rules.LocalUserRule) else None
                await serve(application(context, rule), listening, leave, tls=tls, knows=knows)
            finally:
                answering.close()

        group.create_task(serving())
        return {"puppetdb": rule.url}

    def _catalogs(self, reports: "ReportViews") -> "CatalogSource":
        """Return the source of whole catalogs, which reads from the bus and asks nodes."""
        from localpuppet.fleet.kept_catalogs import CatalogKeeper, CatalogReader
        from localpuppet.web.puppetdb.catalogs import CatalogSource

        reader = CatalogReader(
            self.fleet.name,
            CatalogKeeper(self.node.settings.state),
            store=self.feeder.store,
            client=self.fleet.requests,
            monotonic=self.node.clock.monotonic,
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

        return CatalogSource(self.view, fetch, reports)

    def way_in(self, place: ListenAddress, *, actions: bool) -> "Callable[[int], DashboardAccess]":
        """Return a function that builds the access to the dashboard for a port."""
        clock, file = self.node.clock, self.node.settings.state / NAME_FILE
        if not place.is_loopback:
            if actions:
                raise InvalidInputError(
                    "--actions works on loopback only",
                    where="--listen",
                    hint="omit --actions or --listen",
                )

            door, tls = self._over_tls("web.people", lambda web: web.people, rules.METHODS, LISTEN)
            readers = ReloadedFiles(
                [self.node.settings.root / FILE],
                lambda: self.node.again().section(web_settings).release_readers,
            )

            def over_tls(port: int) -> DashboardAccess:
                rule = door(port)
                return DashboardAccess(
                    door=rule, tls=tls, reads_code=lambda one: rule.client(one) in readers()
                )

            return over_tls

        def on_loopback(port: int) -> DashboardAccess:
            name = ""
            if place.is_localhost:
                # While no dashboard runs, another user can serve pages at a kept name (ADR 41).
                # Their scripts could read with the next session, but must not act with it.
                name = rules.host_name() if actions else rules.kept_host_name(file)
            sessions = rules.Sessions(clock.monotonic)
            door = rules.LoopbackDoor(
                place.address, port, sessions, clock.monotonic, acts=actions, name=name
            )
            return DashboardAccess(door=door, entrance=door)

        return on_loopback

    def api_way_in(self, place: ListenAddress) -> "Callable[[int], ApiAccess]":
        """Return a function that builds the access to the API for a port."""
        if not place.is_loopback:
            door, tls = self._over_tls(
                "web.puppetdb.names", lambda web: web.puppetdb.names, rules.QUERY_METHODS, PUPPETDB
            )
            return lambda port: (door(port), tls)
        users = self._local_users()
        users()  # report errors of the list at once

        def on_loopback(port: int) -> ApiAccess:
            monotonic = self.node.clock.monotonic
            rule = rules.LocalUserRule(
                place.address, port, users=users, owner=rules.socket_owner, monotonic=monotonic
            )
            return rule, None

        return on_loopback

    def _local_users(self) -> "Callable[[], Collection[int]]":
        """Return a function that returns the current readers on this machine."""
        import pwd

        file = self.node.settings.root / FILE

        def users() -> frozenset[int]:
            numbers = {0, os.geteuid()}
            for name in self.node.again().section(web_settings).puppetdb.users:
                try:
                    numbers.add(pwd.getpwnam(name).pw_uid)
                except KeyError as error:
                    raise InvalidInputError(
                        f"this machine has no user {name!r}",
                        where=f"{file}: web.puppetdb.users",
                        hint="create the user, or correct its name",
                    ) from error
            return frozenset(numbers)

        return ReloadedFiles([file] if file.exists() else [], users)

    def _over_tls(
        self,
        setting: str,
        listed: "Callable[[WebSettings], Collection[SignerName]]",
        methods: Collection[str],
        loopback: str,
    ) -> "tuple[Callable[[int], rules.PeopleDoor], Tls]":
        """Return the access with certificates for a port, and TLS; `setting` lists the names."""
        from localpuppet.fleet.trust.authority import read_certificate, server_names

        node, file = self.node, self.node.settings.root / FILE
        web, ca = node.section(web_settings), self.fleet.peers.identity.ca
        if not listed(web):
            port = loopback.rpartition(":")[2]
            raise InvalidInputError(
                "lists no name",
                where=f"{file}: {setting}",
                hint=f"{loopback} needs no certificates; from another machine, use"
                f" ssh -L {port}:127.0.0.1:{port} HOST",
            )
        if ca is None:
            raise InvalidInputError(
                "must name the CA of the people's certificates", where=f"{file}: identity.ca"
            )
        certificate, _ = self._server_certificate()
        names = server_names(read_certificate(certificate))
        if not names:
            raise InvalidInputError(
                "has no host name for browsers (subjectAltName)",
                where=str(certificate),
                hint="set web.certificate and web.key to another certificate",
            )
        door = partial(
            rules.PeopleDoor,
            names,
            people=ReloadedFiles([file], lambda: listed(node.again().section(web_settings))),
            holder=self.fleet.verifier.holder,
            monotonic=node.clock.monotonic,
            setting=setting,
            methods=methods,
        )
        return door, self._tls(ca)

    def _tls(self, ca: "Path | None") -> Tls:
        """Return TLS with the dashboard's certificate, and the CA of clients if they need one."""
        certificate, key = self._server_certificate()
        files = [file for file in (ca, certificate, key) if file is not None]
        context = ReloadedFiles(files, lambda: server_tls_context(ca, certificate, key))
        context()  # report errors of the files at once
        crowd, named = ConnectionTable(), ca is not None
        return Tls(context=context, crowd=crowd, log=self.log, names_clients=named)

    def _server_certificate(self) -> "tuple[Path, Path | None]":
        """Return the dashboard's certificate and its key."""
        web, identity = self.node.section(web_settings), self.fleet.peers.identity
        certificate, key = web.certificate, web.key
        if certificate is None or key is None:
            certificate, key = identity.certificate, identity.key
        if certificate is None:
            raise InvalidInputError(
                "names no certificate for the dashboard",
                where=f"{self.node.settings.root / FILE}: web",
                hint="set web.certificate and web.key, or identity.certificate and identity.key",
            )
        return certificate, key


@contextmanager
def opening(node: "NodeApp") -> Iterator[Callable[[str], bool]]:
    """Yield a function that opens a link in a browser, and returns whether one exists.

    Every user of this machine can read a browser's arguments and so could use the link first. The
    browser gets a private file that redirects to the link, and is removed at the end.
    """
    file = node.settings.state / "web" / "open.html"

    def open_(link: str) -> bool:
        import webbrowser

        make_private(file.parent)
        write_durably(
            file, f'<!doctype html><meta http-equiv="refresh" content="0; url={link}">'.encode()
        )
        return webbrowser.open(file.as_uri())

    try:
        yield open_
    finally:
        file.unlink(missing_ok=True)
