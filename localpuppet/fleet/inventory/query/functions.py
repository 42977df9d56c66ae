"""The query functions of Puppet code: their arguments and results.

- Names, number of arguments, errors and order of results are those of the predecessors
  (docs/reference/query-functions.md).

Example: `FunctionCall.of("servers_with_role", ["web"]).answer(reader).result`.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

from localpuppet.base.errors import InvalidInputError, errors_at
from localpuppet.base.formats.json_text import JsonText, canonical, compact, elements, members
from localpuppet.base.formats.strict_json import loads_again
from localpuppet.base.formats.values import Json, type_names
from localpuppet.fleet.inventory.index import SERVER
from localpuppet.fleet.inventory.query.budget import AnswerBudget
from localpuppet.fleet.inventory.query.discovery import parse_nodes, parse_resources
from localpuppet.fleet.inventory.query.evaluating import Evaluation, QueryAnswer
from localpuppet.fleet.inventory.query.fact_filter import FactFilter
from localpuppet.fleet.inventory.query.node_facts import PackedFacts, dig
from localpuppet.fleet.inventory.query.parts import Parts, labelled, parts_of
from localpuppet.fleet.inventory.query.patterns import searching
from localpuppet.fleet.inventory.query.pql import parse_query
from localpuppet.fleet.inventory.query.syntax import check_values
from localpuppet.fleet.inventory.query.tree import (
    ROLE,
    And,
    Compare,
    Condition,
    Entity,
    Field,
    Operator,
    Or,
    Select,
    check_size,
    parse_step,
)
from localpuppet.fleet.inventory.reading import InventoryReader

MAX_ARGUMENTS = 100
MAX_QUESTION = 128 * 1024
MAX_SHOWN = 1000
MAX_WARNED = 3
_FACTS = Field(column="facts", text="facts")


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionReply:
    """An answer for Puppet code.

    Attributes:
        text: The function's result as one line of JSON.
        names: The nodes in the answer, sorted.
        watched: The part whose change is a new answer.
        values_by_node: The watched values by node; a node may occur several times.
        warnings: Warnings for the author of the query, each one line.
    """

    text: str
    names: tuple[str, ...]
    watched: Json
    values_by_node: Iterable[tuple[str, Mapping[str, Json]]] = ()
    warnings: tuple[str, ...] = ()

    @property
    def result(self) -> Json:
        """Return the function's result, parsed from the text at each call."""
        result: Json = loads_again(self.text.encode())
        return result

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the watched part, hexadecimal, computed at each call."""
        digested = canonical({"names": list(self.names), "watched": self.watched})
        return hashlib.sha256(digested).hexdigest()

    @property
    def parts(self) -> Parts:
        """Return short digests of the watched values by node, computed at each call."""
        return parts_of(self.names, self.values_by_node)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    """A node, all its facts as JSON, and the watched facts."""

    node: str
    text: str
    watched: dict[str, Json]


Arguments = Sequence[Json]
_Function = Callable[[InventoryReader, Arguments], FunctionReply]


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCall:
    """A call of one of the functions.

    Attributes:
        function: Its name.
        arguments: Its arguments.
    """

    function: str
    arguments: tuple[Json, ...]

    @classmethod
    def of(cls, function: str, arguments: Arguments) -> "FunctionCall":
        """Return a call with a valid number of arguments.

        Raises:
            InvalidInputError: The function is unknown, the number is wrong, or the arguments are
                too large.
        """
        if function not in _FUNCTIONS:
            raise InvalidInputError(f"the function {function[:40]!r} is unknown")
        least, most, _ = _FUNCTIONS[function]
        count = len(arguments)
        if count < least or count > most:
            allowed = f"must be >= {least}" if most == MAX_ARGUMENTS else f"must be {least}"
            if least < most < MAX_ARGUMENTS:
                allowed = f"must be {least} to {most}"
            raise InvalidInputError(f"{function}(): wrong number of arguments ({count}; {allowed})")
        check_values(arguments)
        if len(canonical(list(arguments))) > MAX_QUESTION:
            raise InvalidInputError(
                f"the question has more than {MAX_QUESTION // 1024} KiB", where=f"{function}()"
            )
        return cls(function=function, arguments=tuple(arguments))

    @property
    def text(self) -> str:
        """Return the call as Puppet code, `query_nodes("role=web", "fqdn")`, shortened if long."""
        shown = ", ".join(json.dumps(argument, ensure_ascii=False) for argument in self.arguments)
        return f"{self.function}({shown if len(shown) <= MAX_SHOWN else f'{shown[:MAX_SHOWN]}…'})"

    def answer(self, reader: InventoryReader) -> FunctionReply:
        """Evaluate the call.

        Args:
            reader: The entries.

        Raises:
            InvalidInputError: An argument is invalid, or the answer is too large.
        """
        with errors_at(f"{self.function}()"):
            return _FUNCTIONS[self.function][2](reader, self.arguments)


def _servers(reader: InventoryReader, where: Condition) -> list[_Server]:
    """Return whole fact hashes, sorted by fqdn."""
    room = AnswerBudget()
    # Entries are sorted by node name, which is the fqdn in the answer.
    return [
        _Server(
            node=str(node.known.node),
            text=room.take(node.facts.text()),
            watched=node.facts.essential(),
        )
        for node in Evaluation(reader).nodes(check_size(where))
    ]


def _reply(servers: Sequence[_Server], *, text: str | None = None) -> FunctionReply:
    """Return an answer of servers; `text` is the function's result if it differs."""
    return FunctionReply(
        text=elements(server.text for server in servers) if text is None else text,
        names=tuple(sorted({server.node for server in servers})),
        watched=[server.watched for server in servers],
        values_by_node=[(server.node, server.watched) for server in servers],
    )


