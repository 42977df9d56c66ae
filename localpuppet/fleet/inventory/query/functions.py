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
from typing import Any

from localpuppet.base.errors import InvalidInputError, errors_at
from localpuppet.base.formats.strict_json import canonical, compact, elements, loads_again
from localpuppet.base.formats.values import Json, type_names
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.query import tree
from localpuppet.fleet.inventory.query.comparing import is_number
from localpuppet.fleet.inventory.query.comparing import members as members_of
from localpuppet.fleet.inventory.query.discovery import FactFilter, parse_nodes, parse_resources
from localpuppet.fleet.inventory.query.evaluating import ESSENTIAL, Evaluation, QueryAnswer
from localpuppet.fleet.inventory.query.parts import Parts, labelled, parts_of
from localpuppet.fleet.inventory.query.pql import parse_query
from localpuppet.fleet.inventory.query.query_limits import MAX_ARGUMENTS, MAX_QUESTION
from localpuppet.fleet.inventory.query.records import unknown_names
from localpuppet.fleet.inventory.query.syntax import check_values
from localpuppet.fleet.inventory.reading import InventoryReader
from localpuppet.fleet.inventory.tables import TRUSTED

MAX_SHOWN = 1000
MAX_WARNED = 3
_FACTS = tree.Field(column="facts", text="facts")


class FunctionReply(Value):
    """An answer for Puppet code.

    Attributes:
        text: The function's result as one line of JSON.
        watched: The part whose change is a new answer; by node, where a node may occur several
            times.
        unknown: Of `query`: the facts, roles and classes that no node has, each one line.
    """

    text: str
    names: tuple[str, ...]
    watched: Json
    values_by_node: Iterable[tuple[str, Mapping[str, Json]]] = ()
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

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


Arguments = Sequence[Json]
_Function = Callable[[InventoryReader, Arguments], FunctionReply]


