"""Builders of dashboards: a site of played nodes, their past, and visitors."""

import asyncio
import json
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.converter import from_record, to_record
from localpuppet.base.formats.names import NodeName, ReleasePath, RolloutId, RunId
from localpuppet.base.formats.values import Json
from localpuppet.fleet.bus.key_value import (
    KeyListing,
    KeyRemoval,
    KeyValue,
    KeyValueEntry,
    KeyWrite,
)
from localpuppet.fleet.bus.layout import PRESENCE
from localpuppet.fleet.history.history_records import AuditDecision, AuditRecord
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.presence import NodeRow
from localpuppet.fleet.inventory.reading import InventoryAnswer, InventoryReader, must_ask
from localpuppet.fleet.inventory.run_end import Kind, RunEnd
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.node.releases.comparison import NameDifference
from localpuppet.node.releases.git.git_modules import Pin
from localpuppet.node.releases.git.git_names import GitUrl, Tag, TagObject
from localpuppet.node.releases.release_records import StagedRelease
from localpuppet.node.releases.source import ReleaseSource
from localpuppet.node.runs.run_replies import RunReport
from localpuppet.rollout.checkpoints import RolloutCheckpoints
from localpuppet.rollout.commands import RolloutCommand
from localpuppet.rollout.events import Event, RolloutBegan
from localpuppet.rollout.journal import Journals, JournalWriter
from localpuppet.rollout.rollout_options import RolloutOptions
from localpuppet.rollout.svg import draw_svg
from localpuppet.web.access.rules import LoopbackDoor, Sessions
from localpuppet.web.access.serving import PATIENCE, ConnectionLimits, ListenAddress, bound, serve
from localpuppet.web.app import DashboardAccess
from localpuppet.web.dashboard import nodes
from localpuppet.web.dashboard.actions import ActionOutcome, ActionResult, NodeAction, NodeVerdict
from localpuppet.web.dashboard.fleet import Fleet, FleetLimits
from localpuppet.web.dashboard.inventory_questions import Inventory, Reports, SiteInventory
from localpuppet.web.dashboard.list_query import ListQuery
from localpuppet.web.dashboard.live import Live
from localpuppet.web.dashboard.memory import DashboardStore
from localpuppet.web.dashboard.nodes import of_name
from localpuppet.web.dashboard.pages import application
from localpuppet.web.dashboard.releases import StagedReleases
from localpuppet.web.dashboard.reported_rollouts import RemoteRollouts
from localpuppet.web.dashboard.rollout_actions import Groups, RolloutStart
from localpuppet.web.dashboard.rollouts import Rollouts
from localpuppet.web.dashboard.run_table import RunRow
from localpuppet.web.dashboard.signing_actor import SigningActor
from localpuppet.web.dashboard.view_context import Draw, ViewContext
from tests.doubles.inventory import MemoryInventory
from tests.doubles.ports import FakeClock, FakeLog
from tests.fleet.make import a_part, an_end

MAX_STALE = 900.0
NAME = "0123456789abcdef"
DIFFERENCE = "/releases/difference?from=web%2Ftags%2Fr7&to=web%2Ftags%2Fr9"
EVIL = "<script>alert(1)</script>\"'><svg onload=alert(2)>\u202e"

RESOURCE: dict[str, Any] = {
    "result": "failed",
    "file": "",
    "line": None,
    "place": "",
    "seconds": None,
    "time": "",
    "events": [],
}


# The same without what a presence refuses in the end of a run.
EVIL_LINE = EVIL.replace("\u202e", "")


def run_id(at: float) -> RunId:
    """Return the id of a run that was requested at a time."""
    return RunId.parse(f"{datetime.fromtimestamp(at, UTC):%Y%m%dT%H%M%S.%fZ}-00aa")


def status(node: str, at: float, **more: Any) -> dict[str, Any]:
    """Return a presence; `more` are its fields, and `last_run` those of its last run."""
    end = an_end(at, run=run_id(at), release="web/tags/r7", run_interval=1800.0)
    last = {**to_record(end), **more.pop("last_run", {})}
    last["started_at"] = min(last["started_at"], last["finished_at"])
    return {
        "schema": 1,
        "node": node,
        "state": "idle",
        "run_interval": 1800.0,
        "cause": None,
        "waiting": 0,
        "holds": [],
        "last_run": last,
        **more,
    }


