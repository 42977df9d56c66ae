"""Differences between two staged releases, as a view and as a file, and between two nodes."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.text import shortened
from localpuppet.base.formats.times import show_duration
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.presence import NodeRow
from localpuppet.node.enc.document import DEFAULT_ENVIRONMENT
from localpuppet.node.releases.comparison import NameDifference
from localpuppet.node.releases.release_records import StagedRelease
from localpuppet.web.access.rules import Visitor
from localpuppet.web.dashboard.fleet import Fleet
from localpuppet.web.dashboard.inventory_questions import leaves_of
from localpuppet.web.dashboard.list_query import ListPage, read_parameters
from localpuppet.web.dashboard.listing import TableForm, file_of
from localpuppet.web.dashboard.releases import ReleaseRow, StagedReleases, staged_row
from localpuppet.web.dashboard.run_table import RunRow
from localpuppet.web.dashboard.view_context import TemplateRenderer

REMOVED, ADDED, CHANGED = "removed", "added", "changed"
FILES = "files"
# Lines of a file's diff that are shown, and characters of a line.
MOST_LINES = 1000
MAX_LINE = 500
# Lines before and after an error, and lines of the hunk beside it.
AROUND, MOST_AT_ONCE = 3, 60
_HUNK = re.compile(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@")
# Diffs that are open at first.
MOST_OPEN = 10
_STYLES = {"+": ADDED, "-": REMOVED, "@": "place"}


class ChangeRow(Value):
    """A difference: `removed`, `added` or `changed`, of a kind such as `files`."""

    of: str
    name: str
    change: str
    how: str = ""


class FileDiff(Value):
    """The unified diff of a file, cut to the limits, or a note why it is not shown.

    Each line has a class of the style sheet.
    """

    name: str
    lines: tuple[tuple[str, str], ...] = ()
    left_out: int = 0
    note: str = ""

    def nearest(self, line: int) -> "FileDiff":
        """Return the hunk nearest to a line of the new file, at most `MOST_AT_ONCE` lines."""
        hunks: list[list[tuple[str, str]]] = []
        for style, text in self.lines:
            hunks += [[]] if style == _STYLES["@"] else []
            hunks[-1].append((style, text))

        def distance(hunk: list[tuple[str, str]]) -> int:
            first, count = (int(number or 1) for number in _HUNK.findall(hunk[0][1])[0])
            return max(first - line, line - first - count + 1, 0)

        near = min(hunks, key=distance)[:MOST_AT_ONCE]
        return replace(self, lines=tuple(near), left_out=len(hunks) - 1)

    @classmethod
    def of(cls, name: str, text: str) -> "FileDiff":
        """Return a file's diff from the result of `releases.comparison.unified`."""
        if not text.startswith("--- "):
            return cls(name=name, note=text)
        lines = text.split("\n")[2:]  # without the names
        shown = tuple(
            (_STYLES.get(line[:1], ""), shortened(line.expandtabs(4), MAX_LINE))
            for line in lines[:MOST_LINES]
        )
        return cls(name=name, lines=shown, left_out=len(lines) - len(shown))


def changes(differences: Mapping[str, NameDifference]) -> list[ChangeRow]:
    """Return the rows, sorted by kind and name."""
    all_rows = []
    for of, difference in differences.items():
        rows = [ChangeRow(of=of, name=name, change=REMOVED) for name in difference.removed]
        rows += [ChangeRow(of=of, name=name, change=ADDED) for name in difference.added]
        rows += [
            ChangeRow(of=of, name=name, change=CHANGED, how=how)
            for name, how in difference.changed.items()
        ]
        all_rows += sorted(rows, key=lambda row: row.name)
    return all_rows


PATH = "/releases/difference"
CHANGES = ("of", "name", "change", "how")
changes_table = TableForm("changes", CHANGES, "name")


class DifferenceQuery(Value):
    """The two releases in a URL."""

    before: ReleasePath | None = None
    after: ReleasePath | None = None
    page: int = 1

    @classmethod
    def parse(cls, parameters: Mapping[str, str]) -> "DifferenceQuery":
        """Return the request in a URL."""
        values, page = read_parameters(parameters, {"from", "to"})
        names = [
            ReleasePath.parse(values[key], where=key) if key in values else None
            for key in ("from", "to")
        ]
        return cls(before=names[0], after=names[1], page=page)

    def with_(self, *, page: int) -> "DifferenceQuery":
        """Return this request with another page number."""
        return replace(self, page=page)

    @property
    def url(self) -> str:
        return self._at(PATH, page=str(self.page) if self.page != 1 else "")

    def file(self, form: str) -> str:
        """Return the URL of all differences as a file: `csv`, `json`, `txt`."""
        return self._at(f"{PATH}.{form}")

    def _at(self, path: str, *, page: str = "") -> str:
        words = {"from": self.before or "", "to": self.after or "", "page": page}
        return f"{path}?{urlencode({key: word for key, word in words.items() if word})}"