class FunctionCall(Value):
    function: str
    arguments: tuple[Json, ...]

    @classmethod
    def of(cls, function: str, arguments: Arguments) -> "FunctionCall":
        """Return a call; reject an unknown function, and a wrong number or size of arguments."""
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
        with errors_at(f"{self.function}()"):
            return _FUNCTIONS[self.function][2](reader, self.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    """A node, all its facts as JSON, and the watched facts."""

    node: str
    text: str
    watched: dict[str, Json]


def _servers(reader: InventoryReader, where: tree.Condition) -> list[_Server]:
    """Return whole fact hashes, sorted by fqdn."""
    columns = (tree.CERTNAME, _FACTS, *(_fact(name) for name in ESSENTIAL))
    select = tree.Select(
        entity=tree.Entity.INVENTORY, where=tree.check_size(where), columns=columns
    )
    return [
        _Server(
            node=_value(name),
            text=text,
            watched=dict(zip(ESSENTIAL, map(_value, essential), strict=True)),
        )
        for name, text, *essential in Evaluation(reader).table(select)
    ]


def _value(text: str) -> Any:  # noqa: ANN401 - JSON
    return loads_again(text.encode())


def _fact(*path: str | int) -> tree.Field:
    return tree.Field(column="facts", path=path)


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
    with reader.rows() as connection:
        exported = connection.execute(
            "SELECT certname, facts FROM servers JOIN live ON live.id = servers.node"
            " WHERE role IN (SELECT value FROM json_each(?)) ORDER BY since, certname",
            (compact(roles),),
        ).fetchall()
    return servers + [
        _Server(node=node, text=text, watched=_value(text))
        for node, text in exported
        if node not in known
    ]


def _any_role(names: Sequence[str]) -> tree.Condition:
    if len(names) == 1:
        return tree.Compare(field=tree.ROLE, operator=tree.Operator.EQUAL, value=names[0])
    return tree.Or(
        parts=tuple(
            tree.Compare(field=tree.ROLE, operator=tree.Operator.EQUAL, value=name)
            for name in names
        )
    )


def _server_with_role(reader: InventoryReader, arguments: Arguments) -> FunctionReply:
    roles, fallback = (arguments, None) if len(arguments) == 1 else (arguments[:-1], arguments[-1])
    first = _with_role(reader, roles)[:1]
    return _reply(first, text=first[0].text if first else compact(fallback))


def _servers_with_facts(reader: InventoryReader, arguments: Arguments) -> FunctionReply:
    filters = [FactFilter.parse(text) for text in _texts(arguments, "a fact query")]
    reply = _reply(
        _servers(reader, tree.And(parts=tuple(fact_filter.condition for fact_filter in filters)))
    )
    ordered = {
        fact_filter.number.text: fact_filter for fact_filter in filters if fact_filter.number
    }
    return replace(reply, warnings=tuple(_no_numbers(reader, ordered)) if ordered else ())


def _no_numbers(reader: InventoryReader, filters: Mapping[str, FactFilter]) -> Iterator[str]:
    """Yield a warning for each fact, by its text, that is not a number on some node."""
    columns = (tree.CERTNAME, *(_fact(*fact_filter.path) for fact_filter in filters.values()))
    odd: dict[str, list[str]] = {text: [] for text in filters}
    for row in Evaluation(reader).table(tree.Select(entity=tree.Entity.INVENTORY, columns=columns)):
        name, *values = map(_value, row)
        for text, value in zip(filters, values, strict=True):
            if value is not None and not all(map(is_number, members_of(value))):
                odd[text].append(name)
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


def _nodes(reader: InventoryReader, query: Json, *facts: tree.Field) -> Iterator[list[Json]]:
    """Yield the matching nodes: the name, and some facts."""
    columns = (tree.CERTNAME, *facts)
    select = tree.Select(entity=tree.Entity.INVENTORY, where=parse_nodes(query), columns=columns)
    for row in Evaluation(reader).table(select):
        yield [*map(_value, row)]


def _query_nodes(reader: InventoryReader, arguments: Arguments) -> FunctionReply:
    if len(arguments) == 1:
        names = [str(name) for (name,) in _nodes(reader, arguments[0])]
        return FunctionReply(text=compact(names), names=tuple(names), watched=None)
    fact = arguments[1]
    if not isinstance(fact, str) or not fact:
        raise InvalidInputError("the fact must be a string")
    path = _path(fact)
    rows = _nodes(reader, arguments[0], _fact(path[0]), _fact(*path))
    values = [(str(name), value) for name, whole, value in rows if whole is not None]
    return FunctionReply(
        text=compact([value for _, value in values]),
        names=tuple(name for name, _ in values),
        watched=[value for _, value in values],
        values_by_node=[(name, {fact: value}) for name, value in values],
    )


def _path(fact: str) -> tuple[str | int, ...]:
    first, *rest = fact.split(".")
    return (first, *map(tree.parse_step, rest))


def _query_facts(reader: InventoryReader, arguments: Arguments) -> FunctionReply:
    query, wanted = arguments
    names = _texts(wanted if isinstance(wanted, list) else [wanted], "a fact's name")
    found: dict[str, dict[str, Json]] = {}
    for text in names:
        if len(text) > 2 and text.startswith("/") and text.endswith("/"):
            columns = tree.plain_fields(("certname", "name", "value"))
            named = tree.Compare(field=columns[1], operator=tree.Operator.MATCH, value=text[1:-1])
            nodes = tree.related(tree.Entity.INVENTORY, parse_nodes(query))
            where = tree.And(parts=(named, nodes))
            select = tree.Select(entity=tree.Entity.FACTS, where=where, columns=columns)
            for row in Evaluation(reader).table(select):
                node, name, value = map(_value, row)
                if name != TRUSTED:
                    found.setdefault(node, {})[name] = value
            continue
        path = _path(text)
        for node, whole, value in _nodes(reader, query, _fact(path[0]), _fact(*path)):
            if whole is not None:
                found.setdefault(str(node), {})[text.replace(".", "_")] = value
    return _by_node((node, found[node]) for node in sorted(found))


def _by_node(facts: Iterable[tuple[str, dict[str, Json]]]) -> FunctionReply:
    facts_by_node = dict(facts)
    return FunctionReply(
        text=compact(facts_by_node),
        names=tuple(facts_by_node),
        watched={**facts_by_node},
        values_by_node=list(facts_by_node.items()),
    )


def _query_resources(reader: InventoryReader, arguments: Arguments) -> FunctionReply:
    grouped = len(arguments) == 3 and arguments[2] is True
    where = parse_resources(arguments[1])
    select = tree.Select(entity=tree.Entity.RESOURCES, where=where)
    wanted = {name for (name,) in _nodes(reader, arguments[0])}
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
    with reader.rows() as connection:
        unknown = tuple(unknown_names(connection, parse_nodes(arguments[0])))
    if len(arguments) == 1:
        return replace(_query_nodes(reader, arguments), unknown=unknown)
    names = _texts(arguments[1:], "a fact's name")
    rows = _nodes(reader, arguments[0], *(_fact(*_path(name)) for name in names))
    facts = _by_node((str(name), dict(zip(names, values, strict=True))) for name, *values in rows)
    return replace(facts, unknown=unknown)


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
