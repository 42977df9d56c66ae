"""Answer a query: one statement on a snapshot of the view.

- A query is within `QueryLimits`: it counts the steps of SQLite's virtual machine and the values
  that functions of this process read. The deadline is checked as often. Rows and bytes of an answer
  that is held in memory are counted, and SQLite's memory has a limit (`sqlite.MAX_HEAP`).
- Whatever can be checked before the first row is checked first.
"""

import hashlib
import math
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from json import JSONDecodeError
from operator import itemgetter
from typing import Any

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.strict_json import compact, loads_again
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.sqlite import MAX_HEAP, sqlite3
from localpuppet.base.value import Value
from localpuppet.fleet.inventory import tables
from localpuppet.fleet.inventory.query import query_limits, tree
from localpuppet.fleet.inventory.query import records as sources
from localpuppet.fleet.inventory.query.comparing import (
    is_plain_number,
    key,
    leaves,
    number_in,
    sort_key,
)
from localpuppet.fleet.inventory.query.compiling import COUNT, Compiler, Relation, StepTest, Test
from localpuppet.fleet.inventory.reading import InventoryReader

# The steps between two checks of the deadline.
CHECKED_EVERY = 4096
# Results of tests by value: texts up to this length, and this many of all tests of a query.
REMEMBERED, MAX_REMEMBERED = 200, 10_000
_FEWER = "ask for named facts, or for fewer nodes"
# The facts of a whole fact hash whose change is a new answer, and causes a reaction.
ESSENTIAL = ("fqdn", "hostname", "ipaddress", "ipaddress6", "role")


class QueryDeadlineError(UnavailableError):
    """A query took longer than its deadline."""


class QueryLimits(Value):
    """The limits of one query.

    Attributes:
        kept: The limit of rows that an answer, a sort or a group holds in memory.
        size: The limit in characters of the rows that an answer holds in memory.
        remembered: The limit of values whose test is not repeated.
        check: Ends a query that is too late: called every `CHECKED_EVERY` steps, it raises
            `QueryDeadlineError`.
    """

    steps: int = query_limits.MAX_SQL_STEPS
    kept: int = query_limits.MAX_ANSWER_ROWS
    size: int = query_limits.MAX_ANSWER
    remembered: int = MAX_REMEMBERED
    check: Callable[[], None] = lambda: None


class QueryAnswer(Value):
    """The result of a query.

    Attributes:
        watched: The part of the rows whose change is a new answer: without publication times, and
            with essential facts instead of a whole fact hash.
    """

    texts: list[str]
    names: list[str]
    watched: Sequence[dict[str, Json]]
    owners: Sequence[str] = ()

    @property
    def rows(self) -> list[dict[str, Json]]:
        """Return the rows of the result, each by column text."""
        return [loads_again(text.encode()) for text in self.texts]


class ClientAnswer(Value):
    """The result of a query for a client, with the number of rows without `limit` if requested."""

    rows: Generator[str, None, None]
    total: int | None