def told_report(**parts: Any) -> dict[str, Any]:
    """Return a report as a node sends it; its parts and resources may lack fields."""
    whole: dict[str, Any] = json.loads(json.dumps(to_record(RunReport(run={}, report=False))))
    query: dict[str, Any] = {"age": None, "reason": "", "names": []}
    usual: dict[str, dict[str, Any]] = {
        "causes": {"kind": "", "sender": "", "path": [], "tags": []},
        "queries": query,
        "collected": query,
        **dict.fromkeys(("failed", "changed", "skipped", "slowest"), RESOURCE),
    }
    event = {"property": "", "status": "", "time": ""}
    for name, value in parts.items():
        if name in usual and isinstance(value, list):
            value = [{**usual[name], **item} if isinstance(item, dict) else item for item in value]
            for item in value:
                if isinstance(item, dict) and "events" in item:
                    item["events"] = [{**event, **one} for one in item["events"]]
        whole[name] = value
    return whole


def believed(status: dict[str, Any]) -> dict[str, Any]:
    """Return a presence as `presence.believe` does."""
    last = status.get("last_run")
    try:
        return {**status, "last_run": None if last is None else from_record(RunEnd, last)}
    except InvalidInputError as error:
        return {"node": status["node"], "state": "not trusted", "reason": str(error)}


def nobodys_heads(kv: KeyValue) -> RolloutCheckpoints:
    raise AssertionError(f"this page does not follow rollouts on {kv}")


class PlayedActor(SigningActor):
    """Does each action, unless a node refuses or does not answer."""

    def __init__(self) -> None:
        self.name, self.machine = "choria=alice", "desk.example.com"
        self.deeds: list[NodeAction] = []
        self.words: list[str] = []
        self.groups: Groups = ()
        self.refuses = ""
        self.refusing: dict[str, str] = {}
        self.dead: set[str] = set()
        self.lost = ""
        self.cut: type[BaseException] | None = None
        self.begins = asyncio.Event()
        self.begins.set()

    async def act(self, deed: NodeAction) -> ActionOutcome:
        self.deeds.append(deed)
        if self.cut is not None:
            raise self.cut
        if self.lost:
            raise LocalpuppetError(self.lost)
        return ActionOutcome.of_nodes(deed, map(self._result, deed.nodes))

    def _result(self, node: NodeName) -> ActionResult:
        if node in self.dead:
            return ActionResult(node=node, verdict=NodeVerdict.NO_ANSWER, reason="did not answer")
        if reason := self.refusing.get(node, self.refuses):
            return ActionResult(node=node, verdict=NodeVerdict.REFUSED, reason=reason)
        return ActionResult(node=node, verdict=NodeVerdict.ACCEPTED)

    async def say(self, rollout: RolloutId, word: RolloutCommand, about: str) -> str:
        self.words.append(f"{rollout} {word} {about}".rstrip())
        return f"{rollout} has the command"

    async def plan(self, selection: Mapping[str, str]) -> Groups:
        self.words.append(f"plan {dict(selection)}")
        return self.groups

    async def start(self, start: RolloutStart) -> RolloutId:
        self.words.append(start.command)
        await self.begins.wait()
        if self.refuses:
            raise LocalpuppetError(self.refuses)
        return RolloutId("20261122T110000Z-00aa")

    async def resume(self, rollout: RolloutId) -> str:
        self.words.append(f"{rollout} resume")
        if self.refuses:
            raise LocalpuppetError(self.refuses, where=str(rollout))
        return f"a process continues {rollout}"


