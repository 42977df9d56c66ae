"""`localpuppet rollout status|list --of NAME`: what the bus has of somebody's rollouts."""

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import RolloutId, SignerName
from localpuppet.fleet.wiring.run_async import run
from localpuppet.node.cli import render
from localpuppet.node.wiring.node import NodeWiring
from localpuppet.rollout.cli.rollout_text import coloured, head, how_far, outcome
from localpuppet.rollout.execution.report import ELSEWHERE, INTERRUPTED, Report, show_counts
from localpuppet.rollout.wiring.heads import known_head, known_heads
from localpuppet.rollout.wiring.rollout import RolloutWiring

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from localpuppet.rollout.execution.head import Head

SHOWN, MOST = 20, 500
OVER = "over"


def show(node: NodeWiring, rollout: str | None, owner: SignerName, *, as_json: bool) -> int:
    """Show where a rollout is, or how it ended, as its head tells; return the exit code.

    Raises:
        InvalidInputError: There is none, or it is too large for the bus, or over and an earlier
            version wrote that.
        IntegrityError: What is there is not to be believed.
    """
    wanted = None if rollout is None else RolloutId.parse(rollout)
    return show_head(run(known_head(RolloutWiring(node), wanted, owner)), as_json=as_json)


def newer_heads(node: NodeWiring, reports: "Iterable[Report]") -> "dict[RolloutId, Head]":
    """Return the heads of interrupted rollouts of this machine that continued on others.

    If the bus cannot be asked, the command says so, and shows what the journals have.
    """
    states = [one.state for one in reports if one.word == INTERRUPTED]
    if not states:
        return {}
    try:
        return run(RolloutWiring(node).newer_heads(states, _note))
    except LocalpuppetError as error:
        _note(f"cannot tell whether interrupted rollouts continued elsewhere: {error}")
        return {}


def _note(text: str) -> None:
    render.say(f"# {render.user_text(text)}", err=True)


def show_head(
    found: "Head", *, as_json: bool, known: "Mapping[str, Any]" = MappingProxyType({})
) -> int:
    """Show what a head has of a rollout, and as JSON also what else is known; see `show`."""
    if found.over and found.summary is None:
        raise InvalidInputError("is over", where=str(found.rollout))
    if not found.over and not found.events:
        raise InvalidInputError(
            "has a journal that is too large for the bus",
            where=str(found.rollout),
            hint="look at it where it goes on",
        )
    if as_json:
        render.emit_json({"schema": 1, "of_the_bus": True, **known, **summary(found)})
    elif found.summary is not None:
        ended = found.summary
        noop = ", changes nothing" if ended.noop else ""
        render.emit(render.hanging("", f"rollout {found.rollout} of {ended.title}{noop}"))
        why = f": {ended.why}" if ended.why else ""
        render.emit(
            render.hanging("", f"{coloured(ended.ending)}{why} ({show_counts(ended.counts)})")
        )
        render.say("# as the bus has it: its journal tells which node ended how", err=True)
    else:
        report = Report.of(found.events, taken=True)
        render.emit(render.hanging("", head(report.state)))
        render.emit(render.hanging("", how_far(report.state, goes_on=True)))
        render.emit(outcome(report))
        render.say("# as the bus has it: whether a process goes on is not known", err=True)
    return 0 if found.summary is None or found.summary.succeeded else 1


def show_all(node: NodeWiring, owner: SignerName, *, as_json: bool) -> None:
    """List rollouts as their heads tell."""
    heads = run(known_heads(RolloutWiring(node), owner, most=MOST))
    told = [summary(one) for one in (heads if as_json else heads[:SHOWN])]
    if as_json:
        render.emit_json({"schema": 1, "of_the_bus": True, "rollouts": told})
        return
    if not told:
        render.emit(f"the bus knows no rollout of {owner}")
        return
    rows = [(one["id"], coloured(one["state"]), show_counts(one["counts"])) for one in told]
    render.emit(render.table(("ROLLOUT", "STATE", "NODES"), rows))
    if len(heads) > SHOWN:
        render.say(f"# {len(heads) - SHOWN} older ones: --json lists all", err=True)


def summary(found: "Head") -> dict[str, Any]:
    """Return what a list tells of a rollout; what its head does not tell is left out."""
    if found.summary is not None:
        return {
            "id": found.rollout,
            "title": found.summary.title,
            "state": str(found.summary.ending),
            "why": found.summary.why,
            "began": found.summary.began,
            "ended": found.summary.ended,
            "epoch": found.epoch,
            "noop": found.summary.noop,
            "succeeded": found.summary.succeeded,
            "counts": dict(found.summary.counts),
            "waits_for": [],
        }
    if found.events:
        report = Report.of(found.events, taken=True)
        state = report.summary()["state"] if report.state.over is not None else ELSEWHERE
        return {**report.summary(), "state": state}
    state = OVER if found.over else ELSEWHERE
    return {"id": found.rollout, "state": state, "epoch": found.epoch, "counts": {}}
