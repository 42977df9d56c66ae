"""Answer this node's collectors; record what a run exported and collected.

- The exports are recorded during compilation, before Puppet applies anything; the end of the run
  decides whether they are published.
- The result of a collector is on disk before Puppet gets it. If a collector repeats in a run, only
  its latest result is kept.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localpuppet.base.errors import InvalidInputError, StateError, UnavailableError
from localpuppet.base.formats.converter import JsonRecord
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.strict_json import canonical
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.files import disk_errors, write_json
from localpuppet.base.value import Value
from localpuppet.fleet.exports import collectors
from localpuppet.fleet.exports.resource import (
    SCHEMA,
    ExportedResource,
    aged,
    pack,
    parse_resources,
    read,
    unpack,
)
from localpuppet.fleet.inventory.chunks import ChunkOutbox
from localpuppet.fleet.inventory.entry import ExportsSummary, InventoryEntry
from localpuppet.fleet.inventory.query.parts import Parts, parts_of
from localpuppet.fleet.trust.policy import read_policy_file
from localpuppet.node.runs.query_record import read_listed, write_listed
from localpuppet.node.runs.run_records import RunDirectory

if TYPE_CHECKING:
    from localpuppet.fleet.exports.held import HeldExports


# File in a run's public directory to which the catalog terminus writes the exports.
LEFT = "exports.json"
MAX_COLLECTORS = 256
# Function name of a collector among the queries of an entry, and the maximum length of one.
COLLECT = "collect"
MAX_ASKED = 1000


class CollectedResource(Value):
    """A resource that a collector took."""

    node: str
    resource: str
    how: str
    dropped: tuple[str, ...]


class CollectorRecord(JsonRecord):
    """A collector of a run and its result.

    Attributes:
        filter: Its condition in Puppet's JSON form; see `Search.parse`.
        parts: Short digests of the taken resources by node and reference.
        left_out: The first `MAX_LEFT_OUT` matching resources that it left out.
        more_left_out: The number of further resources left out.
    """

    type: str
    filter: Json
    at: str
    digest: str | None = None
    revision: int | None = None
    age: float | None = None
    resources: tuple[CollectedResource, ...] = ()
    parts: Parts = field(default_factory=dict)
    left_out: tuple[collectors.RejectedResource, ...] = ()
    more_left_out: int = 0
    reason: str = ""

    @property
    def text(self) -> str:
        """Return the collector in Puppet's syntax."""
        return collector_text(self.type, self.filter)

    @property
    def question(self) -> str:
        """Return the collector as a query of a node's entry: `collect("Sshkey", null)`.

        A condition that is too long is replaced by `null`, which matches the whole type.
        """
        asked = f"{COLLECT}({json.dumps(self.type)}, {json.dumps(self.filter)})"
        return asked if len(asked) <= MAX_ASKED else f"{COLLECT}({json.dumps(self.type)}, null)"

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the nodes of which it took something, sorted."""
        return tuple(sorted({resource.node for resource in self.resources}))

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "CollectorRecord":
        """Return the collector in the JSON form of `to_dict`."""
        return super().from_dict({key: raw[key] for key in raw if key != "text"})

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "text": self.text}


def collector_text(kind: str, condition: Json) -> str:
    """Return a collector in Puppet's syntax: `File <<| tag == 'web' |>>`."""
    return f"{kind} <<| {collectors.show(condition)} |>>".replace("<<|  |>>", "<<| |>>")


def answered(asked: CollectorRecord, choice: collectors.CollectorResult) -> CollectorRecord:
    return replace(
        asked,
        digest=digest_of_choice(choice),
        resources=tuple(
            CollectedResource(
                node=one.node, resource=one.resource.ref, how=str(one.how), dropped=one.dropped
            )
            for one in choice.taken
        ),
        parts=parts_of_choice(choice),
        left_out=choice.left_out,
        more_left_out=choice.more_left_out,
        reason="",
    )


def digest_of_choice(choice: collectors.CollectorResult) -> str:
    """Return the digest of a result: nodes, titles, parameters."""
    content = [
        [resource.node, resource.resource.title, dict(resource.resource.parameters)]
        for resource in choice.taken
    ]
    return hashlib.sha256(canonical(content)).hexdigest()


def parts_of_choice(choice: collectors.CollectorResult) -> dict[str, dict[str, str]]:
    """Return the short digests of taken resources by node, to compare two results node by node."""
    parameters = (
        (resource.node, {resource.resource.ref: dict(resource.resource.parameters)})
        for resource in choice.taken
    )
    return parts_of(sorted({resource.node for resource in choice.taken}), parameters)


