"""What the renderers of a preview have in common: sentences, labels and short values.

Titles, values and messages come from a pull request: each function returns text on one line in
which each character shows, and the renderers escape it for their format. What is left out is
counted.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from localpuppet.base.formats.text import visible
from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value
from localpuppet.node.preview.compile_request import CompileFailure
from localpuppet.node.preview.difference import (
    ADDED,
    CHANGED,
    REMOVED,
    CatalogDifference,
    ParameterChange,
    class_title,
)
from localpuppet.node.preview.result import (
    BOTH,
    FIXED,
    NEW,
    SAME,
    UNREADABLE,
    ChangeGroup,
    FailureKind,
    NodeFailureGroup,
    PreviewResult,
    PreviewRevision,
    failure_groups,
)
from localpuppet.node.puppet.catalog import TYPE_KEY
from localpuppet.node.puppet.fault import without_prologue

SIGNS = {ADDED: "+", REMOVED: "-", CHANGED: "~"}
GOOD, WARNING, BAD, ACTIVE = "good", "warn", "bad", "active"
_FAILURES: Mapping[FailureKind, tuple[str, str, str]] = {
    NEW: (BAD, "fail", "to compile with the change"),
    BOTH: (BAD, "fail", "to compile, before the change with another error"),
    UNREADABLE: (BAD, "have", "a capture that cannot be read"),
    SAME: (WARNING, "fail", "to compile as before"),
    FIXED: (GOOD, "compile", "again"),
}
MAX_TITLE = 300
MAX_VALUE = 200
MAX_MESSAGE = 600
MAX_SERVICES = 500  # that are named, each with its nodes
NOT_SET = "(not set)"
_CONTEXT = 40  # characters before the first difference of long values


@dataclass(frozen=True, slots=True)
class NoticeRow:
    """A row of a notice: a place in code, a rule or a file, and its nodes, or none for all."""

    label: str
    text: str
    nodes: Sequence[str]


@dataclass(frozen=True, slots=True)
class PreviewNotice:
    """What a user should know before the changes: failures, forbidden changes, blind spots."""

    kind: str
    title: str
    noun: str
    rows: Sequence[NoticeRow]


class ChangeLine(Value):
    """A line for what differs: `Class[Ntp]`, `File[/a] before Service[b]`.

    The parameters are those that differ; none if one thing is added or removed.
    """

    sign: str
    text: str
    parameters: tuple[ParameterChange, ...] = ()
    is_relationship: bool = False


def headline(result: PreviewResult) -> str:
    """Return `1,204 nodes: 1,171 unaffected, 31 change in 2 ways, 2 fail to compile`."""
    parts = ", ".join(f"{number:,} {words}" for _, number, words in counts(result))
    return f"{count(result.nodes, 'node')}: {parts}"


def counts(result: PreviewResult) -> Iterator[tuple[str, int, str]]:
    """Yield the numbers of nodes, whose sum is that of all: kind, number and words."""
    yield GOOD, result.unaffected, "unaffected"
    number = sum(not group.fixed for group in result.groups)
    ways = f" in {number:,} ways" if number > 1 else ""
    for kind, number, plural, rest in (
        (ACTIVE, result.changed, "change", ways),
        (BAD, result.failing(NEW, BOTH), "fail", " to compile"),
        (BAD, result.failing(UNREADABLE), "have", " no readable capture"),
        (WARNING, result.failing(SAME), "fail", " as before"),
        (GOOD, result.failing(FIXED), "compile", " again"),
    ):
        if number:
            yield kind, number, f"{verb(number, plural)}{rest}"


def overview(result: PreviewResult) -> list[PreviewNotice]:
    """Return the totals, with the changes by resource, and the services that restart."""
    changes, totals = Counter[tuple[str, str]](), Counter[str]()
    for group in result.groups:
        for line in lines(group.difference):
            if not line.is_relationship:
                changes[line.sign, line.text] += len(group.nodes)
        totals["+"] += group.left_out * len(group.nodes)
    if not changes and not totals["+"]:
        return []
    for (sign, _), number in changes.items():
        totals[sign] += number
    rows = [
        NoticeRow(f"{sign} {text}", f"on {count(number, 'node')}", ())
        for (sign, text), number in sorted(changes.items(), key=lambda item: (-item[1], item[0][1]))
    ]
    if partly := sum(len(group.nodes) for group in result.groups if group.left_out):
        rows.append(NoticeRow("+ resources that are not shown", f"on {count(partly, 'node')}", ()))
    title = f"{totals['+']:,} to add, {totals['~']:,} to change, {totals['-']:,} to remove"
    some = rows if len(result.groups) > 1 else ()  # else they are those of the group
    listed = [PreviewNotice(ACTIVE, title, "resource", some)]
    if services := _restarting(result.groups):
        listed.append(PreviewNotice(WARNING, "Services that restart", "service", services))
    return listed


def _restarting(groups: Sequence[ChangeGroup]) -> list[NoticeRow]:
    """Return the services that restart with their nodes; those beyond the limit are one row."""
    nodes: dict[str, list[str]] = {}
    further: set[str] = set()
    for group in groups:
        for service in group.restarts:
            name = cut(service, MAX_TITLE)
            if name in nodes or len(nodes) < MAX_SERVICES:
                nodes.setdefault(name, []).extend(group.nodes)
            else:
                further.update(group.nodes)
    rows = [NoticeRow("", name, sorted(some)) for name, some in sorted(nodes.items())]
    return [*rows, NoticeRow("", "further services", sorted(further))] if further else rows


def revisions(result: PreviewResult) -> str:
    """Return `main (3f2a1c9d0b1e) → HEAD (8be0c2…)`."""
    shard = f", part {result.shard} of the nodes" if result.shard else ""
    return f"{_revision(result.base)} → {_revision(result.head)}{shard}"


def _revision(revision: PreviewRevision) -> str:
    if revision.name == revision.commit:  # a pipeline names commits
        return revision.name[:12]
    commit = f" ({revision.commit[:12]})" if revision.commit else ""
    return f"{cut(revision.name, MAX_TITLE)}{commit}"


def statistics(result: PreviewResult) -> str:
    """Return `12 catalogs compiled, 2,396 from the cache, 3.2 s`."""
    numbers = result.statistics
    return (
        f"{count(numbers.compiled, 'catalog')} compiled, {numbers.cached:,} from the cache, "
        f"{numbers.seconds:.1f} s"
    )


def group_label(group: ChangeGroup) -> str:
    """Return `26 nodes (role=web)`."""
    role = role_label(group)
    return f"{group_count(group)}{f' ({role})' if role else ''}"


def group_count(group: ChangeGroup) -> str:
    """Return `26 nodes`, `1 node that did not compile before, without 12 resources`."""
    before = " that did not compile before" if group.fixed else ""
    rest = f", without {count(group.left_out, 'resource')}" if group.left_out else ""
    return f"{count(len(group.nodes), 'node')}{before}{rest}"


def role_label(group: ChangeGroup) -> str:
    """Return `role=web`, or an empty text."""
    roles = group.roles[:3]
    more = ", …" if len(group.roles) > len(roles) else ""
    return f"role={cut(', '.join(roles), MAX_TITLE)}{more}" if roles else ""


def notices(result: PreviewResult) -> list[PreviewNotice]:
    """Return what a user should know before the changes, the worst first."""
    groups = failure_groups(result.failures)
    listed = []
    for kind, (importance, plural, rest) in _FAILURES.items():
        rows = [
            NoticeRow(_place(group), _error(group), group.nodes)
            for group in groups
            if group.kind == kind
        ]
        number = sum(len(row.nodes) for row in rows)
        title = f"{count(number, 'node')} {verb(number, plural)} {rest}"
        listed.append(PreviewNotice(importance, title, "error", rows))
    violations = [
        NoticeRow(message(item.rule), message(item.reference), item.nodes)
        for item in result.violations
    ]
    spots = [
        NoticeRow(message(file), message(spot.reason), spot.nodes)
        for file, spot in sorted(
            ((file, spot) for spot in result.blind_spots for file in spot.files),
            key=lambda pair: pair[0],
        )
    ]
    impure: dict[str, list[str]] = {}
    for node in result.impure:
        impure.setdefault(message("; ".join(node.reasons)), []).append(node.node)
    reasons = [
        NoticeRow("", text, nodes)
        for text, nodes in sorted(impure.items(), key=lambda item: (-len(item[1]), item[0]))
    ]
    warnings = [
        NoticeRow(message(item.revision), message(item.text), ()) for item in result.warnings
    ]
    sealed = [
        NoticeRow(message(item.group), count(item.values, "value"), ()) for item in result.resealed
    ]
    listed += [
        PreviewNotice(
            WARNING, "Sealed again, or other values under the same numbers", "group", sealed
        ),
        PreviewNotice(WARNING, "Not used, and so in no catalog", "part", warnings),
        PreviewNotice(BAD, "Forbidden by --fail-on", "forbidden change", violations),
        PreviewNotice(WARNING, "Cannot tell what these files change", "file", spots),
        PreviewNotice(
            WARNING, "May differ from run to run, whatever the change", "reason", reasons
        ),
    ]
    return [notice for notice in listed if notice.rows]


def _error(failure: NodeFailureGroup) -> str:
    """Return Puppet's error in one printable line, without the place that `_place` has."""
    plain = CompileFailure(message=failure.message, file=failure.file).plain_message
    return message(without_prologue(plain))