@dataclass(slots=True, eq=False)
class DifferenceViews:
    """The views of differences; who may not read releases sees no text of files."""

    staged: StagedReleases
    fleet: Fleet
    showing: TemplateRenderer
    _: KW_ONLY
    reads_code: Callable[[Visitor], bool] = lambda _: False
    _turn: asyncio.Semaphore = field(default_factory=asyncio.Semaphore, init=False)

    async def page(self, request: Request) -> Response:
        """Show the differences of two releases, or the releases to choose from."""
        asked = DifferenceQuery.parse(request.query_params)
        page: ListPage[ChangeRow] = ListPage.of((), asked.page)
        reads = self.reads_code(Visitor.of(request.scope))
        diffs: Sequence[FileDiff] = ()
        problem = ""
        try:
            page = ListPage.of(await self._rows(asked), asked.page)
            names = [row.name for row in page.rows if row.of == FILES]
            diffs = await self._diffs(asked, names) if reads else ()
        except LocalpuppetError as error:
            problem = str(error)
        known = await asyncio.to_thread(self.staged.all)
        both = [
            staged_release
            for staged_release in known
            if staged_release.release in (asked.before, asked.after)
        ]
        return self.showing.page(
            "difference.html",
            asked=asked,
            apps=[staged_release.release for staged_release in known],
            about=await asyncio.to_thread(self._about, both),
            page=page,
            diffs=diffs,
            most_open=MOST_OPEN,
            with_text=reads,
            problem=problem,
        )

    async def code(
        self, request: Request, failed: RunRow, worked: str, broke: str
    ) -> tuple[Sequence[tuple[int, str]], FileDiff | None]:
        """Return the lines of a manifest around an error, and what changed there when it appeared.

        `worked` is the last good release and `broke` the first that failed after it; each may be
        empty.
        """
        file, _, line = failed.place.rpartition(":")
        lines: Sequence[tuple[int, str]] = ()
        if not (line.isdecimal() and failed.release and self.reads_code(Visitor.of(request.scope))):
            return (), None
        try:
            release = ReleasePath.parse(failed.release, where="release")
            name, text = await asyncio.to_thread(self.staged.manifest, release, file)
            begin = max(int(line[:9]) - AROUND, 1)
            shown = text.splitlines()[begin - 1 : begin + 2 * AROUND]
            lines = [(begin + at, shortened(one, MAX_LINE)) for at, one in enumerate(shown)]
            if not (name and worked and broke) or worked == broke:
                return lines, None
            first, second = (ReleasePath.parse(one, where="release") for one in (worked, broke))
            texts = await asyncio.to_thread(self.staged.texts, first, second, [name])
            diff = FileDiff.of(name, texts.get(name, ""))
            return lines, diff.nearest(int(line[:9])) if diff.lines else diff
        except (LocalpuppetError, OSError, ValueError):  # a node may send any place
            return lines, None

    async def file(self, request: Request) -> Response:
        asked = DifferenceQuery.parse(request.query_params)
        if asked.before is None or asked.after is None:
            raise InvalidInputError("must name two releases", where="from and to")
        rows = await self._rows(asked)
        return await file_of(request, lambda: changes_table(rows), self.fleet.last_updated)

    async def _rows(self, asked: DifferenceQuery) -> Sequence[ChangeRow]:
        if asked.before is None or asked.after is None:
            return ()
        async with self._turn:
            rows = await asyncio.to_thread(self.staged.differences, asked.before, asked.after)
        return changes(rows)

    async def _diffs(self, asked: DifferenceQuery, names: Sequence[str]) -> list[FileDiff]:
        if asked.before is None or asked.after is None:
            return []
        async with self._turn:
            diffs = await asyncio.to_thread(self.staged.texts, asked.before, asked.after, names)
        return [FileDiff.of(name, text) for name, text in diffs.items()]

    def _about(self, known: Sequence[StagedRelease]) -> Sequence[ReleaseRow]:
        staged = self.staged
        return [
            staged_row(staged_release, staged.signed(staged_release), staged.tag(staged_release))
            for staged_release in known
        ]


# Rows of two nodes side by side.
MOST_ROWS = 500


class NodeValue(Value):
    """A value of two nodes: `now`, of `classes` or of `facts`."""

    of: str
    name: str
    values: tuple[str, str]


def node_differences(
    first: tuple[NodeRow, InventoryEntry | None], second: tuple[NodeRow, InventoryEntry | None]
) -> tuple[Sequence[NodeValue], int]:
    """Return in what two nodes differ, and in how many values they are equal."""
    one, other = _values(*first), _values(*second)
    names = list(dict.fromkeys([*one, *other]))
    rows = [
        NodeValue(of=of, name=name, values=(one.get((of, name), ""), other.get((of, name), "")))
        for of, name in names
    ]
    rows.sort(key=lambda row: row.of != "now")
    differing = [row for row in rows if row.values[0] != row.values[1]]
    return differing, len(rows) - len(differing)


def _values(row: NodeRow, entry: InventoryEntry | None) -> Mapping[tuple[str, str], str]:
    holds = ", ".join(hold.reason or hold.owner for hold in row.holds)
    now = {
        "last run": str(row.outcome),
        "first error": f"{row.failure} {row.place}".strip(),
        "state": row.state,
        "holds": holds,
        "release": row.release,
        "release digest": row.release_digest[:12],
        "interval": "" if row.run_interval is None else show_duration(row.run_interval),
        "roles": ", ".join(row.roles),
    }
    values = {("now", name): text for name, text in now.items() if text}
    if entry is not None:
        values["now", "environment"] = entry.environment or DEFAULT_ENVIRONMENT
        values |= {("classes", str(name)): "yes" for name in sorted(entry.classes)}
        values |= {("facts", path): text for path, text in leaves_of(entry.facts)}
    return values