@dataclass(frozen=True, slots=True)
class _RowsByNode:
    """The watched values of an answer by node; a count has no node."""

    answer: QueryAnswer

    def __iter__(self) -> Iterator[tuple[str, Mapping[str, Json]]]:
        """Yield each node with its watched values, computed on demand."""
        owners, watched = self.answer.owners, self.answer.watched
        if owners:
            yield from zip(owners, map(labelled, watched), strict=True)


def _servers_with_role(reader: InventoryReader, arguments: Arguments) -> FunctionReply:
    return _reply(_with_role(reader, arguments))


def _with_role(reader: InventoryReader, arguments: Arguments) -> list[_Server]:
    roles = _texts(arguments, "a role")
    servers = _servers(reader, _any_role(roles))
    known = {server.node for server in servers}
    # Sorted by the time of the first export, as in puppet-kicker's database.
    exported = [
        (server.since, str(entry.node), server.facts(entry.node))
        for entry in reader.entries({SERVER: roles})
        for server in entry.servers
        if server.role in roles and entry.node not in known
    ]
    exported.sort(key=lambda exported_row: exported_row[:2])
    return servers + [
        _Server(node=node, text=compact(about), watched=about) for _, node, about in exported
    ]


def _any_role(names: Sequence[str]) -> Condition:
    if len(names) == 1:
        return Compare(field=ROLE, operator=Operator.EQUAL, value=names[0])
    return Or(
        parts=tuple(Compare(field=ROLE, operator=Operator.EQUAL, value=name) for name in names)
    )


def _server_with_role(reader: InventoryReader, arguments: Arguments) -> FunctionReply:
    roles, fallback = (arguments, None) if len(arguments) == 1 else (arguments[:-1], arguments[-1])
    first = _with_role(reader, roles)[:1]
    return _reply(first, text=first[0].text if first else compact(fallback))


def _servers_with_facts(reader: InventoryReader, arguments: Arguments) -> FunctionReply:
    filters = [FactFilter.parse(text) for text in _texts(arguments, "a fact query")]
    reply = _reply(
        _servers(reader, And(parts=tuple(fact_filter.condition for fact_filter in filters)))
    )
    ordered = {
        fact_filter.number.text: fact_filter for fact_filter in filters if fact_filter.number
    }
    return replace(reply, warnings=tuple(_no_numbers(reader, ordered)) if ordered else ())


def _no_numbers(reader: InventoryReader, filters: Mapping[str, FactFilter]) -> Iterator[str]:
    """Yield a warning for each fact, by its text, that is not a number on some node."""
    odd: dict[str, list[str]] = {text: [] for text in filters}
    for known in reader.nodes():
        facts = PackedFacts(known)
        for text, fact_filter in filters.items():
            if fact_filter.is_not_a_number(facts):
                odd[text].append(str(known.node))
    for text, nodes in odd.items():
        more = f" and {len(nodes) - MAX_WARNED} more" if len(nodes) > MAX_WARNED else ""
        if nodes:
            yield (
                f"the fact {text} is not a number on {', '.join(nodes[:MAX_WARNED])}{more}:"
                " it does not match"
            )


def _texts(arguments: Arguments, what: str) -> list[str]:
    """Return strings, with nested arrays flattened."""
    texts: list[str] = []
    for argument in arguments:
        for text in argument if isinstance(argument, list) else [argument]:
            if not isinstance(text, str):
                raise InvalidInputError(f"{what} must be a string, not a {type_names[type(text)]}")
            if not text:
                raise InvalidInputError(f"{what} is empty")
            texts.append(text)
    if not 0 < len(texts) <= MAX_ARGUMENTS:
        raise InvalidInputError(f"there must be 1 to {MAX_ARGUMENTS} of {what}, not {len(texts)}")
    return texts


def _nodes(reader: InventoryReader, query: Json) -> Iterator[tuple[str, PackedFacts]]:
    """Yield the matching nodes with their facts."""
    for node in Evaluation(reader).nodes(parse_nodes(query)):
        yield str(node.known.node), node.facts