class PlayedReleases(StagedReleases):
    """What a site has staged, all of it signed by alice."""

    def __init__(self, site: "Site") -> None:
        self._site = site
        self.sources = {"web": a_source(**site.forge)}

    def all(self) -> Sequence[StagedRelease]:
        return self._site.staged

    def signed(self, staged: StagedRelease) -> str:
        return "alice" if staged in self._site.staged else ""

    def tag(self, staged: StagedRelease) -> TagObject | None:
        at = int(self._site.now()) - 3600 * (9 - self._site.staged.index(staged))
        said = f"<b>{staged.pin.tag}</b>: ntp is faster"
        pin = staged.pin
        return TagObject(
            id=pin.tag_object,
            commit=pin.commit,
            annotated=True,
            tree="",
            tagged_at=at,
            subject=said,
            author="Carol Doe",
        )

    def differences(self, before: ReleasePath, after: ReleasePath) -> Mapping[str, NameDifference]:
        for app in (before, after):
            if app not in [one.release for one in self._site.staged]:
                raise InvalidInputError("is not staged on this machine", where=str(app))
        return self._site.differences

    def texts(
        self, before: ReleasePath, after: ReleasePath, names: Collection[str]
    ) -> Mapping[str, str]:
        return {name: self._site.texts[name] for name in names if name in self._site.texts}

    def manifest(self, release: ReleasePath, place: str) -> tuple[str, str]:
        return (place, self._site.manifests[place]) if place in self._site.manifests else ("", "")

    def tagged(self) -> Mapping[ReleasePath, int]:
        return {one.release: number for number, one in enumerate(self._site.staged, 1)}


def a_source(**more: str) -> ReleaseSource:
    """Return the source `web`; `more` are its settings."""
    raw = {"git": "https://git.example.com/web.git", **more}
    return ReleaseSource.from_dict("web", raw, root=Path("/"), allow_file=False)


