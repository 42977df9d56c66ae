"""Find the links between nodes: which nodes make which other nodes run, and why.

- A link leads from the nodes that change to the nodes that run then. A kick leads to the nodes that
  it finds. A query leads from the nodes in its answer to the node that asks, and a collector from
  the nodes that export matching resources.
- Each question is answered once, even if several nodes ask it.
- A trigger is not declared: it is taken from the chains that led to a node's last run. It counts
  only if no kick and no query explains it.
- Each question is answered from the current inventory. A node that joined after the entries were
  read is left out; the next call includes it.
- If a node's kick or query cannot be parsed, the result has a note and the other links.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import one_line, shown_names
from localpuppet.base.formats.values import Json
from localpuppet.fleet.exports.recording import COLLECT, collector_text
from localpuppet.fleet.exports.search import as_query
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.query.functions import FunctionCall
from localpuppet.fleet.inventory.query.syntax import check_values
from localpuppet.fleet.inventory.reading import InventoryReader
from localpuppet.fleet.roles.readers import BoundedReader, EnoughError

# Different questions answered in one call; each may read every entry.
MAX_QUESTIONS = 1000
MAX_SHOWN = 60
_CALL = re.compile(r"([a-z_]+)\((.*)\)\Z", re.DOTALL)


class LinkReason(StrEnum):
    """The reason why a node runs when another one changes."""

    KICK = "kick"
    QUERY = "query"
    COLLECT = "collect"
    TRIGGER = "trigger"


# A node runs for these reasons if an answer changes.
ANSWERS = frozenset((LinkReason.QUERY, LinkReason.COLLECT))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLink:
    """Nodes that make other nodes run.

    Attributes:
        by: Why.
        starts: The nodes that change.
        ends: The nodes that run then; a node in both sets does not make itself run.
        text: The kick or question as written; empty for a trigger.
    """

    by: LinkReason
    starts: frozenset[NodeName]
    ends: frozenset[NodeName]
    text: str = ""

    @property
    def written(self) -> str:
        """Return the kick or question in one line, a collector in Puppet's syntax."""
        if self.by is LinkReason.COLLECT:
            kind, condition = _call(self.text)[1]
            return one_line(collector_text(str(kind), condition))
        return one_line(self.text)

    @property
    def is_empty(self) -> bool:
        """Return whether it leads from no node to another one."""
        return not self.starts or not self.ends or (self.starts == self.ends and len(self.ends) < 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """All links of an inventory, and its nodes.

    Attributes:
        nodes: The roles of each node in the inventory.
        links: The links from a node to another one.
        lost: Kicks that match no node: the text, and the nodes that kick.
        notes: Errors of kicks and queries, each one line.
        unanswered: The number of questions not answered.
    """

    nodes: dict[NodeName, tuple[str, ...]]
    links: tuple[NodeLink, ...]
    lost: tuple[tuple[str, frozenset[NodeName]], ...]
    notes: tuple[str, ...]
    unanswered: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _EntryTexts:
    """The kicks and questions in the entries, each different text once."""

    nodes: dict[NodeName, tuple[str, ...]]
    questions: dict[tuple[LinkReason, str], set[NodeName]]
    steps: set[tuple[NodeName, NodeName]]


def links_of(reader: InventoryReader, enough: Callable[[], bool] = lambda: False) -> Links:
    """Return the links of an inventory.

    Args:
        reader: The inventory.
        enough: Returns whether to stop early, as questions of other nodes may take long.
    """
    texts = _read_texts(reader.entries())
    pairs, lost, notes = [], [], []
    unanswered = 0
    for looked, ((by, text), asking) in enumerate(sorted(texts.questions.items())):
        if looked == MAX_QUESTIONS or enough():
            unanswered = len(texts.questions) - looked
            break
        try:
            answer = _names(by, text, BoundedReader(reader, enough))
        except EnoughError:
            unanswered = len(texts.questions) - looked
            break
        except InvalidInputError as error:
            shown = f"{by} {one_line(text)[:MAX_SHOWN]!r}"
            notes.append(f"{shown} of {shown_names(sorted(asking))} is not understood: {error}")
            continue
        there = answer & texts.nodes.keys()
        starts, ends = (asking, there) if by is LinkReason.KICK else (there, asking)
        link = NodeLink(by=by, starts=frozenset(starts), ends=frozenset(ends), text=text)
        if not link.is_empty:
            pairs.append(link)
        elif by is LinkReason.KICK and not answer:
            lost.append((text, frozenset(asking)))
    return Links(
        nodes=texts.nodes,
        links=(*pairs, *_triggers(texts, pairs)),
        lost=tuple(lost),
        notes=tuple(notes),
        unanswered=unanswered,
    )


def _read_texts(entries: Iterable[InventoryEntry]) -> _EntryTexts:
    nodes: dict[NodeName, tuple[str, ...]] = {}
    questions: dict[tuple[LinkReason, str], set[NodeName]] = {}
    steps: set[tuple[NodeName, NodeName]] = set()
    for entry in entries:
        nodes[entry.node] = entry.roles
        for text in entry.kicks:
            questions.setdefault((LinkReason.KICK, text), set()).add(entry.node)
        for query in entry.queries:
            by = LinkReason.COLLECT if query.text.startswith(f"{COLLECT}(") else LinkReason.QUERY
            questions.setdefault((by, query.text), set()).add(entry.node)
        for path in entry.paths:
            chain = (*path, entry.node)
            steps.update(pairwise(chain))
    return _EntryTexts(nodes=nodes, questions=questions, steps=steps)


def _triggers(texts: _EntryTexts, explained: list[NodeLink]) -> Iterator[NodeLink]:
    """Yield a link for each sender of triggers that no kick and no query explains."""
    of_start: dict[NodeName, list[NodeLink]] = {}
    for link in explained:
        for start in link.starts:
            of_start.setdefault(start, []).append(link)
    ends: dict[NodeName, set[NodeName]] = {}
    for start, end in texts.steps:
        known = start in texts.nodes and end in texts.nodes and start != end
        if known and not any(end in link.ends for link in of_start.get(start, ())):
            ends.setdefault(start, set()).add(end)
    for start, triggered in sorted(ends.items()):
        yield NodeLink(by=LinkReason.TRIGGER, starts=frozenset((start,)), ends=frozenset(triggered))


def _names(by: LinkReason, text: str, reader: InventoryReader) -> frozenset[NodeName]:
    question = FunctionCall.of("query_nodes", [text]) if by is LinkReason.KICK else _question(text)
    return frozenset(map(NodeName, question.answer(reader).names))


def _question(text: str) -> FunctionCall:
    """Return the query in the text of `FunctionCall.text` or `CollectorRecord.question`."""
    name, arguments = _call(text)
    if name != COLLECT:
        return FunctionCall.of(name, arguments)
    if len(arguments) != 2 or not isinstance(arguments[0], str):
        raise InvalidInputError("is not a collector")
    check_values(arguments)
    return FunctionCall.of("query_resources", [False, as_query(arguments[0], arguments[1])])


def _call(text: str) -> tuple[str, list[Json]]:
    """Return the function that a text calls, and its arguments."""
    call = _CALL.match(text)
    if call is None:
        raise InvalidInputError("is not a call of a function")
    try:
        arguments: list[Json] = loads(f"[{call[2]}]")
    except ValueError as error:
        raise InvalidInputError("its arguments are cut, or are not JSON") from error
    return call[1], arguments
