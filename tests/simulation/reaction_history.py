"""Checks a history of reactions against the guarantees of docs/explanation/reactions.md.

A history is a list of events in the order of their times; each has `at`, `time` (seconds), `node`
and `what`:

| what | and | |
|---|---|---|
| changed | question, digest | the answer to a question of the last good run changed |
| reacted | causes, waits, late | a reaction, see below; `waits`: another reaction waits already;
`late`: the agent was killed since its decision |
| line | text | the agent logs why it does not react |
| started | run | a run starts |
| answered | run, question, digest | that run gets an answer |
| ended | run, good | that run has ended |
| killed | | the agent ended |

Each cause of a reaction has its `path`, `led` (the chains that, by the entry of the path's last
node, led to that entry), and `answers`: question → digest.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from localpuppet.fleet.edges.reactions import HOUR, HOURLY

MAX_NODES = 9  # in a path

Event = Mapping[str, Any]


def check(events: Iterable[Event], *, settled: bool) -> list[str]:
    """Return the violated guarantees, one line each."""
    by_node: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_node[event["node"]].append(event)
    problems = []
    for node, own in sorted(by_node.items()):
        found = [*_paths(own), *_once(own), *_limits(own)]
        if settled:
            found += _served(own)
        problems += [f"{node}: {line}" for line in found]
    return problems


def _paths(events: Sequence[Event]) -> list[str]:
    problems = []
    for event in events:
        for cause in event["causes"] if event["what"] == "reacted" else ():
            path = tuple(cause["path"])
            if event["node"] in path or len(set(path)) != len(path) or len(path) > MAX_NODES:
                problems.append(f"a reaction along {path}: a loop")
            if path[:-1] not in [tuple(led) for led in cause["led"]]:
                problems.append(f"a reaction along {path}, which nothing came")
    return problems


def _once(events: Sequence[Event]) -> list[str]:
    """Return the answers with two reactions since the last good run, or one too many."""
    problems = []
    had: set[tuple[str, str]] = set()
    answered: set[tuple[str, str]] = set()
    for event in events:
        if event["what"] == "ended" and event["good"]:
            had.clear()
        if event["what"] == "started":
            answered.clear()
        if event["what"] == "answered":
            answered.add((event["question"], event["digest"]))
        if event["what"] == "reacted":
            answers = {pair for cause in event["causes"] for pair in cause["answers"].items()}
            problems += [f"two reactions to {pair}" for pair in answers & had]
            if answers <= answered and not event["waits"] and not event["late"]:
                problems.append(f"a reaction to the answers of the run before it: {answers}")
            had |= answers
    return problems


def _limits(events: Sequence[Event]) -> list[str]:
    times = [one["time"] for one in events if one["what"] == "reacted" and not one.get("waits")]
    killed = sum(one["what"] == "killed" for one in events)
    for index, time in enumerate(times):
        within = [other for other in times[index:] if other < time + HOUR]
        if len(within) > HOURLY + killed:
            return [f"{len(within)} reactions within an hour"]
    return []


def _served(events: Sequence[Event]) -> list[str]:
    """Return the answers whose change neither a run nor a log line followed."""
    good = [index for index, one in enumerate(events) if one["what"] == "ended" and one["good"]]
    since = good[-1] if good else 0
    first: dict[tuple[str, str], int] = {}
    last: dict[str, int] = {}
    answered: dict[str, str] = {}
    for index, event in enumerate(events):
        if event["what"] == "changed" and index > since:
            # If an answer returns, the events after its first change count.
            first.setdefault((event["question"], event["digest"]), index)
            last[event["question"]] = first[event["question"], event["digest"]]
        if event["what"] == "answered":
            answered[event["question"]] = event["digest"]
    problems = []
    for question, index in last.items():
        followed = {one["what"] for one in events[index:]}
        if events[index]["digest"] != answered.get(question) and not {"started", "line"} & followed:
            problems.append(f"nothing followed when the answer to {question} changed")
    return problems