@dataclass
class Site:
    """A dashboard."""

    directory: Path
    forge: dict[str, str] = field(default_factory=dict)
    clock: FakeClock = field(default_factory=FakeClock)
    entries: list[InventoryEntry] = field(default_factory=list)
    reports: dict[str, Mapping[str, Json]] = field(default_factory=dict)
    staged: list[StagedRelease] = field(default_factory=list)
    differences: dict[str, NameDifference] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    manifests: dict[str, str] = field(default_factory=dict)
    known: SiteInventory | None = None
    logs: dict[str, Mapping[str, Json]] = field(default_factory=dict)
    actor: SigningActor | None = None
    draw: Draw = draw_svg
    port: int = 80
    name: str = NAME
    revision: int = 0
    limits: FleetLimits = field(default_factory=FleetLimits)
    form_patience: float = 60.0
    begin_patience: float = 60.0

    def __post_init__(self) -> None:
        self.view = MemoryInventory(self.entries, current=self.now())
        self.memory = DashboardStore(self.directory / "web" / "fleet.sqlite", now=self.now)
        self.fleet = Fleet(
            self.memory,
            believe=lambda _, token: believed(json.loads(token)),
            certificate_end=lambda token: json.loads(token).get("certificate_end"),
            now=self.now,
            limits=self.limits,
        )
        self.asked: list[str] = []
        self.elsewhere = RemoteRollouts(nobodys_heads)
        self.log = FakeLog()

    def now(self) -> float:
        return self.clock.now().timestamp()

    def tell(self, *statuses: Mapping[str, Any]) -> None:
        """Have nodes publish their status, and their last runs."""
        for one in statuses:
            self.revision += 1
            key, value = PRESENCE + one["node"], json.dumps(one).encode()
            entry = KeyValueEntry(key=key, value=value, revision=self.revision)
            self.fleet.take(KeyWrite(entry=entry))
        self.remember()
        for one in statuses:
            row = self.row(one["node"])
            if row is not None and row.last is not None and row.run:
                self.memory.write_history([RunRow.of_end(row.node, row.last)], ())

    def leave(self, node: str) -> None:
        """Have a node's presence expire."""
        self.revision += 1
        self.fleet.take(KeyRemoval(key=PRESENCE + node, revision=self.revision))
        self.remember()

    def listing(self, *statuses: Mapping[str, Any]) -> None:
        """Have the bus list these nodes, and no others."""
        self.revision += 1
        entries = tuple(
            KeyValueEntry(
                key=PRESENCE + one["node"], value=json.dumps(one).encode(), revision=self.revision
            )
            for one in statuses
        )
        self.fleet.take(KeyListing(entries=entries, revision=self.revision))
        self.remember()

    def remember(self) -> None:
        """Write down what is new."""
        self.fleet.announce(self.fleet.write(self.fleet.waiting()))

    def row(self, name: str) -> NodeRow | None:
        """Return a node that was written down."""
        return self.memory.read(of_name, name)

    def list_(self, *entries: InventoryEntry) -> None:
        """Have nodes be in the inventory."""
        self.view.replace(*entries)
        roles = {str(one.node): one.roles for one in entries}
        self.fleet.listed(roles, all_=roles)
        self.remember()

    async def _tell(self, action: str, node: NodeName, run: RunId) -> Mapping[str, Json]:
        self.asked.append(f"{action} {node} {run}")
        if node not in (self.reports if action == "report" else self.logs):
            raise LocalpuppetError("did not answer in time", where=node)
        return told_report(**self.reports[node]) if action == "report" else self.logs[node]

    def ask(self, reader: InventoryReader, question: Any) -> InventoryAnswer[Any]:
        """Ask an inventory, by the site's clock."""
        return must_ask(reader, question, now=self.now(), max_stale=MAX_STALE)

    def way(self, address: str = "127.0.0.1") -> DashboardAccess:
        """Return the access to the dashboard: on loopback."""
        monotonic = self.clock.monotonic
        door = LoopbackDoor(
            address,
            self.port,
            Sessions(monotonic),
            monotonic,
            acts=self.actor is not None,
            name=self.name,
        )
        return DashboardAccess(door=door, entrance=door)

    def parts(self, leave: asyncio.Event, way: DashboardAccess) -> ViewContext:
        """Return what the views show from."""
        return ViewContext(
            fleet=self.fleet,
            memory=self.memory,
            inventory=Inventory(self.view, self.ask, site=self.known),
            staged=PlayedReleases(self),
            rollouts=Rollouts(Journals(self.directory / "rollouts"), self.elsewhere, self.memory),
            reports=Reports(self._tell),
            live=Live(self.fleet.changes, leave),
            door=way.door,
            reads_code=way.reads_code,
            entrance=way.entrance,
            clock=self.clock,
            log=self.log,
            draw=self.draw,
            actor=self.actor,
            patience=None,  # however busy this machine is
            form_patience=self.form_patience,
            begin_patience=self.begin_patience,
        )

    @contextmanager
    def visitor(self, *, enters: bool = True) -> Iterator[TestClient]:
        """Lend a client, which has used the link unless it is not to."""
        way = self.way()
        app = application(self.parts(asyncio.Event(), way))
        base = f"http://{NAME}.localhost:{self.port}"
        headers = {"host": f"{NAME}.localhost:{self.port}", "origin": base}
        with TestClient(app, base_url=base, headers=headers, follow_redirects=False) as client:
            self.link = way.link()
            if enters:
                assert client.get(self.link).status_code == 200
            yield client


class Served:
    """A dashboard that a browser reaches, served by a separate thread.

    Args:
        site: What is shown; while this serves, use it through `do`.
    """

    def __init__(self, site: Site, *, patience: ConnectionLimits = PATIENCE, port: int = 0) -> None:
        self.site = site
        self._patience = patience
        self._port = port
        self.url = ""
        self.link = ""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> "Served":
        self._thread.start()
        assert self._ready.wait(300)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(RuntimeError):  # a test may have ended it: its loop is closed
            self.loop.call_soon_threadsafe(self.leave.set)
        self._thread.join(300)

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.loop.add_signal_handler = lambda *_: None  # type: ignore[method-assign]  # not the main thread
        self.leave = asyncio.Event()
        with bound(ListenAddress(address="127.0.0.1", port=self._port)) as listening:
            self.site.port = listening[0].getsockname()[1]
            self.way = self.site.way()
            self.url, self.link = self.way.door.url[:-1], self.way.link()
            self._ready.set()
            app = application(self.site.parts(self.leave, self.way))
            await serve(app, listening, self.leave, tls=self.way.tls, patience=self._patience)

    def do(self, work: Any, *args: Any) -> None:
        """Have the dashboard's thread do something with the site."""

        async def done() -> None:
            work(*args)

        asyncio.run_coroutine_threadsafe(done(), self.loop).result(300)


