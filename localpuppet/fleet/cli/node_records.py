"""Shows what records hold about other nodes, for `why`, `report`, `history` and `check`."""

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from localpuppet.base.errors import IntegrityError, InvalidInputError, StateError
from localpuppet.base.formats.converter import to_record
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import show_duration
from localpuppet.base.machine.anchors import anchor_problems
from localpuppet.fleet.app import FleetApp, run
from localpuppet.fleet.bus.servers import certificate_problem
from localpuppet.fleet.cli.requests import shown, whom
from localpuppet.fleet.exports.recording import CollectorRecord, read_collect_policy
from localpuppet.fleet.exports.resource import UNREPORTED
from localpuppet.fleet.fleet_settings import FleetSettings, PeerSettings, require_server_bus
from localpuppet.fleet.history.history_follower import read_runs
from localpuppet.fleet.history.history_records import RunSummary
from localpuppet.fleet.inventory.admission import read_claims
from localpuppet.fleet.triggers.cause import AnswerChange, ChangeKind, RunCause
from localpuppet.fleet.trust.policy import read_policy
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render, render_run
from localpuppet.node.node_ports import CommandAddition

_BECAME = {
    ChangeKind.JOINED: "is in the answer now",
    ChangeKind.LEFT: "is no longer in the answer",
    ChangeKind.CHANGED: "has other data in the answer now",
    ChangeKind.ELSEWHERE: "is not in the answer; its published data changed",
}


def changes(request: Mapping[str, Any]) -> str:
    """Return the nodes whose changes of an answer caused a run; empty if there are none."""
    by_question: dict[str, list[str]] = {}
    for node, change in _changes(request):
        facts = ", ".join(map(render.user_text, change.facts))
        sentence = f"{node}: {facts or _BECAME[change.how]}"
        by_question.setdefault(change.query, []).append(sentence)
    if not by_question:
        return ""
    shown = [click.style("Changed", dim=True)]
    for question, lines_of in by_question.items():
        shown.append(f"  {render.user_text(question)}")
        shown += [render.hanging("    ", line) for line in lines_of]
    return "\n".join(shown)


def _changes(request: Mapping[str, Any]) -> Iterator[tuple[str, AnswerChange]]:
    for raw in (request.get("causes") or {}).get("causes") or ():
        try:
            cause = RunCause.from_dict(raw)
        except StateError:
            continue  # of another version
        for change in cause.changes:
            yield str(cause.path[-1]), change


SHOWN = 5


def lines(collected: Sequence[CollectorRecord], exported: int) -> str:
    """Return a paragraph with its heading; empty if the run exported and collected nothing."""
    shown = [] if not exported else [f"  exports {render.counted(exported, 'resource')}"]
    shown += collectors(collected)
    return "\n".join([click.style("Exported resources", dim=True), *shown]) if shown else ""


def would_take(collected: Sequence[CollectorRecord]) -> str:
    """Return a paragraph with its heading on what collectors would get now; empty for none."""
    heading = click.style("The collectors of the newest run would get now", dim=True)
    return "\n".join([heading, *collectors(collected)]) if collected else ""


def collectors(collected: Sequence[CollectorRecord]) -> list[str]:
    """Return lines about collectors: their resources by node, and what they left out."""
    shown = []
    for collector in collected:
        shown.append(f"  {one_line(collector.text)}")
        shown.append(render.hanging("    ", _answer(collector)))
        dropped = sorted({name for got in collector.resources for name in got.dropped} - UNREPORTED)
        if dropped:
            remark = f"guarded, does not count of them: {', '.join(dropped)}"
            shown.append(render.hanging("    ", remark))
        shown += [
            render.hanging(
                "    ", f"left out: {one_line(left.resource)} of {left.node}: {left.reason}"
            )
            for left in collector.left_out[:SHOWN]
        ]
        more = len(collector.left_out[SHOWN:]) + collector.more_left_out
        if more:
            shown.append(f"    and {more} more are left out")
    return shown


def _answer(record: CollectorRecord) -> str:
    if record.digest is None:
        return click.style(f"none: {render.user_text(record.reason)}", fg="red")
    more = f" and {len(record.nodes) - SHOWN} more" if len(record.nodes) > SHOWN else ""
    of = f" of {', '.join(record.nodes[:SHOWN])}{more}" if record.nodes else ""
    answer = f"{render.counted(len(record.resources), 'resource')}{of}"
    if record.revision is None:
        return answer
    age = "" if not record.age or record.age < 1 else f"; {show_duration(record.age)} old"
    return f"{answer} (revision {record.revision}{age})"


