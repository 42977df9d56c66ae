"""Queries the inventory, and single nodes for the report of a run, for the dashboard's views.

- The number of concurrent queries is limited, and some answers are cached.
- "None" and "could not ask" stay two answers.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Generic, Protocol, TypeVar

from localpuppet.base.bounded_dict import BoundedDict
from localpuppet.base.errors import InvalidInputError, StateError, UnavailableError
from localpuppet.base.formats.names import NodeName, RunId
from localpuppet.base.formats.strict_json import loads_again
from localpuppet.base.formats.text import folded, one_line, shortened
from localpuppet.base.formats.times import parse_time, show_epoch
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.waiting import retrieve_error
from localpuppet.base.value import Value
from localpuppet.fleet.bus.bus_limits import MAX_PRESENCE_TEXT
from localpuppet.fleet.edges.links import Links, links_of
from localpuppet.fleet.inventory.entry import InventoryEntry, text_of
from localpuppet.fleet.inventory.query.functions import FunctionCall
from localpuppet.fleet.inventory.query.tree import parse_step
from localpuppet.fleet.inventory.reading import InventoryAnswer, InventoryReader
from localpuppet.fleet.inventory.tables import fact_sql
from localpuppet.node.enc.instance_facts import is_legacy_fact
from localpuppet.node.puppet.command_line import in_release
from localpuppet.rollout.derived import derive
from localpuppet.rollout.plan import Plan, PlanSelection, make_plan
from localpuppet.rollout.site import EnvironmentSite

K = TypeVar("K")
T = TypeVar("T")
# Expressions whose answers are cached until the inventory changes, and for how many seconds.
REMEMBERED = 32
FRESH = 5.0
# Seconds for which links are cached even if the inventory changes: they are expensive.
LINKS_FRESH = 30.0
# The same for classes, which change rarely: the search reads every entry. Then their number.
CLASSES_FRESH = 300.0
MOST_CLASSES = 100_000
# Concurrent queries of the inventory, and of nodes.
AT_ONCE = 2
ASKED_AT_ONCE = 4
# Seconds for the search for links.
LOOK = 10.0
REPORTS = 64
PLANS = 4

# Returns a node's reply to `report` or `log`, or the same from this machine's own record.
Tell = Callable[[str, NodeName, RunId], Awaitable[Mapping[str, Json]]]


class InventoryQuestioner(Protocol):
    """Queries the inventory, or raises an error if it cannot."""

    def __call__(
        self, reader: InventoryReader, question: Callable[[InventoryReader], T]
    ) -> InventoryAnswer[T]:
        """Return the answer to a question."""


class _RecentAnswers(Generic[K, T]):
    """The last answers, each for some seconds."""

    def __init__(self, most: int, seconds: float) -> None:
        self._seconds = seconds
        self._known: BoundedDict[K, tuple[float, T]] = BoundedDict(most)

    def get(self, key: K) -> T | None:
        """Return a fresh answer, or `None`."""
        until, answer = self._known.get(key, (0.0, None))
        return answer if until > time.monotonic() else None

    def keep(self, key: K, answer: T) -> T:
        """Store an answer and return it; the oldest ones leave."""
        self._known[key] = time.monotonic() + self._seconds, answer
        return answer


@dataclass(slots=True, eq=False)
class _SlowAnswer(Generic[T]):
    """An expensive answer about the inventory, computed once for all that wait for it.

    It is used for `fresh` seconds even if the inventory changes.
    """

    what: str
    fresh: float
    revision: Callable[[], Awaitable[int]]
    compute: Callable[[], Awaitable[T]]
    _known: tuple[int, float, T] | None = field(default=None, init=False)
    _computing: asyncio.Task[T] | None = field(default=None, init=False)

    async def get(self, patience: float | None) -> T:
        """Return the answer within `patience` seconds."""
        if self._known is not None and self._known[1] > time.monotonic():
            return self._known[2]
        if self._computing is None or self._computing.done():
            self._computing = asyncio.create_task(self._renew())
            self._computing.add_done_callback(retrieve_error)
        try:
            async with asyncio.timeout(patience):
                return await asyncio.shield(self._computing)
        except TimeoutError as error:
            raise UnavailableError(
                f"the search for {self.what} is still running",
                where="inventory",
                hint="try again in a few seconds",
            ) from error

    async def _renew(self) -> T:
        revision, known = await self.revision(), self._known
        same = known is not None and known[0] == revision
        answer = known[2] if known is not None and same else await self.compute()
        self._known = revision, time.monotonic() + self.fresh, answer
        return answer


class SiteInventory(Value):
    """A site file, as an alternative to the inventory."""

    name: str
    read: Callable[[], EnvironmentSite]

    def plan(self, names: frozenset[str] | None) -> Plan:
        """Return the plan of some of the site's nodes; of all for `None`."""
        site = self.read()
        here = {component.node for component in site.components}
        wanted = () if names is None else tuple(sorted(node for node in here if node in names))
        if names is not None and not wanted:
            raise InvalidInputError("no node of the site matches", where=self.name)
        return make_plan(site, PlanSelection(nodes=wanted), where=self.name)