def _query_nodes(reader: InventoryReader, arguments: Arguments) -> FunctionReply:
    if len(arguments) == 1:
        names = [name for name, _ in _nodes(reader, arguments[0])]
        return FunctionReply(text=compact(names), names=tuple(names), watched=None)
    fact = arguments[1]
    if not isinstance(fact, str) or not fact:
        raise InvalidInputError("the fact must be a string")
    first, *path = fact.split(".")
    room = AnswerBudget()
    values = []
    texts = []
    for name, facts in _nodes(reader, arguments[0]):
        whole = facts.get(first)
        if whole is not None:
            values.append((name, dig(whole, _steps(path))))
            texts.append(room.take(compact(values[-1][1])))
    return FunctionReply(
        text=elements(texts),
        names=tuple(name for name, _ in values),
        watched=[value for _, value in values],
        values_by_node=[(name, {fact: value}) for name, value in values],
    )


def _steps(path: Sequence[str]) -> tuple[str | int, ...]:
    return tuple(map(parse_step, path))


def _query_facts(reader: InventoryReader, arguments: Arguments) -> FunctionReply:
    query, wanted = arguments
    names = _texts(wanted if isinstance(wanted, list) else [wanted], "a fact's name")
    return _by_node(
        (node, dict(pair for name in names for pair in _facts_named(facts, name)))
        for node, facts in _nodes(reader, query)
    )


def _by_node(facts: Iterable[tuple[str, dict[str, Json]]], *, empty: bool = False) -> FunctionReply:
    """Return an answer of facts by node, without nodes that have none unless `empty` is set."""
    room = AnswerBudget()
    facts_by_node: dict[str, dict[str, Json]] = {}
    texts: dict[str, JsonText] = {}
    for node, about in facts:
        if about or empty:
            texts[node] = JsonText(room.take(compact(about)))
            facts_by_node[node] = about
    return FunctionReply(
        text=members(texts),
        names=tuple(facts_by_node),
        watched={**facts_by_node},
        values_by_node=list(facts_by_node.items()),
    )


def _facts_named(facts: PackedFacts, name: str) -> Iterator[tuple[str, Json]]:
    if len(name) > 2 and name.startswith("/") and name.endswith("/"):
        search = searching(name[1:-1])
        yield from ((fact_name, value) for fact_name, value in facts.items() if search(fact_name))
        return
    first, *path = name.split(".")
    value = facts.get(first)
    if value is not None:
        yield name.replace(".", "_"), dig(value, _steps(path))


def _query_resources(reader: InventoryReader, arguments: Arguments) -> FunctionReply:
    grouped = len(arguments) == 3 and arguments[2] is True
    where = parse_resources(arguments[1])
    select = Select(entity=Entity.RESOURCES, where=where)
    wanted = {name for name, _ in _nodes(reader, arguments[0])}
    answer = Evaluation(reader).answer(select)
    kept = [row for row in answer.rows if row["certname"] in wanted]
    names = tuple(name for name in answer.names if name in wanted)
    resources = [(name, about) for name, about in _RowsByNode(answer) if name in wanted]
    if not grouped:
        return FunctionReply(
            text=compact(kept), names=names, watched=list(kept), values_by_node=resources
        )
    # Rows come node by node.
    groups: dict[str, Json] = {
        str(name): list(rows) for name, rows in groupby(kept, key=itemgetter("certname"))
    }
    return FunctionReply(
        text=compact(groups), names=names, watched=groups, values_by_node=resources
    )


def _puppetdb_query(reader: InventoryReader, arguments: Arguments) -> FunctionReply:
    answer = Evaluation(reader).answer(parse_query(arguments[0]))
    return FunctionReply(
        text=elements(answer.texts),
        names=tuple(answer.names),
        watched=list(answer.watched),
        values_by_node=_RowsByNode(answer),
    )


def _query(reader: InventoryReader, arguments: Arguments) -> FunctionReply:
    if len(arguments) == 1:
        return _query_nodes(reader, arguments)
    paths = {name: name.split(".") for name in _texts(arguments[1:], "a fact's name")}

    def named(facts: PackedFacts) -> dict[str, Json]:
        return {name: facts.at((path[0], *_steps(path[1:]))) for name, path in paths.items()}

    answered = _nodes(reader, arguments[0])
    return _by_node(((node, named(facts)) for node, facts in answered), empty=True)


# Name → minimum and maximum number of arguments, and the implementation.
_FUNCTIONS: Mapping[str, tuple[int, int, _Function]] = {
    "servers_with_role": (1, MAX_ARGUMENTS, _servers_with_role),
    "server_with_role": (1, MAX_ARGUMENTS, _server_with_role),
    "servers_with_facts": (1, MAX_ARGUMENTS, _servers_with_facts),
    "query_nodes": (1, 2, _query_nodes),
    "query_facts": (2, 2, _query_facts),
    "query_resources": (2, 3, _query_resources),
    "puppetdb_query": (1, 1, _puppetdb_query),
    "query": (1, 2, _query),
}