def _place(failure: NodeFailureGroup) -> str:
    """Return `manifests/site.pp:12`; empty if Puppet names no file."""
    if failure.file is None:
        return ""
    line = "" if failure.line is None else f":{failure.line}"
    return f"{cut(failure.file, MAX_TITLE)}{line}"


def summary(difference: CatalogDifference, *, most: int) -> list[str]:
    """Return `~ File[/etc/motd]: content`, `+ Service[x]` of up to `most` changes, and the rest."""
    texts = []
    for line in lines(difference):
        names = ", ".join(cut(item.name, 80) for item in line.parameters[:5])
        more = ", …" if len(line.parameters) > 5 else ""
        colon = f": {names}{more}" if line.sign == "~" and names else ""
        texts.append(f"{line.sign} {line.text}{colon}")
    rest = len(texts) - most
    return [*texts[:most], *([f"and {rest:,} more"] if rest > 0 else [])]


def lines(difference: CatalogDifference) -> Iterator[ChangeLine]:
    """Yield a line for each class, resource and relationship that differs."""
    for sign, names in (("-", difference.classes_removed), ("+", difference.classes_added)):
        for name in names:
            yield ChangeLine(sign=sign, text=cut(f"Class[{class_title(name)}]", MAX_TITLE))
    for change in difference.resources:
        yield ChangeLine(
            sign=SIGNS[change.action],
            text=cut(change.reference, MAX_TITLE),
            parameters=change.parameters,
        )
    for relation in difference.relationships:
        ends = [cut(name, MAX_TITLE) for name in (relation.source, relation.target)]
        yield ChangeLine(
            sign=SIGNS[relation.action],
            text=f"{ends[0]} {relation.relationship} {ends[1]}",
            is_relationship=True,
        )