class FactTexts(Value):
    """A fact of all nodes that have it: its text by node, and an expression for each text."""

    texts: Mapping[str, str]
    queries: Mapping[str, str]


@dataclass(slots=True, eq=False)
class Inventory:
    """Queries the inventory; `site` is the source of plans instead of it."""

    view: InventoryReader
    must_ask: InventoryQuestioner
    _: KW_ONLY
    site: SiteInventory | None = None
    _slots: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(AT_ONCE), init=False
    )
    _answers: _RecentAnswers[str, tuple[int, frozenset[str]]] = field(
        default_factory=lambda: _RecentAnswers(REMEMBERED, FRESH), init=False
    )
    _links: _SlowAnswer[Links] = field(init=False)
    _classes: _SlowAnswer[Mapping[str, int]] = field(init=False)
    _plans: _RecentAnswers[frozenset[str] | None, tuple[Plan, Sequence[str]]] = field(
        default_factory=lambda: _RecentAnswers(PLANS, LINKS_FRESH), init=False
    )
    _facts: _RecentAnswers[str, FactTexts] = field(
        default_factory=lambda: _RecentAnswers(PLANS, LINKS_FRESH), init=False
    )

    def __post_init__(self) -> None:
        """Prepare the expensive answers."""
        self._links = _SlowAnswer("links", LINKS_FRESH, self._revision, self._look)
        self._classes = _SlowAnswer("classes", CLASSES_FRESH, self._revision, self._count_classes)

    async def names(self, expression: str) -> frozenset[str] | None:
        """Return the nodes that an expression finds; `None` for an empty one."""
        if not expression:
            return None
        question = FunctionCall.of("query", [expression])
        async with self._slots:
            revision = await self._revision()
            known = self._answers.get(expression)
            if known is not None and known[0] == revision:
                return known[1]
            reply = await self._asked(question.answer)
        return self._answers.keep(expression, (revision, frozenset(reply.names)))[1]

    async def entry(self, node: NodeName) -> InventoryEntry | None:
        """Return the entry of a node's last good run, however old; `None` without one."""
        try:
            return await asyncio.to_thread(self.view.entry, node)
        except StateError as error:
            raise UnavailableError(error.what, where=error.where, hint=error.hint) from error

    async def fact(self, path: str) -> FactTexts:
        """Return a fact such as `os.family` of all nodes that have it."""
        known = self._facts.get(path)
        if known is not None:
            return known
        async with self._slots:
            return self._facts.keep(path, await self._asked(lambda reader: _values(reader, path)))

    async def search(self, question: Callable[[InventoryReader], T]) -> T:
        async with self._slots:
            return await self._asked(question)

    async def links(self, *, patience: float | None = None) -> Links:
        """Return which nodes make others run, at most `LINKS_FRESH` seconds old.

        Concurrent calls wait for the same search, for `patience` seconds.
        """
        return await self._links.get(patience)

    async def classes(self, *, patience: float | None = None) -> Mapping[str, int]:
        """Return each class with its number of nodes, at most `CLASSES_FRESH` seconds old."""
        return await self._classes.get(patience)

    async def plan(self, names: frozenset[str] | None) -> tuple[Plan, Sequence[str]]:
        """Return the order in which nodes (`None`: all) run, by site or inventory, with notes.

        It is at most `LINKS_FRESH` seconds old: a view requests it again for its diagram. If the
        inventory cannot be queried completely, that is an error: the order could be wrong.
        """
        known = self._plans.get(names)
        return known if known is not None else self._plans.keep(names, await self._plan(names))

    async def _plan(self, names: frozenset[str] | None) -> tuple[Plan, Sequence[str]]:
        if self.site is not None:
            return await asyncio.to_thread(self.site.plan, names), ()
        links = await self.links()
        if links.unanswered:
            raise UnavailableError(
                f"{links.unanswered} kicks and queries took too long to evaluate: the order could"
                " be wrong"
            )
        async with self._slots:
            derived = await self._asked(lambda reader: derive(reader.entries(), links))
            known = [node for node in derived.roles if names is not None and node in names]
            selection = PlanSelection(nodes=tuple(sorted(known)))
            if names is not None and not known:
                raise InvalidInputError("no node of the inventory matches")
            plan = await asyncio.to_thread(
                lambda: make_plan(derived.site, selection, where="inventory")
            )
        return plan, derived.notes

    async def _look(self) -> Links:
        async with self._slots:
            end = time.monotonic() + LOOK
            return await self._asked(
                lambda reader: links_of(reader, lambda: time.monotonic() > end)
            )

    async def _count_classes(self) -> Mapping[str, int]:
        async with self._slots:
            return await self._asked(_classes_of)

    async def _revision(self) -> int:
        try:
            return await asyncio.to_thread(lambda: self.view.revision)
        except StateError as error:
            raise UnavailableError(error.what, where=error.where, hint=error.hint) from error

    async def _asked(self, question: Callable[[InventoryReader], T]) -> T:
        return (await asyncio.to_thread(self.must_ask, self.view, question)).answer


