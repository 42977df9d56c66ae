"""Captures of nodes for a preview: kept after a good run, sent on request, collected in files.

- Each line is a call: `function`, `arguments`, `answer`. If it repeats, its last answer counts.
- An answer above a limit is not kept. A preview then reports that the capture has no answer.
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
- A file is replaced whole, or not at all. A capture that did not change leaves its file alone.
- A node that does not answer, refuses or sends something invalid leaves its earlier file, and is
  reported. The captures of the other nodes are collected.
"""

import os
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, StateError, check_limit
from localpuppet.base.formats.converter import JsonRecord
from localpuppet.base.formats.json_file import read_record
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.packed import unpacked
from localpuppet.base.formats.schema_number import damage_errors
from localpuppet.base.formats.strict_json import compact, loads, members
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import show_epoch
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.files import disk_errors, make_private, remove, write_json
from localpuppet.base.value import Value
from localpuppet.fleet.bus.bus_limits import MAX_PACKED_CAPTURE
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.facts import FactSelection
from localpuppet.node.enc.document import EncData
from localpuppet.node.enc.instance_facts import INSTANCE_ID, withheld
from localpuppet.node.preview.compile_request import CapturedQuery
from localpuppet.node.preview.node_capture import (
    NodeCapture,
    WithheldKeys,
    matching,
    withhold,
    withhold_all,
)
from localpuppet.node.preview.preview_limits import MAX_CAPTURE, MAX_CAPTURE_QUERIES
from localpuppet.node.runs.run_records import RunDirectory

if TYPE_CHECKING:
    from localpuppet.fleet.requests.request import ChunkArguments
    from localpuppet.fleet.requests.request_client import RequestClient


MAX_ANSWER = 1024 * 1024
MAX_ANSWERS = 4 * 1024 * 1024


def note_answer(
    run: RunDirectory,
    function: str,
    arguments: Sequence[Json],
    answer: object,
    *,
    limit: int = MAX_ANSWERS,
) -> None:
    """Add an answer to the record of a run.

    Args:
        function: The function; see `CapturedQuery`.
        answer: The answer; a `JsonText` is written unchanged.
    """
    call = {"function": function, "arguments": list(arguments), "answer": answer}
    line = members(call, end="\n").encode()
    path = _file(run)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with disk_errors(path), os.fdopen(os.open(path, flags, 0o600), "ab") as file:
        # One write: the agent and a command may both answer.
        if len(line) <= MAX_ANSWER and file.tell() + len(line) <= limit:
            file.write(line)


def read_answers(run: RunDirectory) -> tuple[CapturedQuery, ...]:
    """Return the answers that a run got; raise `StateError` if the file is damaged."""
    path = _file(run)
    if not path.exists():
        return ()
    answers: dict[str, CapturedQuery] = {}
    try:
        with disk_errors(path):
            lines = path.read_bytes().splitlines()
        for raw in map(loads, lines):
            query = CapturedQuery(
                function=raw["function"],
                arguments=tuple(raw["arguments"]),
                answer=raw["answer"],
            )
            answers[compact([query.function, query.arguments])] = query
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"is damaged: {error}", where=str(path)) from error
    return tuple(answers.values())[:MAX_CAPTURE_QUERIES]


def remove_answers(run: RunDirectory) -> None:
    """Remove the answers: the capture has them, or the run failed."""
    if (path := _file(run)).exists():
        remove(path)


def _file(run: RunDirectory) -> Path:
    return run.path / "answers.jsonl"


# Their answers have the names of nodes as keys.
_BY_NODE = ("query_facts", "query_resources")


class CaptureRules(Value):
    """What a capture contains."""

    selection: FactSelection
    keys: WithheldKeys

    def of(self, capture: NodeCapture, *, instance_facts: Collection[str]) -> NodeCapture:
        """Return a capture with what may leave the node."""
        cloud = {name for name in withheld(instance_facts) if name != INSTANCE_ID}
        cloud -= matching(cloud, self.keys.shown)
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


class StoredCapture(JsonRecord):
    """`captures/last.json`; with a problem, which is one line, the capture is empty."""

    SCHEMA: ClassVar = SCHEMA
    node: NodeName
    run: str
    problem: str = ""
    instance_facts: tuple[str, ...] = ()
    capture: dict[str, Any] = field(default_factory=dict)


class CaptureKeeper:
    """The capture of this node's last good run."""

    def __init__(self, state: Path, rules: CaptureRules) -> None:
        self._file = state / "captures" / "last.json"
        self._rules = rules

    def keep(self, run: RunDirectory, published: InventoryEntry) -> str:
        """Keep the capture of a good run; return why it cannot be kept, or an empty text."""
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
        """Return the last good run and its capture, as the rules are now."""
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
        from localpuppet.fleet.requests.request_client import reply_chunk

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
    what = "the capture is too large"
    check_limit(len(data), MAX_PACKED_CAPTURE, what=what, unit="bytes packed")
    return data


# Nodes that are asked at once, and captures that are unpacked at once: a packed one has at most
# `MAX_PACKED_CAPTURE` bytes, an unpacked one `preview_limits.MAX_CAPTURE`.
AT_ONCE, UNPACKED = 64, 2


async def ask_capture(client: "RequestClient", node: NodeName, *, patience: float) -> bytes:
    """Return the packed capture of a node; `read_capture` reads it."""
    from localpuppet.fleet.requests.request_client import request_chunks

    reply = await request_chunks(
        client, node, "capture", most=MAX_PACKED_CAPTURE, patience=patience
    )
    return reply.data


def read_capture(node: NodeName, packed: bytes) -> NodeCapture:
    """Return the capture that a node sent; raise `UnavailableError` if it is invalid."""
    from localpuppet.fleet.requests.request_client import invalid_reply

    try:
        return NodeCapture.parse(unpacked(packed, most=MAX_CAPTURE), node=node, where="JSON")
    except (InvalidInputError, ValueError) as error:
        raise invalid_reply(node, "capture", f"sent an invalid capture: {error}") from error


async def collect_captures(
    client: "RequestClient",
    nodes: Sequence[NodeName],
    directory: Path,
    *,
    patience: float,
    progress: Callable[[NodeName, str], None],
) -> dict[NodeName, str]:
    """Write the capture of each node to `NODE.json`; return the nodes without one, with reasons.

    Args:
        directory: The directory; it is made if it does not exist.
        progress: Called after each node with the reason why it has no capture, or an empty text.
    """
    import asyncio

    make_private(directory)
    slots, unpacking = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(UNPACKED)
    problems: dict[NodeName, str] = {}

    async def collect(node: NodeName) -> None:
        problem = ""
        try:
            async with slots:
                packed = await ask_capture(client, node, patience=patience)
                async with unpacking:
                    await asyncio.to_thread(_write, directory, node, packed)
        except LocalpuppetError as error:
            problem = problems[node] = str(error)
        progress(node, problem)

    async with client.together():
        await asyncio.gather(*map(collect, nodes))
    return {node: problems[node] for node in nodes if node in problems}


def _write(directory: Path, node: NodeName, packed: bytes) -> None:
    from localpuppet.node.preview.nodes_directory import write_capture

    # Written again in localpuppet's own form: no byte of the file is the node's choice but values.
    write_capture(directory, read_capture(node, packed))