def rows(line: ChangeLine, *, most: int, longest: int) -> Iterator[tuple[str, str]]:
    """Yield the rows of a diff with their signs: a line, and its parameters.

    `most` are lines of a text, `longest` characters of a value or of such a line.
    """
    yield line.sign, f"{line.sign} {line.text}"
    for change in line.parameters:
        name, texts = message(change.name), diff_lines(change, most=most, longest=longest)
        if texts:
            yield " ", f"    {name}:"
            yield from ((text[:1], text) for text in texts)
            continue
        before, after = values(change, most=longest)
        if before == after:
            yield "~", f"~   {name} => {after}"
            continue
        if change.before is not None:
            yield "-", f"-   {name} => {before}"
        if change.after is not None:
            yield "+", f"+   {name} => {after}"


def values(change: ParameterChange, *, most: int = MAX_VALUE) -> tuple[str, str]:
    """Return both values in one line, with their first difference: texts as they are."""
    first, second = _line(change.before), _line(change.after)
    if first.endswith("\n") and second.endswith("\n"):
        first, second = first[:-1], second[:-1]
    pairs = enumerate(zip(first, second, strict=False))
    start = next((at for at, (one, two) in pairs if one != two), min(len(first), len(second)))
    start = 0 if first == second else start
    if start < most - _CONTEXT:
        return cut(first, most), cut(second, most)
    start -= _CONTEXT
    return f"…{cut(first[start:], most - 1)}", f"…{cut(second[start:], most - 1)}"


def diff_lines(change: ParameterChange, *, most: int, longest: int) -> list[str]:
    """Return the lines of a text of several lines, as `cut` does; empty for other values."""
    if change.text is None:
        return []
    shown = [cut(line, longest) for line in change.text.split("\n")]
    rest = len(shown) - most
    return shown if rest <= 1 else [*shown[:most], f"… {rest:,} more lines"]


def count(number: int, noun: str) -> str:
    """Return `1 node`, `1,204 nodes`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def verb(number: int, plural: str) -> str:
    """Return the verb for a number: `changes` for one, `change` for several."""
    singular = "has" if plural == "have" else f"{plural}s"
    return singular if number == 1 else plural


def message(text: str) -> str:
    """Return the first `MAX_MESSAGE` characters of a text, as `cut` does."""
    return cut(text, MAX_MESSAGE)


def cut(text: str, most: int) -> str:
    """Return the first characters of a text as one line, and how many others it has.

    Blanks at the end of what is shown may hide what comes after it.
    """
    rest = f"… {count(len(text) - most, 'more character')}" if len(text) > most else ""
    return f"{visible(text[:most])}{rest}"


def _line(parameter: Json) -> str:
    if parameter is None:
        return NOT_SET
    plain = _plain(parameter)
    return (
        plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, sort_keys=True)
    )


def _plain(parameter: Json) -> Json:
    """Return a value without placeholders of values that are hidden: `(sensitive)`."""
    if isinstance(parameter, list):
        return [_plain(item) for item in parameter]
    if not isinstance(parameter, dict):
        return parameter
    if isinstance(kind := parameter.get(TYPE_KEY), str):
        return f"({cut(kind, 40).lower()})"
    return {key: _plain(item) for key, item in parameter.items()}