# Steps of a path, numbers and booleans that the query language reads without quotes.
_STEP = re.compile(r"(?!(?:and|or|not)\Z)[A-Za-z_]\w*", re.ASCII)
_UNQUOTED = re.compile(r"-?[0-9]+(?:\.[0-9]+)?|true|false")


def fact_query(path: Sequence[str | int], value: Json) -> str:
    """Return the expression for the nodes with a fact; empty if the language has none."""
    text = text_of(value)
    if not isinstance(value, str) and not _UNQUOTED.fullmatch(text):
        return ""
    steps = (
        str(step) if isinstance(step, int) or _STEP.fullmatch(step) else _quoted(step)
        for step in path
    )
    return f"{'.'.join(steps)}={_quoted(text) if isinstance(value, str) else text}"


def _quoted(text: str) -> str:
    """Return a text in the quotes of the query language."""
    return '"{}"'.format(re.sub(r'(["\\])', r"\\\1", text))


def _values(reader: InventoryReader, path: str) -> FactTexts:
    """Return a fact as queries see it, legacy facts and elements of lists included."""
    steps = tuple(map(parse_step, path.split(".")))
    find = f"SELECT certname, {fact_sql('live.id', steps)} FROM live"  # noqa: S608
    texts, queries = {}, {}
    with reader.rows() as connection:
        for node, found in connection.execute(find):
            value = None if found is None else loads_again(found.encode())
            if isinstance(value, str | int | float):
                whole = text_of(value)
                texts[node] = text = shortened(whole, MAX_PRESENCE_TEXT)
                # The expression for a number finds a text, too, and that for a text no number.
                if text == whole and (text not in queries or not isinstance(value, str)):
                    queries[text] = fact_query(steps, value)
    return FactTexts(texts=texts, queries=queries)


def _classes_of(reader: InventoryReader) -> Mapping[str, int]:
    counter: Counter[str] = Counter()
    for entry in reader.entries():
        if len(counter) > MOST_CLASSES:
            break
        counter.update(entry.classes)
    return counter


