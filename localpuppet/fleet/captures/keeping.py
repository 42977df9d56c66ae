"""The capture of the last good run: what it may contain, kept and sent on request.

- Facts that `inventory.hide` matches are left out. All others are in it, whatever `inventory.facts`
  selects: a catalog may depend on any.
- Facts from the cloud's instance data become placeholders, except the role, the instance's id and
  what `capture.show` matches: user data often holds secrets.
- Values become placeholders if their name matches `capture.withhold` or the default patterns, and
  not `capture.show`. The same names count for facts, the input, the site's ENC, and the arguments
  and answers of queries, at any depth. Names of nodes are no such names.

The rules apply when the capture is stored, and again when it is sent: a stricter setting counts at
once.

- `captures/last.json` in the state directory has the capture, private and without the values that
  the rules withhold. It is replaced whole.
- If the capture of a good run cannot be made, the file has the reason. An older capture is never
  presented as that of the last good run.
"""

import zlib
from collections.abc import Collection, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, StateError
from localpuppet.base.formats.json_file import read_record
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.records import JsonRecord
from localpuppet.base.formats.schema_number import damage_errors
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import show_epoch
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.files import make_private, write_json
from localpuppet.base.value import Value
from localpuppet.fleet.captures.answers import read_answers
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.facts import FactSelection
from localpuppet.node.enc.document import EncData
from localpuppet.node.enc.instance.facts import INSTANCE_ID, withheld
from localpuppet.node.preview.capture import (
    NodeCapture,
    WithheldKeys,
    matches,
    withhold,
    withhold_all,
)
from localpuppet.node.preview.ports import CapturedQuery
from localpuppet.node.runs.records import RunDirectory

if TYPE_CHECKING:
    from localpuppet.fleet.requests.arguments import ChunkArguments


# Their answers have the names of nodes as keys.
_BY_NODE = ("query_facts", "query_resources")


class CaptureRules(Value):
    """What a capture contains.

    Attributes:
        selection: The site's patterns for facts.
        keys: The names whose values are withheld.
    """

    selection: FactSelection
    keys: WithheldKeys

    def of(self, capture: NodeCapture, *, instance_facts: Collection[str]) -> NodeCapture:
        """Return a capture with what may leave the node.

        Args:
            capture: The capture.
            instance_facts: The names of the facts that the cloud's instance data gave to the run.
        """
        cloud = {
            name
            for name in withheld(instance_facts)
            if name != INSTANCE_ID and not matches(name, self.keys.shown)
        }
        data = capture.data
        return replace(
            capture,
            facts={
                name: withhold_all(value) if name in cloud else value
                for name, value in self._withhold(
                    self.selection.without_hidden(capture.facts)
                ).items()
            },
            trusted=self._withhold(capture.trusted),
            data=replace(
                data,
                classes={name: self._withhold(body) for name, body in data.classes.items()},
                parameters=self._withhold(data.parameters),
            ),
            queries=tuple(
                replace(
                    query,
                    arguments=tuple(withhold(value, self.keys) for value in query.arguments),
                    answer=self._answer(query),
                )
                for query in capture.queries
            ),
        )

    def _withhold(self, values: Mapping[str, Json]) -> dict[str, Json]:
        kept = withhold({**values}, self.keys)
        return kept if isinstance(kept, dict) else {}

    def _answer(self, query: CapturedQuery) -> Json:
        if query.function in _BY_NODE and isinstance(query.answer, dict):
            return {node: withhold(item, self.keys) for node, item in query.answer.items()}
        return withhold(query.answer, self.keys)


SCHEMA = 1
MAX_PACKED = 4 * 1024 * 1024


class StoredCapture(JsonRecord):
    """`captures/last.json`.

    Attributes:
        node: The node.
        run: The run.
        problem: Why there is no capture of it, in one line; otherwise empty.
        instance_facts: The facts that the cloud's instance data gave to the run.
        capture: The capture in its JSON form; empty with a problem.
    """

    SCHEMA: ClassVar = SCHEMA
    node: NodeName
    run: str
    problem: str = ""
    instance_facts: tuple[str, ...] = ()
    capture: dict[str, Any] = field(default_factory=dict)


class CaptureKeeper:
    """The capture of this node's last good run.

    Args:
        state: The state directory.
        rules: What a capture contains.
    """

    def __init__(self, state: Path, rules: CaptureRules) -> None:
        self._file = state / "captures" / "last.json"
        self._rules = rules

    def keep(self, run: RunDirectory, published: InventoryEntry) -> str:
        """Keep the capture of a good run; return why it cannot be kept, or an empty text.

        Args:
            run: The run.
            published: Its entry with all facts.

        Raises:
            StateError: The disk refused.
        """
        node, request = published.node, run.read_request()
        cloud = tuple(request.get("instance_facts") or ())
        stored = StoredCapture(node=node, run=run.id, instance_facts=cloud)
        try:
            with damage_errors(str(run.request)):
                layers, data = tuple(request["layers"]), EncData.from_dict(request["data"])
            capture = NodeCapture(
                node=node,
                facts=published.facts,
                layers=layers,
                data=data,
                queries=read_answers(run),
                captured=show_epoch(published.at),
                release=published.release or "",
            )
            capture = self._rules.of(capture, instance_facts=cloud)
            _packed(capture)
            stored = replace(stored, capture=capture.to_dict())
        except (InvalidInputError, StateError) as error:
            stored = replace(stored, problem=one_line(str(error)))
        make_private(self._file.parent)
        write_json(self._file, stored.to_dict())
        return stored.problem

    def read(self) -> tuple[str, NodeCapture]:
        """Return the last good run and its capture, as the rules are now.

        Raises:
            StateError: There is no capture of it.
        """
        stored = self._stored()
        if stored.problem:
            raise StateError(f"has no capture: {stored.problem}", where=f"run {stored.run}")
        try:
            capture = NodeCapture.from_dict(stored.capture, node=stored.node, where="capture")
        except LocalpuppetError as error:
            raise StateError(f"is damaged: {error}", where=str(self._file)) from error
        return stored.run, self._rules.of(capture, instance_facts=stored.instance_facts)

    def reply(self, args: "ChunkArguments") -> dict[str, Json]:
        """Return the result of a request: the header and one chunk in base64.

        Raises:
            LocalpuppetError: There is no capture, or another one than the caller began with.
        """
        from localpuppet.fleet.inventory.chunks import digest_of
        from localpuppet.fleet.requests.client import reply_chunk

        run, capture = self.read()
        data = _packed(capture)
        header: dict[str, Json] = {
            "run": run,
            "release": capture.release,
            "captured": capture.captured,
            "digest": digest_of(data),
            "size": len(data),
        }
        return reply_chunk("capture", header, data, args)

    def _stored(self) -> StoredCapture:
        stored = read_record(self._file, StoredCapture.from_dict)
        if stored is None:
            raise StateError(
                "keeps no capture yet",
                where="this node",
                hint="the next good, whole run keeps one: 'localpuppet apply'",
            )
        return stored


def _packed(capture: NodeCapture) -> bytes:
    data = zlib.compress(capture.to_bytes())
    if len(data) > MAX_PACKED:
        raise InvalidInputError(
            f"the capture is too large: {len(data)} bytes packed, the limit is {MAX_PACKED}"
        )
    return data