def read_collected(run: RunDirectory) -> list[CollectorRecord]:
    """Return the collectors of a run, in order."""
    return read_listed(run.collected, "collectors", CollectorRecord.from_dict)


def note_collected(run: RunDirectory, collected: CollectorRecord) -> None:
    """Record a collector of a run; raise `InvalidInputError` above `MAX_COLLECTORS`."""
    before = [collector for collector in read_collected(run) if collector.text != collected.text]
    if len(before) >= MAX_COLLECTORS:
        raise InvalidInputError(
            f"the catalog has more than {MAX_COLLECTORS} different collectors",
            where=collected.text[:80],
        )
    write_listed(run.collected, "collectors", [*before, collected])


def note_exports(run: RunDirectory) -> int:
    """Record the exports that the catalog terminus wrote for a run; return their number."""
    path = run.public / LEFT
    with disk_errors(path):
        data = path.read_bytes()
    resources = read(data)
    # Check the limits during the run, so that the exporting node reports what readers would reject.
    pack(resources)
    collectors.servers_of(resources)
    write_json(
        _exports(run),
        {"schema": SCHEMA, "resources": [resource.to_dict() for resource in resources]},
    )
    return len(resources)


def read_exports(run: RunDirectory) -> tuple[ExportedResource, ...]:
    """Return the recorded exports of a run; empty if there is no record."""
    path = _exports(run)
    try:
        raw = read_json(path)
    except FileNotFoundError:
        return ()
    try:
        return parse_resources(raw, where=str(path))
    except InvalidInputError as error:
        raise StateError(f"is damaged: {error}", where=str(path)) from error


def _exports(run: RunDirectory) -> Path:
    return run.path / "exports.json"


MAX_WARNED = 3


def offer_exports(
    outbox: ChunkOutbox, run: RunDirectory, before: InventoryEntry | None, *, now: float
) -> tuple[ExportsSummary, tuple[ExportedResource, ...]]:
    """Store a good run's exports, for publishing; return the summary for its entry, and them."""
    resources = tuple(aged(read_exports(run), _offered(outbox, before), now=now))
    packed = pack(resources)
    if packed.count:
        outbox.write(packed.data)
    summary = ExportsSummary(
        count=packed.count, digest=packed.digest or None, size=len(packed.data)
    )
    return summary, resources


def _offered(outbox: ChunkOutbox, before: InventoryEntry | None) -> tuple[ExportedResource, ...]:
    digest = None if before is None else before.exports.digest
    if digest is None:
        return ()
    try:
        return unpack(outbox.read(digest))
    except (InvalidInputError, StateError):
        return ()  # this loses only the times of the first exports


class CollectorService:
    """Answers the collectors of this node."""

    def __init__(self, held: "HeldExports", *, me: str, policy: Path) -> None:
        self._held = held
        self._me = me
        self._policy = policy

    def collect(self, kind: str, search: collectors.Search) -> collectors.CollectorResult:
        """Return the result of a collector; see `choose`.

        If the exports of a node were never read, it raises `UnavailableError`.
        """
        policy = read_collect_policy(self._policy)
        with closing(self._held.find(kind=kind, tag=search.tag())) as offers:
            return collectors.choose(offers, kind, search, me=self._me, policy=policy)

    def again(self, before: Sequence[CollectorRecord]) -> list[CollectorRecord]:
        """Return the results that the collectors of a past run would get now.

        A collector that fails now, or had no answer then, gets a `reason` and no digest.
        """
        return [self._again(earlier) for earlier in before]

    def _again(self, before: CollectorRecord) -> CollectorRecord:
        asked = CollectorRecord(type=before.type, filter=before.filter, at=before.at)
        try:
            return answered(asked, self.collect(asked.type, collectors.Search.parse(asked.filter)))
        except (InvalidInputError, StateError, UnavailableError) as error:
            return replace(asked, reason=one_line(str(error)))

    def warnings(self, choice: collectors.CollectorResult) -> list[str]:
        """Return warnings about a result for the author of the manifest, each one line."""
        warnings = [
            f"{resource.resource} of {resource.node} is left out: {resource.reason}"
            for resource in choice.left_out[:MAX_WARNED]
        ]
        more = len(choice.left_out) - len(warnings) + choice.more_left_out
        if more:
            warnings.append(f"{more} more are left out")
        for refusal in list(self._held.refused().values())[:MAX_WARNED]:
            warnings.append(
                f"ignoring exports of {refusal.node} since its last run: {refusal.reason}"
            )
        return warnings


def read_collect_policy(path: Path) -> collectors.CollectPolicy:
    """Return this node's collect policy; without a file, one that takes only servers."""
    return read_policy_file(path, collectors.CollectPolicy.parse) or collectors.DEFAULT
