"""Looks at the sources of hooks, one after the other, and brings their new releases to nodes.

- New tags are checked by the usual rules of releases. A look remembers what it has judged by a
  mark: the digest of the references of a tag and of its countersignatures. If one of them changes,
  the tag counts as new again.
- The first look only remembers. Later ones accept the newest tag whose time is after that of the
  accepted one.
- Nothing is written besides the mirror of the source; nodes fetch and verify for themselves.
- Deliveries that come during a look lead to one further look.
- A git host may report a push before it serves it: if a delivery has led to nothing, there are two
  more looks. Without deliveries there is one every `poll` seconds, because git hosts do not repeat
  a delivery that failed.
- A release is recorded as under way before something is done with it. If the process ends then,
  the next one repeats a stage, which changes nothing twice. It starts a rollout only if none has
  begun, and only when none can begin any more.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from localpuppet.base.errors import (
    BusyError,
    IntegrityError,
    InvalidInputError,
    LocalpuppetError,
    StateError,
    UnavailableError,
)
from localpuppet.base.formats.converter import JsonRecord, from_record, to_record
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.names import NodeName, ReleasePath
from localpuppet.base.formats.prometheus import show_samples
from localpuppet.base.formats.text import one_line, shortened
from localpuppet.base.machine.files import make_private, write_durably, write_json
from localpuppet.base.machine.ports import Clock, LineKind, Log
from localpuppet.base.machine.waiting import run_until, wait_first
from localpuppet.node.releases.fetch import Supply, WantedTag
from localpuppet.node.releases.git.git_names import Tag, countersignature_refs
from localpuppet.node.releases.git.mirrors import Git
from localpuppet.node.releases.limits import MAX_TAG_AHEAD
from localpuppet.node.releases.manifest import LOCK, MANIFEST
from localpuppet.node.releases.release_records import TagMemory
from localpuppet.node.releases.source import ReleaseSource, refuse_stale, tag_of
from localpuppet.web.dashboard.actions import sent_record
from localpuppet.web.dashboard.memory import DashboardStore
from localpuppet.web.dashboard.rollout_actions import RolloutStart
from localpuppet.web.dashboard.signing_actor import STARTS, SigningActor
from localpuppet.web.hooks.hook_settings import HookSettings

# Tags of a source, and new ones that one look judges.
MOST_TAGS = 20_000
MOST_NEW = 50
# Characters of a result or a problem.
MOST_TEXT = 500
# Seconds before the first look in which a tag may have been made that is pushed after it.
MADE_BEFORE = 3600.0
_TAGS = "refs/tags/"
_MARK = 16  # hexadecimal digits


class LookRecord(JsonRecord):
    """What the looks at a source have led to."""

    source: str = ""  # the source; another one in the settings is looked at for the first time
    marks: frozenset[str] = frozenset()
    release: str = ""
    tagged_at: float = 0.0
    delivered_at: float = 0.0
    looked_at: float = 0.0
    # What came of the newest release that was judged, and whether that is a failure.
    result: str = ""
    failed: bool = False
    # Whether the release was accepted, and what came of it is not known yet.
    unfinished: bool = False
    problem: str = ""

    @property
    def failing(self) -> str:
        """Return why a person should look, one line; empty if none need."""
        return self.problem or (self.result if self.failed else "")


@dataclass(frozen=True, slots=True)
class TagSearch:
    """Asks git hosts; each call may take as long as git may."""

    supply: Supply
    repository: Git

    def look(self, name: str, record: LookRecord, now: float) -> LookRecord:
        """Return the record after a look at a source; the first look has an empty one before."""
        source = self.supply.sources[name]
        marks = marks_of(self.repository.listed(source.url))
        if len(marks) > MOST_TAGS:
            raise InvalidInputError(f"has more than {MOST_TAGS} tags", where=f"source {name}")
        known = frozenset(marks.values())
        if record.source != name:
            return LookRecord(
                source=name,
                marks=known,
                tagged_at=now - MADE_BEFORE,
                delivered_at=record.delivered_at,
                looked_at=now,
                result="waits for a tag that is new",
            )
        if not record.release:  # the first look may have been before the clock was set back
            record = replace(record, tagged_at=min(record.tagged_at, now - MADE_BEFORE))
        new = sorted(tag for tag, mark in marks.items() if mark not in record.marks)[:MOST_NEW]
        judged = (record.marks & known) | {marks[tag] for tag in new}
        accepted, refused = replace(record, marks=judged, looked_at=now, problem=""), ""
        for tag in new:
            app = ReleasePath(f"{name}/tags/{tag}")
            try:
                at = self._check(source, app, after=accepted.tagged_at, now=now)
            except (UnavailableError, BusyError):
                raise
            except LocalpuppetError as error:
                refused = shortened(one_line(f"{app}: refused: {error}"), MOST_TEXT)
                continue
            if at is not None:
                accepted = replace(accepted, release=app, tagged_at=at, result="", failed=False)
        if refused and accepted.tagged_at == record.tagged_at:
            return replace(accepted, result=refused, failed=True)
        return accepted

    def _check(
        self, source: ReleaseSource, app: ReleasePath, *, after: float, now: float
    ) -> float | None:
        """Return the time in the tag of a release that nodes may get; `None` if it is not newer."""
        pinned = TagMemory(self.supply.store.directory).pin(app)
        wanted = WantedTag(url=source.url, tag=tag_of(app), where=app, source=source, pinned=pinned)
        with self.supply.store.locks.take_for_changes():
            tag = self.supply.tags(self.repository).judge(wanted, refresh=True)
            files = self.repository.files(source.url, tag.commit, [MANIFEST, LOCK])
        if tag.tagged_at is None:
            raise IntegrityError("has no time, as its tag is not annotated", where=app)
        if tag.tagged_at > now + MAX_TAG_AHEAD:
            raise IntegrityError("has a tag timestamp more than a day from now", where=app)
        if tag.tagged_at <= after:
            return None
        refuse_stale(source, tag, now=now, where=app)
        self.supply.files.locked(app, files.get)
        return tag.tagged_at


def marks_of(listed: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the mark of each tag that can be a release, by references and their objects' ids."""
    refs = {name: object_id for name, object_id in listed if not name.endswith("^{}")}
    beside: dict[str, list[str]] = {}
    for name in sorted(refs):
        beside.setdefault(f"{name.rpartition('/')[0]}/", []).append(f"{name} {refs[name]}")
    marks = {}
    for name, object_id in refs.items():
        tag = name.removeprefix(_TAGS)
        with suppress(InvalidInputError):
            if f"{_TAGS}{Tag.parse(tag, where=name)}" == name and "/" not in tag:
                parts = [tag, object_id, *beside.get(countersignature_refs(tag), ())]
                marks[tag] = sha256(" ".join(parts).encode()).hexdigest()[:_MARK]
    return marks


