"""Checks a history of triggers against the guarantees of docs/explanation/triggers.md.

A history is a list of events, which are dictionaries, in the order of their times. Simulated fleets
make one, and so do real agents whose logs and records a test reads. Every event has `at` (a number
that never decreases on a node), `node` and `what`:

| what | and | |
|---|---|---|
| accepted | id, path, [expires] | a cause is in the node's inbox; `path` is `[]` for an origin |
| taken | causes | the agent decides to start a run for these; optional |
| started | run, causes | a run starts; `causes` is a list of ids, or `None` if unknown |
| sent | run, to, path, [id, late] | a trigger leaves; `run` is `None` if a person sent it, `path`
if unknown; `late`: its receiver may be unreachable until the trigger expires |
| refused | id | a log line: the node refused a trigger |
| ended | run | that run has ended, with any result |
| dropped | id, reason, [clock] | the only log line about a cause that leads to no run; `clock`, if
it expired, is the node's time then, to compare with `expires` |
| killed | | the agent ended; its run may continue |

An `id` is unique for its node only. The checker ignores events of other kinds.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MAX_NODES = 9  # in a path: eight hops

Event = Mapping[str, Any]


def check(events: Iterable[Event], *, settled: bool = True) -> list[str]:
    """Return the violated guarantees, one line each."""
    by_node: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_node[event["node"]].append(event)
    problems = []
    for node, own in sorted(by_node.items()):
        ordered = sorted(own, key=lambda event: event["at"])  # stable
        problems += [f"{node}: {line}" for line in _Node(settled=settled).read(ordered)]
    return problems


def check_arrivals(events: Iterable[Event]) -> list[str]:
    """Return the sent triggers that no receiver accepted or refused, one line each.

    The bus keeps one trigger of a sender for a receiver, so that the acceptance or refusal of a
    later trigger counts for those before it.
    """
    answered: set[tuple[str, str]] = set()
    sent: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in events:
        if event["what"] in ("accepted", "refused"):
            answered.add((event["node"], event["id"]))
        elif event["what"] == "sent" and "id" in event:
            sent[event["node"], event["to"]].append(event)
    problems = []
    for (node, to), messages in sorted(sent.items()):
        served = False
        for message in sorted(messages, key=lambda event: event["at"], reverse=True):
            served = served or (to, message["id"]) in answered
            if not served and not message.get("late"):
                problems.append(f"{to}: {message['id']}, sent by {node}, was lost on the way")
    return problems


class _Node:
    """Reads the events of one node."""

    def __init__(self, *, settled: bool) -> None:
        self._settled = settled
        self._problems: list[str] = []
        self._paths: dict[str, tuple[str, ...]] = {}
        self._expires: dict[str, int | None] = {}
        self._open: set[str] = set()  # active runs
        self._run_paths: dict[str, set[tuple[str, ...]] | None] = {}
        self._starts: Counter[str] = Counter()
        self._drops: Counter[str] = Counter()
        # Kills since a cause was accepted: each allows one repetition.
        self._kills: Counter[str] = Counter()
        self._unserved: set[str] = set()

    def read(self, events: Sequence[Event]) -> list[str]:
        """Return the guarantees that they violate."""
        for event in events:
            handler = getattr(self, f"_on_{event['what']}", None)
            if handler is not None:
                handler(event)
        if self._settled:
            self._problems += [f"{cause} was lost: no run, no drop" for cause in self._unserved]
            self._problems += [f"run {run} never ended" for run in self._open]
        return self._problems

    def _on_accepted(self, event: Event) -> None:
        cause = event["id"]
        if cause in self._paths:
            self._problems.append(f"{cause} was accepted twice")
        self._paths[cause] = tuple(event["path"])
        self._expires[cause] = event.get("expires")
        self._unserved.add(cause)

    def _on_started(self, event: Event) -> None:
        run, causes = event["run"], event["causes"]
        if self._open:
            self._problems.append(f"run {run} started while {min(self._open)} was on")
        self._open.add(run)
        if causes is None:
            self._unserved.clear()
            self._run_paths[run] = None
            return
        if not causes:
            self._problems.append(f"run {run} has no cause")
        for cause in causes:
            self._serve(run, cause)
        self._run_paths[run] = {self._paths.get(cause, ()) for cause in causes}

    def _on_taken(self, event: Event) -> None:
        left = self._unserved - set(event["causes"])
        self._problems += [f"{cause} was left behind: two runs wait" for cause in sorted(left)]

    def _serve(self, run: str, cause: str) -> None:
        if cause not in self._paths:
            self._problems.append(f"run {run} has the cause {cause}, which was not accepted")
        self._unserved.discard(cause)
        self._starts[cause] += 1
        self._judge_repetition(cause)

    def _on_dropped(self, event: Event) -> None:
        cause = event["id"]
        if cause not in self._paths:
            self._problems.append(f"{cause} was dropped, but never accepted")
        if not event["reason"] or "\n" in event["reason"]:
            self._problems.append(f"{cause} was dropped without a reason in one line")
        expires = self._expires.get(cause)
        if "clock" in event and expires is not None and event["clock"] <= expires:
            self._problems.append(f"{cause} was dropped before its time")
        self._unserved.discard(cause)
        self._drops[cause] += 1
        self._judge_repetition(cause)

    def _judge_repetition(self, cause: str) -> None:
        settled = self._starts[cause] + self._drops[cause]
        if settled > 1 + self._kills[cause]:
            self._problems.append(
                f"{cause} was settled {settled} times ({self._starts[cause]} runs, "
                f"{self._drops[cause]} drops) with {self._kills[cause]} kills"
            )

    def _on_ended(self, event: Event) -> None:
        if event["run"] not in self._open:
            self._problems.append(f"run {event['run']} ended without being on")
        self._open.discard(event["run"])

    def _on_killed(self, _event: Event) -> None:
        for cause in self._paths:
            self._kills[cause] += 1

    def _on_sent(self, event: Event) -> None:
        """Check one message: by these rules a chain has at most eight hops, and no mix adds one."""
        if event["path"] is None:
            return
        node, run, to, path = event["node"], event["run"], event["to"], tuple(event["path"])
        if not path or path[-1] != node:
            self._problems.append(f"sent a trigger whose path ends elsewhere: {path}")
        if len(path) > MAX_NODES:
            self._problems.append(f"sent a trigger with {len(path) - 1} hops")
        if to in path or len(set(path)) != len(path):
            self._problems.append(f"sent a trigger to {to} along {path}: a loop")
        causes = {()} if run is None else self._run_paths.get(run, set())
        if causes is not None and path[:-1] not in causes:
            self._problems.append(f"sent a trigger along {path}, which no cause of {run} came")
