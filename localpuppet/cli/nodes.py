"""`localpuppet nodes`: who is on the bus, and how they are."""

from typing import TYPE_CHECKING, Any

import click

from localpuppet.cli import render
from localpuppet.cli.wiring import Parts
from localpuppet.model.text import one_line

if TYPE_CHECKING:
    from localpuppet.cli.fleet import FleetParts
    from localpuppet.signing import Verifier


@click.command(
    "nodes",
    short_help="Show the nodes whose agents are there, and how they are.",
    epilog="""\b
Examples:
  localpuppet nodes
  localpuppet nodes --watch
  localpuppet nodes --json | jq '.nodes[] | select(.holds != [])'
""",
)
@click.option("--watch", "following", is_flag=True, help="Go on, and show every change.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch, one line each.")
@click.pass_obj
def nodes_command(parts: Parts, following: bool, as_json: bool) -> None:
    """Show the nodes whose agents are there: what they do, holds, the last outcome, the release.

    What a node says counts only with its signature: one whose key is not trusted here is shown as
    "not trusted". A bus that cannot be asked is an error, never an empty list.
    """
    from localpuppet.cli.fleet import FleetParts, run

    fleet = FleetParts(parts)
    if following:
        from localpuppet.cli.nodes_watch import follow

        run(follow(fleet, as_json=as_json))
        return
    found = run(_nodes(fleet))
    if as_json:
        render.emit_json({"schema": 1, "nodes": found})
    elif found:
        render.emit(_table(parts, found))
    else:
        render.emit("no agent is there; 'localpuppet agent' on a node starts one")


def believe(verifier: "Verifier", name: str, token: bytes) -> dict[str, Any]:
    """Return what a node says of itself, or that nobody vouches for it or can make sense of it.

    Args:
        verifier: Tells whose signatures hold.
        name: The node whose entry it is.
        token: The signed entry.
    """
    from localpuppet.errors import LocalpuppetError
    from localpuppet.model import presence
    from localpuppet.model.strict_json import parse_object
    from localpuppet.signing import MAX_PAYLOAD, Kind

    try:
        signed = verifier.verify(token, Kind.PRESENCE)
        said: dict[str, Any] = dict(parse_object(signed.payload, where=name, limit=MAX_PAYLOAD))
        if signed.signer != name or said.get("node") != name:
            return {"node": name, "state": "not trusted", "why": f"signed by {signed.signer}"}
        problem = presence.problem(said)
        if problem:
            return {"node": name, "state": "not trusted", "why": problem}
    except LocalpuppetError as error:
        return {"node": name, "state": "not trusted", "why": str(error)}
    return said


async def _nodes(fleet: "FleetParts") -> list[dict[str, Any]]:
    from localpuppet import bus

    kv = await fleet.connect()
    try:
        return [
            believe(fleet.verifier, name, token)
            for name, token in sorted((await bus.nodes(kv)).items())
        ]
    finally:
        await kv.close()


def cells(said: dict[str, Any]) -> list[str]:
    """Return what is shown of a node: name, state, last outcome, release, what it is about."""
    last = said.get("last") or {}
    holds = said.get("holds") or []
    state = render.user_text(said.get("state", ""))
    waiting = said.get("waiting") or 0
    about = ""
    if state == "applying":
        about = str(said.get("cause") or "")
    elif holds:
        about = str(holds[0].get("reason") or "")
    elif state == "not trusted":
        about = str(said.get("why", ""))
    word = click.style(one_line(state), fg=_color(state), bold=True)
    outcome = one_line(last.get("outcome") or "")
    return [
        one_line(said.get("node", "")),
        word + (f" +{waiting}" if waiting else ""),
        render.word(outcome) if outcome else "",
        one_line(last.get("app") or ""),
        one_line(about),
    ]


def _color(state: str) -> str | None:
    return {"applying": "cyan", "idle": "green", "on hold": "yellow", "not trusted": "red"}.get(
        state
    )


def _table(parts: Parts, found: list[dict[str, Any]]) -> str:
    from localpuppet.cli import render_run

    now = parts.clock.now()
    rows = []
    for said in found:
        node, state, outcome, app, about = cells(said)
        finished = (said.get("last") or {}).get("finished_at")
        when = render_run.ago(finished, now) if finished else ""
        rows.append((node, state, outcome, when, app, about))
    head = ("NODE", "STATE", "LAST RUN", "ENDED", "RELEASE", "ABOUT")
    return render.table(head, rows, width=render.columns())