class Evaluation:
    """Answers queries; `records` are the rows that entries do not have."""

    def __init__(
        self,
        reader: InventoryReader,
        records: sources.RecordSource | None = None,
        limits: QueryLimits | None = None,
    ) -> None:
        self._reader = reader
        self._records = records or sources.CombinedRecords()
        self._limits = limits or QueryLimits()

    def answer(self, select: tree.Select) -> QueryAnswer:
        """Evaluate a query as a whole.

        Raises:
            InvalidInputError: The query is not supported, or exceeds a limit.
            UnavailableError: A source cannot be read, or the deadline is over.
        """
        has_owner, grouped = "certname" in tree.COLUMNS[select.entity], tree.is_grouped(select)
        texts, owners, watched = [], [], []
        room = AnswerRoom(self._limits)
        with self._statement(select) as statement:
            columns = self._columns(select, statement)
            shape, whole = _shape(select, columns), tree.Field(column="facts") in columns
            extra = (
                [tree.Field(column="facts", path=(name,)) for name in ESSENTIAL] if whole else []
            )
            if has_owner and not grouped:
                extra.append(tree.CERTNAME)
            for row in statement.rows(select, [*columns, *extra]):
                texts.append(room.take(shape % row[: len(columns)]))
                shown = {_text(column): text for column, text in zip(columns, row, strict=False)}
                if whole and select.entity is tree.Entity.INVENTORY and not grouped:
                    essential = zip(ESSENTIAL, row[len(columns) :], strict=False)
                    shown["facts"] = compact({name: _loaded(text) for name, text in essential})
                watched.append(
                    {n: _loaded(t) for n, t in shown.items() if grouped or n not in tree.TIMES}
                )
                if has_owner and not grouped:
                    owners.append(_loaded(row[-1]))
            names = statement.names_of(select) if grouped and has_owner else sorted({*owners})
        return QueryAnswer(texts=texts, names=names, watched=watched, owners=owners)

    def table(self, select: tree.Select) -> Iterator[tuple[str, ...]]:
        """Yield the rows of a query with fields, each as JSON texts in the order of the fields."""
        room = AnswerRoom(self._limits)
        with self._statement(select) as statement:
            for row in statement.rows(select, select.columns or ()):
                for text in row:
                    room.take(text)
                yield row

    def stream(self, select: tree.Select, *, total: bool = False) -> ClientAnswer:
        """Evaluate a query of a client row by row; errors as of `answer`, also while rows are read.

        - A query without order, group and total holds no rows in memory.
        - The rows must be read in one thread: they come from one SQLite snapshot. Close the
          iterator to end a query early.
        - `total` counts all rows (`include_total`, the header `X-Records`).
        """
        rows = self._streamed(select, total=total)
        return ClientAnswer(total=next(rows), rows=rows)

    def _streamed(self, select: tree.Select, *, total: bool) -> Generator[Any, None, None]:
        with self._statement(select) as statement:
            columns = self._columns(select, statement)
            # First, as both may fill temporary tables, which ends a statement that is being read.
            counted = statement.total(select) if total else None
            rows = statement.rows(select, columns, shape=_shape(select, columns))
            yield counted
            yield from map(itemgetter(0), rows)

    def _columns(
        self, select: tree.Select, statement: "_Statement"
    ) -> Sequence[tree.Field | tree.Aggregate]:
        if select.columns is not None:
            return select.columns
        left: tuple[str, ...] = ()
        if select.entity is tree.Entity.NODES and tree.Entity.NODES not in self._records.entities:
            left = tree.OF_REPORTS
        if select.entity is tree.Entity.RESOURCES and statement.relation(select) is None:
            left = ("resource",)
        names = (name for name in tree.COLUMNS[select.entity] if name not in left)
        return [tree.Field(column=name, text=name) for name in names]

    @contextmanager
    def _statement(self, select: tree.Select) -> Iterator["_Statement"]:
        self._reader.check()
        sources.check_sources(select, self._records.entities)
        exports = any(map(sources.reads_exports, (select, *tree.subqueries(select.where))))
        with self._reader.rows(exports=exports) as connection:
            sources.check_facts(connection, select)
            statement = _Statement(connection, self._records, self._limits, self._reader.check)
            with statement.errors():
                yield statement