class Reports:
    """Requests the reports and logs of runs from nodes, each once for all pages."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._slots = asyncio.Semaphore(ASKED_AT_ONCE)
        self._known: BoundedDict[
            tuple[str, NodeName, RunId], asyncio.Future[Mapping[str, Json]]
        ] = BoundedDict(REPORTS)

    async def ask(
        self, action: str, node: NodeName, run: RunId, *, again: bool
    ) -> Mapping[str, Json]:
        """Return the `report` or `log` of a finished run; see `runs.run_replies`.

        A node that refused or did not reply before is asked once more only with `again`. If it does
        so now, that is an error.
        """
        key = action, node, run
        known = self._known.get(key)
        if known is None or (again and known.done() and known.exception()):
            if self._slots.locked():
                raise InvalidInputError(
                    "too many reports are being requested", hint="try again in a few seconds"
                )
            known = self._known[key] = asyncio.ensure_future(self._asked(*key))
        return await asyncio.shield(known)

    async def _asked(self, action: str, node: NodeName, run: RunId) -> Mapping[str, Json]:
        async with self._slots:
            return await self._tell(action, node, run)


# Values in a page; a node may say a hundred thousand.
MAX_LEAVES = 2000
# Characters of a text by which a page of a node selects facts.
MAX_WANTED = 200
MAX_VALUE = 400
MAX_KEY = 120
MAX_DEPTH = 12


class Branch(Value):
    """A fact: its value, or its parts."""

    key: str
    path: str
    text: str = ""
    parts: tuple["Branch", ...] = ()


class Tree(Value):
    """Facts: the first level, and legacy ones apart."""

    branches: tuple[Branch, ...]
    legacy: tuple[Branch, ...]
    shown: int
    left_out: bool


class _Room:
    def __init__(self) -> None:
        self.left = MAX_LEAVES
        self.full = False


def tree_of(facts: Mapping[str, Json], wanted: str = "") -> Tree:
    """Return facts as a tree, those with a text in path or value, in any case."""
    room = _Room()
    # Structured facts come first: the limit cuts legacy ones.
    parts: tuple[dict[str, Json], dict[str, Json]] = {}, {}
    for name, value in facts.items():
        parts[is_legacy_fact(name)][name] = value
    branches, legacy = (tuple(_branches(part, "", wanted.lower(), room, 0)) for part in parts)
    return Tree(branches=branches, legacy=legacy, shown=MAX_LEAVES - room.left, left_out=room.full)


def leaves_of(facts: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Yield the paths and values of facts, without legacy ones."""
    branches = [*tree_of(facts).branches]
    while branches:
        branch = branches.pop(0)
        branches[:0] = branch.parts
        if not branch.parts:
            yield branch.path, branch.text


def _branches(
    facts: Mapping[str, Json], place: str, wanted: str, room: _Room, depth: int
) -> Iterator[Branch]:
    for key in sorted(facts):
        value = facts[key]
        name, path = shortened(key, MAX_KEY), f"{place}{key}"
        if isinstance(value, dict) and value and depth < MAX_DEPTH:
            parts = tuple(_branches(value, f"{path}.", wanted, room, depth + 1))
            if parts:
                yield Branch(key=name, path=shortened(path, MAX_VALUE), parts=parts)
            continue
        text = text_of(value)
        if wanted and wanted not in path.lower() and wanted not in text.lower():
            continue
        if not room.left:
            room.full = True
            return
        room.left -= 1
        yield Branch(key=name, path=shortened(path, MAX_VALUE), text=shortened(text, MAX_VALUE))


# Lines of a log.
MOST_LINES = 2000


class LogOrigin(Value):
    """Where a line of a log comes from: its time as `show_epoch` writes it, and the file."""

    time: str = ""
    file: str = ""
    line: int | None = None

    @classmethod
    def read(cls, fields: Json) -> "LogOrigin":
        """Return the origin in an answer, see `runs.run_replies.log_reply`."""
        fields = fields if isinstance(fields, dict) else {}
        try:
            time = show_epoch(parse_time(str(fields.get("time"))).timestamp())
        except ValueError:
            time = ""
        file, line = fields.get("file"), fields.get("line")
        return cls(
            time=time,
            file=one_line(in_release(file)) if isinstance(file, str) else "",
            line=line if isinstance(line, int) else None,
        )


class RunLogTail(Value):
    """The end of a run's log: at most `MOST_LINES`, repeated ones once with their number.

    `origins` says where lines come from, by their text.
    """

    lines: tuple[str, ...]
    before: int
    left_out: int
    origins: Mapping[str, LogOrigin] = field(default_factory=dict)

    @classmethod
    def read(cls, fields: Mapping[str, Json]) -> "RunLogTail":
        """Return the log in an answer, see `runs.run_replies.log_reply`."""
        raw = fields.get("lines", [])
        lines = [text for text in raw if isinstance(text, str)] if isinstance(raw, list) else []
        if lines != raw:
            raise InvalidInputError(
                "is not a valid part of a report", where="the node's answer: a list of texts"
            )
        kept = lines[-MOST_LINES:]
        before = _number(fields.get("before")) + len(lines) - len(kept)
        origins = fields.get("origins")
        listed = origins if isinstance(origins, list) and len(origins) == len(lines) else ()
        return cls(
            lines=tuple(folded(kept)),
            before=before,
            left_out=_number(fields.get("left_out")),
            origins=dict(zip(lines, map(LogOrigin.read, listed), strict=False)),
        )


def _number(value: Json) -> int:
    return value if isinstance(value, int) else 0