FILE = Path("web", "hooks.json")
# Seconds between a look after a delivery that has found nothing and the next ones.
AGAIN = (5.0, 30.0)
UNDER_WAY = "under way"
_HELP = {
    "localpuppet_hook_delivery_timestamp_seconds": "When a delivery was received last.",
    "localpuppet_hook_look_timestamp_seconds": "When the source was last looked at.",
    "localpuppet_hook_failing": "Whether the last look or the last release failed.",
    "localpuppet_hook_refused": "Deliveries that were refused since the start, for all hooks.",
}
# Looks at a source; returns the record after it.
Look = Callable[[str, LookRecord, float], LookRecord]


def read_records(state: Path) -> dict[str, LookRecord]:
    """Return the records of hooks by name."""
    try:
        raw = read_json(state / FILE)
    except FileNotFoundError:
        return {}
    where = str(state / FILE)
    return {n: from_record(LookRecord, one, where=where) for n, one in raw.get("hooks", {}).items()}


@dataclass(frozen=True, slots=True)
class HookActor:
    """Does what a new release leads to, and records it as other actions are."""

    actor: SigningActor
    names: Callable[[str], Awaitable[frozenset[str] | None]]
    memory: DashboardStore
    clock: Clock
    log: Log

    async def act(
        self, name: str, hook: HookSettings, release: ReleasePath, since: float
    ) -> tuple[str, bool]:
        """Return what came of a release in one line, and whether it failed.

        A rollout that has begun since the release was accepted is not started again. It raises an
        error if no node was asked to stage the release; a later look may try again.
        """
        asked, about = f"stage {release}", f"hook {name}, nodes {hook.query}"
        failed, end, problem = True, "interrupted", None
        try:
            if hook.rollout:
                start = rollout_of(hook, release)
                asked, begun = str(start), await asyncio.to_thread(self.actor.begun, start, since)
                end, failed = f"rollout {begun or await self.actor.start(start)}", False
            else:
                nodes = sorted(map(NodeName, await self.names(hook.query) or ()))
                if not nodes:
                    raise InvalidInputError("finds no node", where=f"hooks.{name}.stage")
                outcome = await self.actor.stage(release, nodes)
                end, failed = outcome.line, bool(outcome.names(good=False))
        except LocalpuppetError as error:
            end, problem = str(error), error
        finally:
            line = f"{self.actor.name}: {about}: {asked}: {end}"
            self.log.info(line, kind=LineKind.REQUEST)
        at = self.clock.now().timestamp()
        record = sent_record(self.actor.name, asked, end, about, at=at, failed=failed)
        await self.memory.keep_sent(self.actor.machine, record, self.log)
        if problem is not None and not hook.rollout:
            raise problem
        return end, failed


def rollout_of(hook: HookSettings, release: ReleasePath) -> RolloutStart:
    """Return the rollout of a release; its nodes are selected when it starts."""
    start = RolloutStart.read({**hook.options, "release": release}, ())
    return replace(start, fields={"query": hook.query, **start.fields})