def check_fleet(node: NodeApp) -> CommandAddition:
    """Return what the policies allow, and what collectors would take of other nodes now."""
    settings, site = FleetApp(node).settings, FleetApp(node).peers
    socket = settings.agent.network.socket
    if os.access(socket, os.F_OK):  # the run side or its socket unit made it
        require_server_bus(settings.bus, where=str(socket))
    collected: list[CollectorRecord] = []
    if settings.bus.named:
        collected = FleetApp(node).would_take()
    return CommandAddition(
        fields={"collectors": [collector.to_dict() for collector in collected]},
        paragraphs=[would_take(collected)] if collected else (),
        warnings=[
            *_certificates(node, settings),
            *_trust(site),
            *_claims(settings, site),
            *_collects(site),
            *_reacts(settings, site),
        ],
    )


def _certificates(node: NodeApp, settings: FleetSettings) -> list[str]:
    """Return why the servers of the bus, or this node, must refuse a certificate in use."""
    servers = settings.bus.servers.get(settings.bus.engine)
    files = () if servers is None else filter(None, (servers.ca, servers.certificate))
    problems = {file: certificate_problem(file, node.clock.now()) for file in files}
    return [f"{file}: the certificate {why}: renew it" for file, why in problems.items() if why]


def _trust(site: PeerSettings) -> list[str]:
    files = {
        "certificate": site.identity.certificate,
        "ca": site.identity.ca,
        "crl": site.identity.crl,
    }
    return anchor_problems({f"identity.{name}": file for name, file in files.items()})


def _claims(settings: FleetSettings, site: PeerSettings) -> list[str]:
    policy = site.inventory.policy
    if read_claims(policy) is None and settings.bus.engine != "sqlite":
        return [f"there is no {policy}: each node may claim any role and address"]
    return []


def _collects(site: PeerSettings) -> list[str]:
    policy = read_collect_policy(site.collect_policy)
    return [f"{site.collect_policy}: {warning}" for warning in policy.warnings()]


def _reacts(settings: FleetSettings, site: PeerSettings) -> list[str]:
    policy = read_policy(site.policy) if settings.agent.react else None
    if policy is None or policy.may_allow("react") or not settings.bus.named:
        return []
    return [
        f"{site.policy}: no line allows react, so this node ignores changes of other nodes: "
        "add one, or 'agent: {react: false}' in localpuppet.yaml"
    ]


def show_histories(node: NodeApp, names: Sequence[NodeName], *, limit: int, as_json: bool) -> int:
    """Show what the bus has of the runs of nodes, and return the exit code."""
    runs, problems = run(_read(FleetApp(node), names, as_json=as_json))
    if as_json:
        listed = {name: [*map(to_record, of[:limit])] for name, of in runs.items()}
        render.emit_json({"schema": 1, "histories": listed, "problems": problems})
    for name in () if as_json else names:
        if name in runs:
            _show(name, runs[name], limit)
        if name in problems:
            problem = render.user_text(problems[name])
            render.say(f"{name}: {render.word('failed')}: {problem}", err=True)
    return 1 if problems else 0


async def _read(
    fleet: FleetApp, names: Sequence[NodeName], *, as_json: bool
) -> tuple[dict[NodeName, list[RunSummary]], dict[NodeName, str]]:
    """Return node → its runs, and node → why it has none."""
    runs: dict[NodeName, list[RunSummary]] = {}
    problems: dict[NodeName, str] = {}
    now = fleet.node.clock.now().timestamp()
    observer = render.observer(quiet=as_json, title=f"reading the history of {whom(names)}")
    async with shown(observer), fleet.connected() as kv:
        for name in names:
            try:
                found, problem = await read_runs(kv, name, fleet.verifier, now=now)
            except (IntegrityError, InvalidInputError) as error:
                found, problem = [], str(error)
            if found:
                runs[name] = found
            elif not problem:
                problem = "the bus has no run of it (see 'localpuppet nodes')"
            if problem:
                problems[name] = problem
    return runs, problems


def _show(name: NodeName, runs: Sequence[RunSummary], limit: int) -> None:
    render.emit(f"{name}: {render.counted(len(runs), 'run')} on the bus")
    rows = [_row(summary) for summary in runs[:limit]]
    # `report --node` needs whole ids, which begin with the time.
    spare = ("TOOK", "STARTED (UTC)")
    render.emit(render.table(render_run.HISTORY, rows, width=render.columns(), spare=spare))
    if len(runs) > limit:
        render.emit(f"{limit} of {len(runs)} runs; --limit shows more")


def _row(summary: RunSummary) -> tuple[str, ...]:
    started = datetime.fromtimestamp(summary.started_at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    seconds = summary.finished_at - summary.started_at
    is_run = summary.outcome is not None
    times = f"{summary.times} times: " if summary.times > 1 else ""
    pending = summary.noop and summary.counts.out_of_sync > 0
    counts = (
        render_run.resource_counts(summary.counts, noop=pending) if summary.counts.total else ""
    )
    return (
        summary.run if is_run else "",
        started,
        show_duration(seconds) if is_run and seconds else "",
        render.word(str(summary.outcome or "refused"), noop=summary.noop),
        render.user_text(summary.release),
        times + (counts if pending else render.user_text(summary.reason) or counts),
    )
