"""The report of a run as a node told it: its own words, and so read with care.

Owns: the shape that a view may rely on, and how much of it is shown. Refuses to know: who asked.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from localpuppet.errors import InvalidInputError
from localpuppet.formats.values import Json
from localpuppet.puppet.resources import Fate

MOST = 200
MAX_MESSAGES = 20
TITLES = {
    Fate.FAILED: "Failed",
    Fate.CHANGED: "Changed",
    Fate.WOULD_CHANGE: "Would change",
    Fate.SKIPPED: "Skipped",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """What became of a resource.

    Attributes:
        ref: Type and title.
        place: Where it is declared; empty if unknown.
        seconds: How long it took; `None` if unknown.
        messages: What Puppet said.
    """

    ref: str
    place: str
    seconds: float | None
    messages: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The resources of one fate.

    Attributes:
        name: A word for it.
        title: What became of them.
        resources: At most `MOST`.
        more: How many there are beside them.
    """

    name: str
    title: str
    resources: tuple[Resource, ...]
    more: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a run did.

    Attributes:
        there: Whether Puppet left a report.
        parts: By fate; those of none left out.
        left_out: How many resources the node had no room for.
    """

    there: bool
    parts: tuple[Part, ...]
    left_out: int

    @classmethod
    def read(cls, told: Mapping[str, Json]) -> "Report":
        """Return the report in an answer, see `runs.telling.told_report`.

        Raises:
            InvalidInputError: It is not one.
        """
        left_out = told.get("left_out", 0)
        parts = []
        for fate, title in TITLES.items():
            listed = told.get(fate.value, [])
            if not isinstance(listed, list):
                raise _bad(fate.value)
            if listed:
                shown = tuple(_resource(one) for one in listed[:MOST])
                more = len(listed) - len(shown)
                parts.append(Part(name=fate.value, title=title, resources=shown, more=more))
        return cls(
            there=told.get("report") is True,
            parts=tuple(parts),
            left_out=left_out if isinstance(left_out, int) else 0,
        )


def _resource(told: Json) -> Resource:
    if not isinstance(told, dict) or not isinstance(told.get("ref"), str):
        raise _bad("a resource")
    file, line, seconds = told.get("file"), told.get("line"), told.get("seconds")
    events = told.get("events")
    events = events if isinstance(events, list) else []
    place = file if isinstance(file, str) else ""
    known = isinstance(seconds, int | float) and math.isfinite(seconds)
    return Resource(
        ref=str(told["ref"]),
        place=f"{place}:{line}" if place and isinstance(line, int) else place,
        seconds=float(seconds) if known and isinstance(seconds, int | float) else None,
        messages=tuple(
            str(event["message"])
            for event in events[:MAX_MESSAGES]
            if isinstance(event, dict) and isinstance(event.get("message"), str)
        ),
    )


def _bad(place: str) -> InvalidInputError:
    return InvalidInputError("is not what a report has", where=f"the node's answer: {place}")