def staged(app: str, composition: str) -> StagedRelease:
    """Return a release that is staged."""
    pin = Pin(
        url=GitUrl.parse("https://git.example.com/web.git", where="x", allow_file=False),
        tag=Tag.parse(app.rpartition("/")[2], where="x"),
        tag_object="a" * 40,
        commit="b" * 40,
        tree_sha256="c" * 64,
    )
    return StagedRelease(
        release=ReleasePath.parse(app, where="x"),
        pin=pin,
        composition=composition,
        modules={},
        sources={},
        moduledir="",
    )


def names(count: int) -> Sequence[str]:
    """Return names of nodes, sorted."""
    return [f"node{number:04}.example.com" for number in range(count)]


def text(client: TestClient, url: str, code: int = 200) -> str:
    answer = client.get(url)
    assert answer.status_code == code, answer.text
    return answer.text


def listed(page: str) -> list[str]:
    return re.findall(r'<tr id="row-([^"]+)"', page)


ROLLOUT = "20261122T110000Z-0a1b"


def record(at: float, caller: str, action: str, subject: str, reason: str = "") -> AuditRecord:
    return AuditRecord(
        at=at,
        caller=caller,
        action=action,
        subject=subject,
        decision=AuditDecision.REFUSED if reason else AuditDecision.ACCEPTED,
        reason=reason,
        request="",
    )


def decided(site: Site) -> None:
    """Have nodes publish what they decided."""
    now = site.now()
    hostile = record(now - 30, "choria=eve", EVIL[:150].replace("\u202e", ""), "=cmd()", "denied")
    step = record(now - 20, "choria=bob", "runonce", f"rollout {ROLLOUT} step 1")
    ours = record(now - 10, "choria=alice", "disable", "disk is full, for 2h")
    site.memory.write_history((), [("web01", [hostile, ours]), ("web02", [step])])


MOTD = a_part(
    "File[/etc/motd]", file="profile/manifests/motd.pp", line=3, status=ResourceResult.CHANGED
)


def summary(node: str, at: float, **more: Any) -> RunRow:
    """Return a run of a run summary; `more` are its fields."""
    run = RunRow(
        node=node,
        run=run_id(at),
        finished_at=at,
        outcome=Kind.UNCHANGED,
        release="web/tags/r7",
        reason="",
        cause="timer",
        seconds=20,
    )
    return replace(run, **more)


def keep(
    memory: DashboardStore,
    *rows: NodeRow,
    gone: Iterable[str] = (),
    last_updated: float | None = None,
) -> None:
    """Write nodes as they are now, and forget some."""
    with memory.changing(last_updated=last_updated) as table:
        for row in rows:
            table.put(row, of_name(table.connection, row.node))
        for name in gone:
            table.forget(name)


def kept(memory: DashboardStore) -> list[NodeRow]:
    """Return the nodes that were written, by name."""
    return list(memory.read(nodes.listed, ListQuery().whole, None, now=0.0).rows)


def summarise(
    site: Site, *runs: RunRow, audit: Mapping[str, Sequence[AuditRecord]] | None = None
) -> None:
    """Have nodes publish run summaries, and requests that they decided, by node."""
    site.memory.write_history(runs, (audit or {}).items())


def a_rollout(**more: Any) -> RolloutBegan:
    """Return the beginning of a rollout of alice, without nodes."""
    usual = RolloutBegan(
        id=RolloutId("20261122T110000Z-00aa"),
        caller="choria=alice",
        groups=(),
        options=RolloutOptions(),
        title="",
    )
    return replace(usual, **more)


def begin_rollout(site: Site, began: RolloutBegan, *events: Event) -> JournalWriter:
    """Return the journal of a rollout of this machine with these events."""
    journal = Journals(site.directory / "rollouts").begin(began, at="2026-11-22T11:00:00Z")
    journal.append(*events, at="2026-11-22T11:00:00Z")
    return journal