class _Statement:
    """A question on one connection; the `Surroundings` of its statements, and a `QueryContext`."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        records: sources.RecordSource,
        limits: QueryLimits,
        check: Callable[[], None],
    ) -> None:
        self.connection, self._records, self._limits = connection, records, limits
        self._check = check
        self._steps = self._checked = self._remembered = 0
        self._tests: list[Callable[[Any], bool | None]] = []
        self._paths: list[Sequence[StepTest] | None] = []
        self._relations: dict[int, tuple[tree.Select, Relation | None]] = {}
        self.known: set[str] = set()
        self._compiler = Compiler(self)
        self._error: BaseException | None = None
        for name, count, function in (
            ("holds", 2, lambda number, value: self._tests[number](value)),
            ("leaves", 3, self._leaves),
            ("value_key", 1, lambda value: None if value is None else _key_of(value)),
            ("sort_rank", 1, lambda value: sort_key(_loaded(value))[0]),
            ("sha1", 1, _sha1),
        ):
            connection.create_function(name, count, self._guarded(function), deterministic=True)
        for name in ("sum", "avg", "min", "max"):
            connection.create_aggregate(f"{name}_of", 2, partial(_Aggregate, name, self))  # type: ignore[arg-type]
        connection.set_progress_handler(self._guarded(self._progress), CHECKED_EVERY)

    def rows(
        self,
        select: tree.Select,
        columns: Sequence[tree.Field | tree.Aggregate],
        *,
        shape: str = "",
    ) -> Iterator[tuple[str, ...]]:
        """Return the rows of a query as JSON texts; those in memory are at most `kept`.

        SQLite writes a row of a given shape as one text: in half the time.
        """
        shown = [self._compiler.result(select, column) for column in columns]
        if shape:
            shown = [f"printf({', '.join([tables.quoted(shape), *shown])})"]
        limited, kept = select, self._limits.kept
        if (select.order or tree.is_grouped(select)) and (
            select.limit is None or select.limit > kept
        ):
            limited = replace(select, limit=kept + 1)
            self._relations[id(limited)] = limited, self.relation(select)
        text = self._compiler.rows(limited, shown)
        rows = self.connection.execute(text, self._compiler.values)
        counted = rows if limited is select else _counted(rows, kept)
        return map(itemgetter(slice(len(shown))), counted)

    def total(self, select: tree.Select) -> int:
        """Return the number of all rows of a query."""
        counting = select
        if tree.is_grouped(select) and not select.group_by:
            return 1  # of functions over all rows
        if not tree.is_grouped(select):
            counting = replace(select, columns=(COUNT,), order=(), limit=None, offset=0)
            relation = self.relation(select)
            if relation is not None and relation.is_table:
                self._relations[id(counting)] = counting, relation
        text = self._compiler.count(counting)
        return int(self.connection.execute(text, self._compiler.values).fetchone()[0])

    def names_of(self, select: tree.Select) -> list[str]:
        """Return the names of the nodes with matching rows, sorted."""
        rows = self.connection.execute(self._compiler.names(select), self._compiler.values)
        return [name for (name,) in rows if name]

    def test(self, call: Test, *, is_json: bool) -> int:
        """Return the number of a test; see `Surroundings`."""
        known: dict[Any, bool | None] = {}

        def tested(value: Any) -> bool | None:  # noqa: ANN401 - SQLite's
            if value in known:
                return known[value]
            verdict = call(_loaded(value) if is_json else value)
            size = len(value) if isinstance(value, str) else 0
            self.use(sources.VALUE + size)
            if self._remembered < self._limits.remembered and size <= REMEMBERED:
                self._remembered += 1
                known[value] = verdict
            return verdict

        self._tests.append(tested)
        return len(self._tests) - 1

    def path(self, steps: Sequence[StepTest] | None) -> int:
        """Return the number of a filter of paths; see `Surroundings`."""
        self._paths.append(steps)
        return len(self._paths) - 1

    def relation(self, select: tree.Select) -> Relation | None:
        """Return the rows of a query that entries do not have; see `Surroundings`."""
        if id(select) not in self._relations:
            self._relations[id(select)] = select, self._related(select)
        return self._relations[id(select)][1]

    def _related(self, select: tree.Select) -> Relation | None:
        if select.entity is tree.Entity.FACTS and sources.groups_by(
            select, ("name", "environment")
        ):
            return Relation(
                sql=f"({tables.FACT_COUNTS})", number="r.number", owners=tables.FACT_OWNERS
            )
        of_entries = select.entity is not tree.Entity.NODES and sources.is_of_entries(select)
        if select.entity not in self._records.entities or (
            of_entries and not sources.is_fuller_in_catalogs(select)
        ):
            return None
        try:
            return self._records.relation(select, self)
        except sources.MissingRowsError:
            if of_entries:
                return None
            raise

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Allow to create temporary tables; see `QueryContext`."""
        self.connection.execute("PRAGMA query_only = OFF")
        try:
            yield
        finally:
            self.connection.execute("PRAGMA query_only = ON")

    def allowed(self, select: tree.Select, column: str) -> Collection[Json] | None:
        """Return values of a column; see `QueryContext`."""
        return sources.allowed(select.where, column, self._values_of)

    def _values_of(self, condition: tree.InSelect) -> list[Json] | None:
        statement = f"{self._compiler.values_of(condition)} LIMIT {sources.MAX_VALUES + 1}"
        found = self.connection.execute(statement).fetchall()
        return None if len(found) > sources.MAX_VALUES else [_loaded(text) for (text,) in found]

    def names(self) -> Collection[str]:
        """Return names of facts; see `Surroundings`."""
        rows = self.connection.execute(tables.PUBLISHED_NAMES)
        return [*tables.DERIVED, *(name for (name,) in rows if name not in tables.DERIVED)]

    def has_exports(self, select: tree.Select) -> bool:
        """Return whether a query of resources reads exported ones; see `Surroundings`."""
        return sources.reads_exports(select)

    def store(self, text: str, values: Mapping[str, str], columns: str) -> str:
        """Store the rows of a subquery; see `Surroundings`."""
        table = f"temp.set_{len(self._compiler.sets)}"
        key = f"PRIMARY KEY ({columns})"
        with self.writing():
            self.connection.execute(f"CREATE TABLE {table} ({columns}, {key}) WITHOUT ROWID")
            self.connection.execute(f"INSERT OR IGNORE INTO {table} {text}", values)
        return table

    def use(self, steps: int) -> None:
        """Count steps."""
        self._steps += steps
        if self._steps > self._limits.steps:
            raise InvalidInputError(
                f"the query needs more than {self._limits.steps} steps", hint=_FEWER
            )
        if self._steps - self._checked >= CHECKED_EVERY:
            self._checked = self._steps
            self._limits.check()
            self._check()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise the error that ended a statement."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "parser stack overflow" in str(error):
                raise InvalidInputError("the query is nested too deep") from error
            if isinstance(self._error, JSONDecodeError):
                raise sqlite3.DatabaseError("a stored value is no JSON") from self._error
            if self._error is not None:
                raise self._error from None
            raise
        except MemoryError:
            text = f"all queries together need more than {MAX_HEAP // 1048576} MiB of memory"
            raise UnavailableError(text, hint=_FEWER) from None

    def _progress(self) -> int:
        self.use(CHECKED_EVERY)
        return 0

    def _guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that keeps its error: SQLite only says that there was one."""

        def guarded(*arguments: Any) -> Any:  # noqa: ANN401 - SQLite's
            try:
                return function(*arguments)
            except BaseException as error:
                self.keep(error)
                raise

        return guarded

    def keep(self, error: BaseException) -> None:
        """Keep the first error of a function."""
        self._error = self._error or error

    def _leaves(self, number: int, name: str, text: str) -> str:
        """Return the scalars of a fact, each as the texts of its path and value."""
        steps = self._paths[number]
        if steps is not None and not (steps and steps[0](name)):
            return "[]"
        self.use(len(text))
        found = leaves(_loaded(text), None if steps is None else [*steps[1:]])
        return compact([[compact([name, *path]), compact(leaf)] for path, leaf in found])


class _Aggregate:
    """A function over the values of a group: `sum`, `avg`, `min` or `max`."""

    def __init__(self, name: str, statement: _Statement) -> None:
        self._name, self._statement = name, statement
        self._count = 0
        self._sum: int | float = 0
        self._extreme: Json = None
        self._number: Json = None
        self._is_of_numbers = True

    def step(self, text: str, is_json: int) -> None:
        """Add a value, unless it is neither number nor text.

        A text of a number in JSON counts as the number; for `min` and `max` if all texts do.
        """
        value = _loaded(text)
        number = number_in(value) if is_json and isinstance(value, str) else value
        has_number = is_plain_number(number) and math.isfinite(number)
        if self._name in ("sum", "avg"):
            if is_plain_number(number):
                self._count, self._sum = self._count + 1, self._sum + number
        elif is_plain_number(value) or isinstance(value, str):
            self._extreme = self._further(self._extreme, value)
            self._number = self._further(self._number, number) if has_number else self._number
            self._is_of_numbers = self._is_of_numbers and has_number

    def _further(self, extreme: Json, value: Json) -> Json:
        is_less = sort_key(value) < sort_key(extreme)
        return value if extreme is None or is_less is (self._name == "min") else extreme

    def finalize(self) -> str:
        """Return the result as JSON text."""
        if self._name in ("min", "max"):
            return compact(self._number if self._is_of_numbers else self._extreme)
        if abs(self._sum) == float("inf"):
            error = InvalidInputError(f"{self._name}() exceeds the largest number")
            self._statement.keep(error)
            raise error
        if not self._count:
            return "null"
        return compact(self._sum if self._name == "sum" else self._sum / self._count)


class AnswerRoom:
    """The room for the rows of an answer that is held in memory."""

    def __init__(self, limits: QueryLimits) -> None:
        self._limits = limits
        self._rows = self._size = 0

    def take(self, text: str) -> str:
        """Return a JSON part of the answer after counting it."""
        self._rows, self._size = self._rows + 1, self._size + len(text) + 1
        if self._size > self._limits.size:
            text = f"the answer has more than {self._limits.size // 1048576} MiB"
            raise InvalidInputError(text, hint=_FEWER)
        if self._rows > self._limits.kept:
            raise too_many(self._limits.kept)
        return text


def too_many(limit: int) -> InvalidInputError:
    """Return the error for an answer with too many rows."""
    return InvalidInputError(
        f"the answer has more than {limit} rows", hint="ask for fewer, or count them"
    )


def _shape(select: tree.Select, columns: Sequence[tree.Field | tree.Aggregate]) -> str:
    """Return the form of a row: JSON with `%s` for each column."""
    if select.entity is tree.Entity.FACT_NAMES and not tree.is_grouped(select):
        return "%s"
    members = (f"{compact(_text(column))}:".replace("%", "%%") + "%s" for column in columns)
    return "{" + ",".join(members) + "}"


def _text(column: tree.Field | tree.Aggregate) -> str:
    return column.text if isinstance(column, tree.Field) else column.function.value


def _counted(rows: Iterator[tuple[str, ...]], most: int) -> Iterator[tuple[str, ...]]:
    for count, row in enumerate(rows, 1):
        if count > most:
            raise too_many(most)
        yield row


def _sha1(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _loaded(value: Any) -> Any:  # noqa: ANN401 - JSON
    return loads_again(value.encode()) if isinstance(value, str) else value


def _key_of(value: Any) -> str | None:  # noqa: ANN401 - SQLite's
    return None if value == "null" else key(_loaded(value))
