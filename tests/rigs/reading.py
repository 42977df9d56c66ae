"""Reads what happened on a node from its agent's log, as `simulation.history` wants it.

The log is one file a node, in the order in which things happened: the agent's own lines (with
`--debug`, so that none is left out), those of its runs (`run_script.py`), and those that a test
writes when it kills the agent.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

# What the agent writes before a line: its priority in the journal, or the time.
_HEAD = r"^(?:<\d>|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?:warning: )?)"
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_CAUSE = rf"a (?P<cause>\S+(?: from \S+)?) \((?P<uuid>{_UUID})\)(?: along (?P<way>.+))?"
_LINES = {
    "accepted": re.compile(rf"accepted {_CAUSE}"),
    "owed": re.compile(rf"still waiting for a run: {_CAUSE}"),
    "running": re.compile(r"running for "),
    "causes": re.compile(r"this run's causes: (?P<ids>.+)"),
    "dropped": re.compile(rf"dropped (?P<id>\S+/{_UUID}): (?P<reason>.+)"),
    "refused": re.compile(
        rf"dropped a trigger(?: of (?P<sender>\S+) \((?P<uuid>{_UUID})\))?: (?P<reason>.+)"
    ),
    "busy": re.compile(r"postponed the run, trying again soon: "),
    "impossible": re.compile(r"no run for "),
    "over": re.compile(r"run (?P<run>\d{8}T\S+) (?P<outcome>\w+)"),
}


class LogReader:
    """Turns the lines of one node's log into events."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._causes: list[str] = []
        self._told_taken = True
        self._accepted: set[str] = set()
        self._at = 0

    def events(self, log: str) -> Iterator[dict[str, Any]]:
        """Yield the events, each with `at`, `node` and `what`."""
        for line in log.splitlines():
            for event in self._events(re.sub(_HEAD, "", line)):
                self._at += 1
                yield {"at": self._at, "node": self._node, **event}

    def _events(self, line: str) -> Iterator[dict[str, Any]]:
        if self._causes and not self._told_taken and not line.startswith("this run's causes"):
            self._told_taken = True
            yield {"what": "taken", "causes": tuple(self._causes)}
        yield from self._read(line)

    def _read(self, line: str) -> Iterator[dict[str, Any]]:
        if line.startswith("history "):
            yield from self._told(json.loads(line.removeprefix("history ")))
            return
        for what, pattern in _LINES.items():
            match = pattern.match(line)
            if match:
                yield from self._events_of(what, match.groupdict())
                return

    def _told(self, event: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Read a line of a run or a test; the run has the causes that its agent logged last."""
        if event["what"] == "started":
            yield {**event, "causes": tuple(self._causes)}
        else:
            yield event
        if event["what"] == "started":
            self._causes = []

    def _events_of(self, what: str, fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if what in ("accepted", "owed"):
            # A cause that was stored before its agent logged it counts when the next agent logs it.
            yield from self._accept(**fields)
        elif what == "running":  # an agent before it may have been killed at this point
            self._causes = []
        elif what == "causes":
            self._causes += fields["ids"].split()
            self._told_taken = False
        elif what == "dropped":
            yield {"what": "dropped", "id": fields["id"], "reason": fields["reason"]}
        elif what == "refused" and "a duplicate" not in fields["reason"]:
            # That a message comes again is no answer to it: the first time counts.
            known = f"{fields['sender']}/{fields['uuid']}" if fields["uuid"] else ""
            way = re.search(r" is in the path (.+)$", fields["reason"])
            path = tuple(way[1].split(" -> ")) if way else None
            yield {"what": "refused", "id": known, "reason": fields["reason"], "path": path}
        elif what == "over":  # a run of localpuppet's supervisor, logged when it is over
            yield {"what": "started", "run": fields["run"], "causes": tuple(self._causes)}
            yield {"what": "ended", "run": fields["run"]}
        if what in ("busy", "over", "impossible"):
            self._causes = []

    def _accept(self, cause: str, uuid: str, way: str | None) -> Iterator[dict[str, Any]]:
        kind, _, sender = cause.partition(" from ")
        identifier = f"{sender or self._node}/{uuid}"
        if identifier in self._accepted:
            return
        self._accepted.add(identifier)
        path = tuple(way.split(" -> ")) if way else (sender,) if kind == "trigger" else ()
        yield {"what": "accepted", "id": identifier, "path": path}
