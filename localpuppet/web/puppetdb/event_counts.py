"""Event counts: the events that a query selects, counted by subject.

A subject is a node, a resource or the innermost class that contains a resource.

- A query of events that counts them by subject and status comes first; a source can do that without
  reading events. This module makes the answer of its groups.
- With `count_by=certname`, a node counts once for each subject and status.

Example: `counting.select(where)` is the query, and `counting.shape(rows)` its answer.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import eq
from typing import Any

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.strict_json import compact, loads_again
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query import tree
from localpuppet.fleet.inventory.query.syntax import check_values, parse_json

_SUBJECTS = {
    "certname": {"title": "certname"},
    "containing_class": {"title": "containing_class"},
    "resource": {"type": "resource_type", "title": "resource_title"},
}
_COUNTED = {"failure": "failures", "success": "successes", "noop": "noops", "skipped": "skips"}
_OPERATORS = {"=": eq, **{operator.value: test for operator, test in tree.ORDERS.items()}}
_Counts = Mapping[str, int]
_Holds = Callable[[_Counts], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCounting:
    by: Sequence[str]  # what is counted, a key of `_SUBJECTS`; several only in an aggregate
    nodes: bool = False
    aggregate: bool = False  # whether the answer has the number of subjects instead of the subjects
    holds: _Holds = field(default=lambda _: True)
    page: tree.Select = field(default_factory=lambda: tree.Select(entity=tree.Entity.EVENT_COUNTS))

    @classmethod
    def parse(cls, parameters: Mapping[str, Json], page: tree.Select) -> "EventCounting":
        """Return what `summarize_by`, `count_by` and `counts_filter` of a request ask for."""
        aggregate = page.entity is tree.Entity.AGGREGATE_EVENT_COUNTS
        by = parameters.get("summarize_by")
        names = by.split(",") if isinstance(by, str) and aggregate else [by]
        for name in names:
            if name not in _SUBJECTS:
                raise InvalidInputError(f"Unsupported value for 'summarize_by': '{name}'")
        count_by = parameters.get("count_by", "resource")
        if count_by not in ("resource", "certname"):
            raise InvalidInputError(f"Unsupported value for 'count_by': '{count_by}'")
        return cls(
            by=[str(name) for name in names],
            nodes=count_by == "certname",
            aggregate=aggregate,
            holds=_filter(parameters.get("counts_filter")),
            page=page,
        )

    def select(self, where: tree.Condition) -> tree.Select:
        """Return the query of events that has the numbers."""
        names = {"status": None, **({"certname": None} if self.nodes else {})}
        for subject in self.by:
            names |= dict.fromkeys(_SUBJECTS[subject].values())
        columns = tuple(tree.Field(column=name, text=name) for name in names)
        count = tree.Aggregate(function=tree.AggregateFunction.COUNT, field=None)
        return tree.Select(
            entity=tree.Entity.EVENTS, where=where, columns=(*columns, count), group_by=columns
        )

    def shape(self, rows: Iterator[str]) -> Iterator[str]:
        """Yield the rows of the answer from those of `select`, as JSON texts."""
        groups = [loads_again(text.encode()) for text in rows]
        if self.aggregate:
            yield from (compact(self._aggregated(subject, groups)) for subject in self.by)
            return
        answer = self._counted(self.by[0], groups)
        for order in reversed(self.page.order):
            key = partial(_sort_key, order.field.column)
            answer.sort(key=key, reverse=order.descending)
        first, limit = self.page.offset, self.page.limit
        yield from map(compact, answer[first : None if limit is None else first + limit])

    def _counted(self, by: str, groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Json]]:
        """Return the counts of each subject, in the order of the subjects."""
        counts: dict[tuple[str, ...], Counter[str]] = {}
        seen = set()
        fields = _SUBJECTS[by]
        for group in groups:
            subject = tuple(group[name] for name in fields.values())
            once = (*subject, group.get("certname"), group["status"])
            number = group["count"]
            if self.nodes:
                number = int(once not in seen)
                seen.add(once)
            counts.setdefault(subject, Counter())[_COUNTED[group["status"]]] += number
        return [
            {
                "subject_type": by,
                "subject": dict(zip(fields, subject, strict=True)),
                **{name: counts[subject][name] for name in _COUNTED.values()},
            }
            for subject in sorted(counts, key=repr)
            if self.holds(counts[subject])
        ]

    def _aggregated(self, by: str, groups: Sequence[Mapping[str, Any]]) -> dict[str, Json]:
        rows = self._counted(by, groups)
        numbers: dict[str, Json] = {
            name: sum(row[name] != 0 for row in rows) for name in _COUNTED.values()
        }
        return {"summarize_by": by, **numbers, "total": len(rows)}


def _sort_key(column: str, row: Mapping[str, Json]) -> Any:  # noqa: ANN401 - as it sorts
    value = row[column]
    return compact(value) if isinstance(value, dict) else value


def _filter(value: Json) -> _Holds:
    """Return the condition of `counts_filter`."""
    if isinstance(value, str):
        value = parse_json(value, "counts_filter")
    if value is None:
        return lambda _: True
    check_values(value)
    return _condition(value)


def _condition(value: Json) -> _Holds:
    name, *rest = value if isinstance(value, list) and value else [None]
    if name in ("and", "or") and rest:
        parts = [_condition(item) for item in rest]
        every = all if name == "and" else any
        return lambda counts: every(part(counts) for part in parts)
    if name == "not" and len(rest) == 1:
        part = _condition(rest[0])
        return lambda counts: not part(counts)
    compared = _OPERATORS.get(name) if isinstance(name, str) else None
    if compared is None or len(rest) != 2 or rest[0] not in _COUNTED.values():
        raise InvalidInputError(
            "'counts_filter' is not valid", hint='for example [">", "failures", 0]'
        )
    counted, number = str(rest[0]), rest[1]
    if isinstance(number, str) and number.isdecimal():
        number = int(number)
    if not isinstance(number, int | float) or isinstance(number, bool):
        raise InvalidInputError(f"'counts_filter' compares {counted} with no number")
    return lambda counts: compared(counts.get(counted, 0), number)
