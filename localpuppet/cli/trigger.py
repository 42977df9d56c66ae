"""`localpuppet trigger`: make other nodes run, by hand."""

import asyncio
import json
import uuid
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click

from localpuppet.cli import render
from localpuppet.cli.wiring import Parts
from localpuppet.model.duration import parse_duration
from localpuppet.model.names import NodeName, parse_tag

if TYPE_CHECKING:
    from localpuppet.bus import Call, Sent
    from localpuppet.cli.fleet import FleetParts
    from localpuppet.key_value import KeyValue

TTL = 180
WAIT = 3600.0


@click.command(
    "trigger",
    epilog="""\b
Examples:
  localpuppet trigger lb01.example.com lb02.example.com
  localpuppet trigger lb01.example.com --tag haproxy --wait

\b
Exit codes: 0 sent (with --wait: every run it led to succeeded), 1 a run failed or the trigger was
dropped, 69 the bus is away, 75 --timeout ran out.
""",
)
@click.argument("nodes", nargs=-1, required=True, metavar="NODE…")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="What it is about; for people.")
@click.option(
    "--ttl", metavar="TIME", default="3m", show_default=True, help="How long it is good, up to 1h."
)
@click.option("--wait", is_flag=True, help="Wait until the runs have ended, and say how.")
@click.option(
    "--timeout", metavar="TIME", default="1h", show_default=True, help="With --wait: give up then."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def trigger_command(
    parts: Parts,
    nodes: tuple[str, ...],
    tags: tuple[str, ...],
    ttl: str,
    wait: bool,
    timeout: str,
    as_json: bool,
) -> int:
    """Trigger a run on each NODE: one that starts after this, or a logged drop."""
    from localpuppet.bus import Call
    from localpuppet.cli.fleet import FleetParts, run
    from localpuppet.model.trigger import MAX_TTL

    fleet = FleetParts(parts)
    seconds = parse_duration(ttl, what="ttl")
    if not 1 <= seconds <= MAX_TTL:
        raise click.UsageError(f"--ttl must be from 1s to {MAX_TTL // 3600}h")
    call = Call(
        hosts=tuple(NodeName.parse(name) for name in nodes),
        tags=tuple(parse_tag(tag, where="--tag") for tag in tags),
        ttl=int(seconds),
        keyprefix=fleet.settings.agent.keyprefix,
        keyttl=int(seconds),
    )
    patience = parse_duration(timeout, what="timeout") if wait else None
    sent, ends = run(_trigger(fleet, call, patience, quiet=as_json))
    problems = [name for name, end in ends.items() if end is None or not _good(end)]
    if as_json:
        render.emit_json(
            {
                "schema": 1,
                "uuid": sent.uuid,
                "sent": list(sent.sent),
                "dropped": dict(sent.dropped),
                "ends": ends,
            }
        )
    else:
        _show(sent, ends if wait else None)
    if any(ends[name] is None for name in problems):
        return 75
    return 1 if problems or sent.dropped else 0


async def _trigger(
    fleet: "FleetParts", call: "Call", patience: float | None, *, quiet: bool
) -> "tuple[Sent, dict[str, dict[str, Any] | None]]":
    from localpuppet import bus

    kv = await fleet.connect()
    try:
        sent = await bus.send(
            call,
            kv=kv,
            signer=fleet.signer,
            paths=[()],
            clock=fleet.parts.clock,
            uuid=str(uuid.uuid4()),
        )
        if patience is None:
            return sent, {}
        observer = render.observer(quiet=quiet, title=f"waiting for {len(sent.sent)} node(s)")
        observer.begin()
        try:
            return sent, await _ends(fleet, kv, sent, patience)
        finally:
            observer.close()
    finally:
        await kv.close()


async def _ends(
    fleet: "FleetParts", kv: "KeyValue", sent: "Sent", patience: float
) -> dict[str, dict[str, Any] | None]:
    """Return how the trigger ended on each node; `None` where nothing was heard in time."""
    from localpuppet import bus
    from localpuppet.cli.nodes import believe

    ends: dict[str, dict[str, Any] | None] = dict.fromkeys(sent.sent)
    try:
        async with asyncio.timeout(patience), aclosing(kv.watch(bus.PRESENCE)) as changes:
            async for change in changes:
                for entry in bus.entries(change):
                    name = entry.key.removeprefix(bus.PRESENCE)
                    said = believe(fleet.verifier, name, entry.value)
                    for settled in said.get("settled", []):
                        if settled["uuid"] == sent.uuid and name in ends:
                            ends[name] = settled
                if all(end is not None for end in ends.values()):
                    break
    except TimeoutError:
        return ends
    return ends


def _good(end: dict[str, Any]) -> bool:
    return end["outcome"] in ("changed", "unchanged", "ended")


def _show(sent: "Sent", ends: dict[str, dict[str, Any] | None] | None) -> None:
    for node in sent.sent:
        if ends is None:
            render.emit(f"sent to {node}")
            continue
        end = ends.get(node)
        if end is None:
            render.emit(f"{node}  {render.word('unknown')}: nothing was heard of it in time")
        else:
            run = f"  [run {end['run']}]" if end["run"] else ""
            render.emit(f"{node}  {render.word(str(end['outcome']))}{run}")
    for node, reason in sent.dropped.items():
        render.say(f"not sent to {node}: {reason}", err=True)
    if ends is None and sent.sent:
        render.emit(json.dumps({"uuid": sent.uuid})[1:-1].replace('"', ""))
