"""`localpuppet rollout status|list --operator NAME`: print the rollout checkpoints on the bus."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import RolloutId, SignerName
from localpuppet.fleet.wiring.run_async import run
from localpuppet.node.cli import render, render_run
from localpuppet.node.wiring.node import NodeWiring
from localpuppet.rollout.cli.rollout_text import coloured, head, header, how_far, outcome
from localpuppet.rollout.execution.checkpoint import RolloutCheckpoint
from localpuppet.rollout.execution.report import ELSEWHERE, INTERRUPTED, RolloutReport, show_counts
from localpuppet.rollout.execution.reporting.view import RolloutView
from localpuppet.rollout.wiring.checkpoints import FleetRollouts, known_head, known_heads

SHOWN, MOST = 20, 500
OVER = "over"


def show(node: NodeWiring, rollout: str | None, owner: SignerName, *, as_json: bool) -> int:
    """Print the checkpoint of a rollout and return the exit code.

    Raises:
        InvalidInputError: It does not exist, is too large for the bus, or has no summary.
        IntegrityError: The checkpoint is not trusted.
    """
    wanted = None if rollout is None else RolloutId.parse(rollout)
    found = run(known_head(FleetRollouts(node), wanted, owner))
    return show_head(found, now=node.clock.now(), as_json=as_json)


def newer_heads(
    node: NodeWiring, reports: Iterable[RolloutReport]
) -> dict[RolloutId, RolloutCheckpoint]:
    """Return the checkpoints of interrupted local rollouts that continued on other machines.

    If the bus is unreachable, print a note and return nothing.
    """
    states = [one.state for one in reports if one.word == INTERRUPTED]
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
    found: RolloutCheckpoint,
    *,
    now: datetime,
    as_json: bool,
    known: Mapping[str, Any] = MappingProxyType({}),
) -> int:
    """Print a checkpoint; as JSON, merged with what is `known` otherwise; see `show`."""
    if found.over and found.summary is None:
        raise InvalidInputError("is over", where=str(found.rollout))
    if not found.over and not found.events:
        raise InvalidInputError(
            "has a journal that is too large for the bus",
            where=str(found.rollout),
            hint="show it on the machine that controls it",
        )
    if as_json:
        render.emit_json({"schema": 1, "from_bus": True, **known, **summary(found)})
    elif found.summary is not None:
        ended = found.summary
        noop = ", changes nothing" if ended.noop else ""
        render.emit(render.hanging("", f"rollout {found.rollout} of {ended.title}{noop}"))
        why = f": {ended.reason}" if ended.reason else ""
        render.emit(
            render.hanging("", f"{coloured(ended.word)}{why} ({show_counts(ended.counts)})")
        )
        render.say("# from the bus: its journal has the result of each node", err=True)
    else:
        report = RolloutReport.of(found.events, taken=True)
        render.emit(render.hanging("", head(report.state)))
        render.emit(render.hanging("", how_far(report.state, goes_on=True)))
        render.emit(header(RolloutView.of(report, now)))
        render.emit(outcome(report))
        render.say("# from the bus: it is unknown whether a process controls it", err=True)
    return 0 if found.summary is None or found.summary.succeeded else 1


def show_all(node: NodeWiring, owner: SignerName, *, as_json: bool) -> None:
    """List the rollouts that have a checkpoint."""
    heads = run(known_heads(FleetRollouts(node), owner, most=MOST))
    told = [summary(one) for one in (heads if as_json else heads[:SHOWN])]
    if as_json:
        render.emit_json({"schema": 1, "from_bus": True, "rollouts": told})
        return
    if not told:
        render.emit(f"the bus has no rollout of {owner}")
        return
    show_rows({"caller": owner.caller, **one} for one in told)
    if len(heads) > SHOWN:
        render.say(f"# {len(heads) - SHOWN} older ones: --json lists all", err=True)


def show_rows(rollouts: Iterable[Mapping[str, Any]]) -> None:
    """Print the table of a list of rollouts, from their JSON form."""
    rows = [
        (
            one["id"],
            coloured(one["state"]),
            render.user_text(one.get("release") or "-"),
            render.user_text(one.get("caller") or "-"),
            render_run.moment(one.get("started_at")) or "-",
            show_counts(one.get("counts", {})),
        )
        for one in rollouts
    ]
    render.emit(render.table(("ROLLOUT", "STATE", "RELEASE", "BY", "BEGAN", "NODES"), rows))


def summary(found: RolloutCheckpoint) -> dict[str, Any]:
    """Return the JSON form of a checkpoint in a list, without unknown fields."""
    if found.summary is not None:
        return {
            "id": found.rollout,
            "title": found.summary.title,
            "release": found.summary.release,
            "state": found.summary.word,
            "reason": found.summary.reason,
            "started_at": found.summary.started_at,
            "finished_at": found.summary.finished_at,
            "epoch": found.epoch,
            "noop": found.summary.noop,
            "succeeded": found.summary.succeeded,
            "counts": dict(found.summary.counts),
            "waits_for": [],
        }
    if found.events:
        report = RolloutReport.of(found.events, taken=True)
        state = report.summary()["state"] if report.state.over is not None else ELSEWHERE
        return {**report.summary(), "state": state}
    state = OVER if found.over else ELSEWHERE
    return {"id": found.rollout, "state": state, "epoch": found.epoch, "counts": {}}
