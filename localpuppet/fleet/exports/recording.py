"""`exports.json` and `collected.json` of a run: what its catalog offers, and what it took.

Owns: the two files (schema version 1). Refuses to know: what is done with them.

- What a catalog exports is written down while it is compiled, before anything is applied; whether
  it is published, the end of the run decides.
- What a collector got does not count as given before it is on the disk. A collector that asks again
  in the same run stands there once, with its newest answer.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.files import state_problem, write_json
from localpuppet.fleet.exports.choosing import CollectorResult, RejectedResource, TakenResource
from localpuppet.fleet.exports.document import SCHEMA, pack, parse_resources, read
from localpuppet.fleet.exports.resource import ExportedResource
from localpuppet.fleet.exports.search import show
from localpuppet.fleet.exports.servers import servers_of
from localpuppet.fleet.inventory.query.parts import Parts, parts_of
from localpuppet.node.runs.listed import read_listed, write_listed
from localpuppet.node.runs.records import RunDirectory

# Below a run's public directory: where the catalog terminus leaves what the catalog exports.
LEFT = "exports.json"
MAX_COLLECTORS = 256
# What a collector is called among the questions of a node's entry, and how long one may be there.
COLLECT = "collect"
MAX_ASKED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedResource:
    """A resource that a collector took.

    Attributes:
        node: Who exports it.
        ref: Its type and title.
        how: `guarded` or `as-is`.
        dropped: Parameters that did not count.
    """

    node: str
    ref: str
    how: str
    dropped: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorRecord:
    """A collector and what it got.

    Attributes:
        type: The type.
        filter: Its condition, as Puppet has it.
        at: When, ISO 8601, UTC.
        digest: Of what was taken; `None` where it could not be asked, or was refused.
        revision: The revision of the bus that the answer is from; `None` where there is none.
        age: For how many seconds nobody had said that the answer was current.
        resources: What was taken.
        parts: What was taken of which node: reference → a short digest.
        left_out: What was asked for and not taken; the first of it.
        more_left_out: How many others were not.
        reason: Why there is no answer; empty where there is one.
    """

    type: str
    filter: Json
    at: str
    digest: str | None = None
    revision: int | None = None
    age: float | None = None
    resources: tuple[CollectedResource, ...] = ()
    parts: Parts = field(default_factory=dict)
    left_out: tuple[RejectedResource, ...] = ()
    more_left_out: int = 0
    reason: str = ""

    @property
    def text(self) -> str:
        """Return the collector as one would write it."""
        return collector_text(self.type, self.filter)

    @property
    def question(self) -> str:
        """Return the collector as a node's entry has it: `collect("Sshkey", null)`.

        A long condition is left out: others hear of the whole type then.
        """
        asked = f"{COLLECT}({json.dumps(self.type)}, {json.dumps(self.filter)})"
        return asked if len(asked) <= MAX_ASKED else f"{COLLECT}({json.dumps(self.type)}, null)"

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return of whom something was taken, sorted."""
        return tuple(sorted({one.node for one in self.resources}))

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "CollectorRecord":
        """Return the collector in our own JSON.

        Raises:
            StateError: A field is missing.
        """
        try:
            return cls(
                **{key: raw[key] for key in ("type", "filter", "at", "digest", "reason")},
                **{key: raw[key] for key in ("revision", "age")},
                resources=tuple(
                    CollectedResource(**{**one, "dropped": tuple(one["dropped"])})
                    for one in raw["resources"]
                ),
                parts={node: dict(about) for node, about in raw["parts"].items()},
                left_out=tuple(RejectedResource(**one) for one in raw["left_out"]),
                more_left_out=raw.get("more_left_out", 0),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise StateError(f"is damaged: a collector without {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**asdict(self), "text": self.text}


def collector_text(kind: str, condition: Json) -> str:
    """Return a collector as one would write it: `File <<| tag == 'web' |>>`."""
    return f"{kind} <<| {show(condition)} |>>".replace("<<|  |>>", "<<| |>>")


def taken_refs(taken: Sequence[TakenResource]) -> tuple[CollectedResource, ...]:
    """Return what a record says of resources that were taken."""
    return tuple(
        CollectedResource(
            node=one.node, ref=one.resource.ref, how=str(one.how), dropped=one.dropped
        )
        for one in taken
    )


def answered(asked: CollectorRecord, choice: CollectorResult) -> CollectorRecord:
    """Return a collector with what it got."""
    return replace(
        asked,
        digest=digest_of_choice(choice),
        resources=taken_refs(choice.taken),
        parts=parts_of_choice(choice),
        left_out=choice.left_out,
        more_left_out=choice.more_left_out,
        reason="",
    )


def digest_of_choice(choice: CollectorResult) -> str:
    """Return the digest of what a collector got: nodes, titles, parameters."""
    said = [[one.node, one.resource.title, dict(one.resource.parameters)] for one in choice.taken]
    canonical = json.dumps(said, sort_keys=True, separators=(",", ":")).encode("ascii")
    return hashlib.sha256(canonical).hexdigest()


def parts_of_choice(choice: CollectorResult) -> dict[str, dict[str, str]]:
    """Return what was taken of which node, so that two answers can be told apart node by node."""
    told = ((one.node, {one.resource.ref: dict(one.resource.parameters)}) for one in choice.taken)
    return parts_of(sorted({one.node for one in choice.taken}), told)


def read_collected(run: RunDirectory) -> list[CollectorRecord]:
    """Return what a run collected, in order.

    Raises:
        StateError: The file is damaged, or cannot be read.
    """
    return read_listed(run.collected, "collectors", CollectorRecord.from_dict)


def note_collected(run: RunDirectory, collected: CollectorRecord) -> None:
    """Write down what a collector of a run got.

    Raises:
        InvalidInputError: The run has too many collectors.
    """
    before = [one for one in read_collected(run) if one.text != collected.text]
    if len(before) >= MAX_COLLECTORS:
        raise InvalidInputError(
            f"the catalog has more than {MAX_COLLECTORS} different collectors",
            where=collected.text[:80],
        )
    write_listed(run.collected, "collectors", [*before, collected])


def note_exports(run: RunDirectory) -> int:
    """Write down what the catalog of a run exports, as its terminus left it; return how many.

    Raises:
        InvalidInputError: A resource cannot be exported, or they are too many or too large.
    """
    path = run.public / LEFT
    try:
        data = path.read_bytes()
    except OSError as error:
        raise state_problem(error, path) from error
    resources = read(data)
    # Whoever exports must hear at once of what nobody would take.
    pack(resources)
    servers_of(resources)
    write_json(_exports(run), {"schema": SCHEMA, "resources": [one.to_dict() for one in resources]})
    return len(resources)


def read_exports(run: RunDirectory) -> tuple[ExportedResource, ...]:
    """Return what the catalog of a run exports.

    Raises:
        StateError: The file is damaged, or cannot be read.
    """
    path = _exports(run)
    try:
        raw = read_json(path)
    except FileNotFoundError:
        return ()
    try:
        return parse_resources(Fields(raw, where=str(path)))
    except InvalidInputError as error:
        raise StateError(f"is damaged: {error}", where=str(path)) from error


def _exports(run: RunDirectory) -> Path:
    return run.path / "exports.json"