@dataclass(slots=True, eq=False)
class HookWorker:
    """The worker.

    `forget` is called with a hook whose last delivery has led to a failure, and `show` with why
    hooks fail, by name.
    """

    hooks: Mapping[str, HookSettings]
    look: Look
    act: Callable[[str, HookSettings, ReleasePath, float], Awaitable[tuple[str, bool]]]
    _: KW_ONLY
    state: Path
    metrics: Path
    clock: Clock
    log: Log
    forget: Callable[[str], None] = lambda _name: None
    refused: Callable[[], int] = lambda: 0
    show: Callable[[Mapping[str, str]], None] = lambda _failing: None
    again: tuple[float, ...] = AGAIN
    _records: dict[str, LookRecord] = field(init=False)
    _started: float = field(init=False)
    _due: dict[str, float] = field(init=False)
    _again: dict[str, tuple[float, ...]] = field(default_factory=dict, init=False)
    _delivered: dict[str, float] = field(default_factory=dict, init=False)
    _stirred: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        known = read_records(self.state)
        self._records = {name: one for name, one in known.items() if name in self.hooks}
        self._started = self.clock.monotonic()
        self._due = dict.fromkeys(self.hooks, self._started)

    def deliver(self, name: str) -> None:
        """Look at the source of a hook soon."""
        self._due[name], self._again[name] = self.clock.monotonic(), self.again
        self._delivered[name] = self.clock.now().timestamp()
        self._stirred.set()

    async def run(self, leave: asyncio.Event) -> None:
        """Look until `leave` is set."""
        await run_until(leave, self._run())

    async def _run(self) -> None:
        while True:
            self._stirred.clear()
            name = min(self._due, key=self._due.__getitem__)
            left = self._due[name] - self.clock.monotonic()
            if left > 0:
                await wait_first(self._stirred, seconds=left)
            else:
                try:
                    await self.step(name)
                except StateError as error:
                    self.log.warning(f"hook {name}: {error}")

    async def step(self, name: str) -> None:
        """Look at the source of a hook now, and bring a new release to its nodes."""
        hook, now = self.hooks[name], self.clock.now().timestamp()
        before = self._records.get(name, LookRecord())
        unfinished = before.unfinished and before.source == hook.source
        wait = self._started + STARTS - self.clock.monotonic()
        if unfinished and hook.rollout and wait > 0:
            self._due[name] = self.clock.monotonic() + wait
            return
        left, self._due[name] = self._again.pop(name, ()), self.clock.monotonic() + hook.poll
        before = replace(before, delivered_at=self._delivered.pop(name, before.delivered_at))
        try:
            if unfinished:
                before = await self._bring(name, hook, before)
            after = await asyncio.to_thread(self.look, hook.source, before, now)
            if after.release and (not before.release or after.tagged_at > before.tagged_at):
                after, left = await self._bring(name, hook, after), ()
        except LocalpuppetError as error:
            self.log.warning(f"hook {name}: {error}")
            # A rollout that began since the look that accepted its release is not started again.
            at = before.looked_at if before.unfinished else now
            after = replace(before, looked_at=at, problem=shortened(str(error), MOST_TEXT))
        if before.source == hook.source and len(after.marks - before.marks) >= MOST_NEW:
            left = (0.0, *left)  # there may be more
        await self._keep(name, after)
        if left and name not in self._again:
            self._due[name], self._again[name] = self.clock.monotonic() + left[0], left[1:]
        if after.failing:
            self.forget(name)

    async def _bring(self, name: str, hook: HookSettings, record: LookRecord) -> LookRecord:
        """Bring an accepted release to the nodes of a hook; return the record after it."""
        release = ReleasePath(record.release)
        result = f"{release}: {UNDER_WAY}"
        await self._keep(name, replace(record, result=result, unfinished=True, problem=""))
        end, failed = await self.act(name, hook, release, record.looked_at)
        result = shortened(f"{release}: {end}", MOST_TEXT)
        return replace(record, result=result, failed=failed, unfinished=False, problem="")

    async def _keep(self, name: str, record: LookRecord) -> None:
        """Write a record and the metrics, in one thread: a stop comes before or after both."""
        records = {**self._records, name: record}
        await asyncio.to_thread(self._write, records)
        self._records = records
        self.show({key: why for key, one in records.items() if (why := one.failing)})

    def _write(self, records: Mapping[str, LookRecord]) -> None:
        make_private((self.state / FILE).parent)
        hooks = {name: to_record(one) for name, one in records.items()}
        write_json(self.state / FILE, {"schema": 1, "hooks": hooks})
        try:
            self._report(records)
        except StateError as error:
            self.log.warning(f"the metrics of hooks cannot be written: {error}")

    def _report(self, records: Mapping[str, LookRecord]) -> None:
        samples = {"localpuppet_hook_refused": str(self.refused())}
        for name, one in records.items():
            label = f'{{hook="{name}"}}'
            for key, at in (("delivery", one.delivered_at), ("look", one.looked_at)):
                samples[f"localpuppet_hook_{key}_timestamp_seconds{label}"] = f"{at:.3f}"
            samples[f"localpuppet_hook_failing{label}"] = str(int(bool(one.failing)))
        path = self.metrics.with_stem(f"{self.metrics.stem}-hooks")
        write_durably(path, show_samples(samples, _HELP).encode(), mode=0o644)
