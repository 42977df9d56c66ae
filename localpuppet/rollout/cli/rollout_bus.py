"""`localpuppet rollout status|list --operator NAME`: print the rollout checkpoints on the bus."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import RolloutId, SignerName
from localpuppet.fleet.wiring.fleet import run
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render, render_run
from localpuppet.rollout.checkpoints import RolloutCheckpoint
from localpuppet.rollout.cli.rollout_text import coloured, failures, head, header, how_far, outcome
from localpuppet.rollout.rollout_report import ELSEWHERE, INTERRUPTED, RolloutReport, show_counts
from localpuppet.rollout.rollout_view import RolloutView
from localpuppet.rollout.wiring.rollout import FleetRollouts, known_head, known_heads

SHOWN, MOST = 20, 500
OVER = "over"


def show(node: NodeApp, rollout: str | None, owner: SignerName, *, as_json: bool) -> int:
    """Print the checkpoint of a rollout and return the exit code.

    Raises:
        InvalidInputError: It does not exist, is too large for the bus, or has no summary.
        IntegrityError: The checkpoint is not trusted.
    """
    wanted = None if rollout is None else RolloutId.parse(rollout)
    checkpoint = run(known_head(FleetRollouts(node), wanted, owner))
    return show_head(checkpoint, now=node.clock.now(), as_json=as_json)


def newer_heads(
    node: NodeApp, reports: Iterable[RolloutReport]
) -> dict[RolloutId, RolloutCheckpoint]:
    """Return the checkpoints of interrupted local rollouts that continued on other machines.

    If the bus is unreachable, print a note and return nothing.
    """
    states = [report.state for report in reports if report.word == INTERRUPTED]
    if not states:
        return {}
    try:
        return run(FleetRollouts(node).newer_heads(states, _note))
    except LocalpuppetError as error:
        _note(f"cannot tell whether interrupted rollouts continued elsewhere: {error}")
        return {}


def _note(text: str) -> None:
    render.say(f"# {render.user_text(text)}", err=True)


def show_head(
    checkpoint: RolloutCheckpoint,
    *,
    now: datetime,
    as_json: bool,
    known: Mapping[str, Any] = MappingProxyType({}),
) -> int:
    """Print a checkpoint; as JSON, merged with what is `known` otherwise; see `show`."""
    if checkpoint.over and checkpoint.summary is None:
        raise InvalidInputError("is over", where=str(checkpoint.rollout))
    if not checkpoint.over and not checkpoint.events:
        raise InvalidInputError(
            "has a journal that is too large for the bus",
            where=str(checkpoint.rollout),
            hint="show it on the machine that controls it",
        )
    if as_json:
        render.emit_json({"schema": 1, "from_bus": True, **known, **summary(checkpoint)})
    elif checkpoint.summary is not None:
        ended = checkpoint.summary
        noop = ", changes nothing" if ended.noop else ""
        render.emit(render.hanging("", f"rollout {checkpoint.rollout} of {ended.title}{noop}"))
        why = f": {ended.reason}" if ended.reason else ""
        render.emit(
            render.hanging("", f"{coloured(ended.word)}{why} ({show_counts(ended.counts)})")
        )
        render.say("# from the bus: its journal has the result of each node", err=True)
    else:
        report = RolloutReport.of(checkpoint.events, taken=True)
        render.emit(render.hanging("", head(report.state)))
        render.emit(render.hanging("", how_far(report.state, goes_on=True)))
        render.emit(header(RolloutView.of(report, now)))
        for line in failures(report.state):
            render.emit(line)
        render.emit(outcome(report))
        render.say("# from the bus: it is unknown whether a process controls it", err=True)
    return 0 if checkpoint.summary is None or checkpoint.summary.succeeded else 1


def show_all(node: NodeApp, owner: SignerName, *, as_json: bool) -> None:
    """List the rollouts that have a checkpoint."""
    heads = run(known_heads(FleetRollouts(node), owner, most=MOST))
    summaries = [summary(checkpoint) for checkpoint in (heads if as_json else heads[:SHOWN])]
    if as_json:
        render.emit_json({"schema": 1, "from_bus": True, "rollouts": summaries})
        return
    if not summaries:
        render.emit(f"the bus has no rollout of {owner}")
        return
    show_rows({"caller": owner.caller, **row} for row in summaries)
    if len(heads) > SHOWN:
        render.say(f"# {len(heads) - SHOWN} older ones: --json lists all", err=True)


def show_rows(rollouts: Iterable[Mapping[str, Any]]) -> None:
    """Print the table of a list of rollouts, from their JSON form."""
    rows = [
        (
            rollout["id"],
            coloured(rollout["state"]),
            render.user_text(rollout.get("release") or "-"),
            render.user_text(rollout.get("caller") or "-"),
            render_run.moment(rollout.get("started_at")) or "-",
            show_counts(rollout.get("counts", {})),
        )
        for rollout in rollouts
    ]
    render.emit(render.table(("ROLLOUT", "STATE", "RELEASE", "BY", "BEGAN", "NODES"), rows))


def summary(checkpoint: RolloutCheckpoint) -> dict[str, Any]:
    """Return the JSON form of a checkpoint in a list, without unknown fields."""
    if checkpoint.summary is not None:
        return checkpoint.summary.to_dict(checkpoint.rollout, checkpoint.epoch)
    if checkpoint.events:
        report = RolloutReport.of(checkpoint.events, taken=True)
        state = report.summary()["state"] if report.state.over is not None else ELSEWHERE
        return {**report.summary(), "state": state}
    state = OVER if checkpoint.over else ELSEWHERE
    return {"id": checkpoint.rollout, "state": state, "epoch": checkpoint.epoch, "counts": {}}
