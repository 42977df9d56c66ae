"""`localpuppet trigger` and `runonce`: make other nodes run, by hand."""

import math
import os
from collections.abc import Mapping
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName, parse_tag, split_tags
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import parse_duration
from localpuppet.fleet.app import FleetApp, run
from localpuppet.fleet.triggers.cause import DROPPED, succeeded
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import SOME, command, flag, option, selects_nodes
from localpuppet.node.node_ports import NodeSelection

if TYPE_CHECKING:
    from localpuppet.fleet.bus.key_value import KeyValue
    from localpuppet.fleet.requests.request_client import NodeAnswer
    from localpuppet.fleet.triggers.sending import Outgoing, SendResult

TTL = 180
PATIENCE = 30.0  # seconds for the agent on this node to answer


@command(
    "trigger",
    exits={
        0: "the trigger was sent; with --wait, each run succeeded",
        1: "a run failed, or a node dropped or rejected the trigger",
        69: "the bus is unreachable",
        75: "a run did not finish within --wait-timeout",
    },
)
@selects_nodes(SOME)
@option(
    "--label labels LABEL", "A label that the logs of the nodes show (repeatable).", multiple=True
)
@option(
    "--ttl TIME",
    "Drop the trigger if a node receives it later than TIME from now, at most 1h.",
    default="3m",
    show_default=True,
)
@flag("--wait", "Wait for the runs, and show their results.")
@option("--wait-timeout TIME", "With --wait: wait at most TIME.", default="1h", show_default=True)
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def trigger_command(
    node: NodeApp,
    selection: NodeSelection,
    labels: tuple[str, ...],
    ttl: str,
    wait: bool,
    wait_timeout: str,
    as_json: bool,
) -> int:
    """Trigger a run on each node.

    A trigger is a message without a reply. A node that accepts it starts a run afterwards; a node
    that drops it logs the reason. Use --wait to see the results. Where a node has a policy file, it
    must allow you `trigger`.

    A trigger guarantees a run, so it has no options of a run. The command 'runonce' has them: each
    node replies whether it accepts.

    Examples:
      localpuppet trigger lb01.example.com lb02.example.com
      localpuppet trigger lb01.example.com --label haproxy --wait
      localpuppet trigger --query 'role=web and os.family=Debian'
    """
    from localpuppet.fleet.bus.bus_limits import MAX_TRIGGER_TTL
    from localpuppet.fleet.cli.requests import chosen
    from localpuppet.fleet.triggers.sending import Outgoing

    fleet = FleetApp(node)
    seconds = parse_duration(ttl, where="--ttl")
    if not 1 <= seconds <= MAX_TRIGGER_TTL:
        raise click.UsageError(f"--ttl must be from 1s to {MAX_TRIGGER_TTL // 3600}h")
    call = Outgoing(
        hosts=tuple(chosen(node, selection, acts=True)),
        tags=tuple(parse_tag(label, where="--label") for label in labels),
        ttl=int(seconds),
        keyprefix=FleetApp(node).settings.agent.keyprefix,
        keyttl=int(seconds),
    )
    patience = parse_duration(wait_timeout, where="--wait-timeout") if wait else None
    sent, ends = run(_trigger(fleet, call, patience, quiet=as_json))
    problems = [name for name, end in ends.items() if end is None or not succeeded(end["outcome"])]
    if as_json:
        render.emit_json(
            {
                "schema": 1,
                "uuid": sent.uuid,
                "sent": list(sent.sent),
                "dropped": dict(sent.dropped),
                "outcomes": ends,
            }
        )
    else:
        _show(sent, ends if wait else None, me=fleet.name if sent.dropped else None)
    if any(ends[name] is None for name in problems):
        return 75
    return 1 if problems or sent.dropped else 0


async def _trigger(
    fleet: FleetApp, call: "Outgoing", patience: float | None, *, quiet: bool
) -> "tuple[SendResult, dict[str, dict[str, Any] | None]]":
    from localpuppet.fleet.cli.requests import shown, whom
    from localpuppet.fleet.triggers.sending import AwaitedRun, doubts, ends

    async with fleet.connected() as kv:
        clock = fleet.node.clock
        begun = int(clock.now().timestamp())
        sent = await _send(fleet, kv, call)
        cause = AwaitedRun(uuid=sent.uuid, sent_in=range(begun, int(clock.now().timestamp()) + 1))
        if not quiet:
            for doubt in await doubts(kv, fleet.verifier, sent, ttl=call.ttl):
                render.say(f"# {doubt}", err=True)
        if patience is None:
            return sent, {}
        observer = render.observer(quiet=quiet, title=f"waiting for {whom(sent.sent)}")

        def show_end(name: str, end: dict[str, Any]) -> None:
            observer.line(_end(name, end))

        async with shown(observer):
            return sent, await ends(
                dict.fromkeys(sent.sent, cause),
                kv,
                fleet.verifier,
                sender=fleet.signer.name,
                ttl=call.ttl,
                patience=patience,
                on_end=show_end,
            )


async def _send(fleet: FleetApp, kv: "KeyValue", call: "Outgoing") -> "SendResult":
    """Send a trigger; in a run of this node, along the paths of that run's causes.

    A program in a run must not begin a new chain: two nodes whose Puppet code does would trigger
    each other for ever.
    """
    run = os.environ.get("LOCALPUPPET_RUN")
    socket = os.environ.get("LOCALPUPPET_SOCKET")
    if run is None and socket is not None and Path(socket).is_socket():
        return await _through_agent(Path(socket), call)
    return await fleet.send(call, kv, run=run)


async def _through_agent(socket: Path, call: "Outgoing") -> "SendResult":
    """Send a trigger through the agent, which knows the causes of its `run_cmd` command."""
    from localpuppet.base.machine.unix_socket import ask
    from localpuppet.fleet.agent.code_calls import trigger_line
    from localpuppet.fleet.triggers.sending import SendResult

    async with aclosing(ask(socket, trigger_line(call), patience=PATIENCE)) as lines:
        answer = loads(await anext(lines))
    if not answer["ok"]:
        raise UnavailableError(str(answer["error"]), where=str(socket))
    return SendResult(
        uuid=answer["uuid"],
        sent=tuple(NodeName(name) for name in answer["sent"]),
        dropped={NodeName(drop["node"]): drop["reason"] for drop in answer["dropped"]},
    )


def _show(
    sent: "SendResult", ends: dict[str, dict[str, Any] | None] | None, *, me: NodeName | None
) -> None:
    """Show the results that are not shown yet: each run's result is shown as it arrives."""
    for node in sent.sent:
        if ends is None:
            render.emit(f"sent to {node}")
        elif ends.get(node) is None:
            render.emit(f"{node}  {render.word('unknown')}: no result arrived in time")
    for node, reason in sent.dropped.items():
        hint = " ('localpuppet apply' runs it)" if node == me else ""
        render.say(f"not sent to {node}: {reason}{hint}", err=True)
    if ends is None and sent.sent:
        render.emit(f"uuid: {sent.uuid}")


def _end(node: str, end: dict[str, Any]) -> str:
    from localpuppet.fleet.triggers.sending import NOT_ACCEPTED

    outcome = str(end["outcome"])
    if outcome == DROPPED:
        reason = end["reason"] or "the log of its agent says why"
        return f"{node}  {render.word(outcome)}: {render.user_text(reason)}"
    if outcome == NOT_ACCEPTED:
        return f"{node}  {render.word(outcome)}: its agent was offline, or its log says why"
    run = f"  [run {one_line(end['run'])}]" if end["run"] else ""
    return f"{node}  {render.word(outcome)}{run}"


RUNS_PATIENCE = 3600.0  # seconds


@command(
    "runonce",
    exits={
        0: "every node accepted; with --wait, each run succeeded",
        1: "a node refused, or a run failed",
        69: "a node did not answer",
        75: "with --wait: a run did not finish within --wait-timeout",
    },
)
@selects_nodes(SOME)
@flag("--noop", "Change nothing; show what would change.")
@option("--tags TAGS", "Apply only resources with one of these tags (a,b).")
@flag("--wait", "Wait for the runs, and show their results.")
@option(
    "--wait-timeout TIME",
    "Wait at most TIME for the replies, up to 5m; with --wait, for the runs.  [default: 20s; 1h]",
)
@flag("--json as_json", "Print the replies as JSON.")
@click.pass_obj
def runonce_command(
    node: NodeApp,
    selection: NodeSelection,
    noop: bool,
    tags: str | None,
    wait: bool,
    wait_timeout: str | None,
    as_json: bool,
) -> int:
    """Ask nodes for a Puppet run, with options.

    Each node replies at once whether it accepts, and then starts a run. The policy of each node
    must allow you `runonce`.

    The command 'trigger' guarantees a run instead: without options, but also for a node that is
    offline or on hold for a moment.

    Examples:
      localpuppet runonce web01.example.com web02.example.com
      localpuppet runonce web01.example.com --noop --wait
    """
    from localpuppet.fleet.bus.bus_limits import MAX_REQUEST_LIFE
    from localpuppet.fleet.cli.requests import ask_nodes, chosen
    from localpuppet.fleet.requests.request import PATIENCE as REPLY_PATIENCE
    from localpuppet.fleet.requests.request import RunOnce

    args = RunOnce(noop=noop, tags=split_tags(tags))
    given = None if wait_timeout is None else parse_duration(wait_timeout, where="--wait-timeout")
    if not wait and (given or 0) > MAX_REQUEST_LIFE:
        raise click.UsageError(f"--wait-timeout must be at most {MAX_REQUEST_LIFE // 60}m")
    patience = REPLY_PATIENCE if wait or given is None else given
    return ask_nodes(
        node,
        chosen(node, selection, acts=True),
        "runonce",
        args,
        as_json=as_json,
        patience=patience,
        wait=partial(_runs, FleetApp(node), patience=given or RUNS_PATIENCE, quiet=as_json)
        if wait
        else None,
    )


async def _runs(
    fleet: FleetApp,
    kv: "KeyValue",
    answers: "Mapping[str, NodeAnswer]",
    *,
    patience: float,
    quiet: bool,
) -> "dict[str, dict[str, Any] | None]":
    """Return the ends of the runs of nodes that accepted `runonce`; show each as it arrives."""
    from localpuppet.fleet.cli.requests import shown, whom
    from localpuppet.fleet.triggers.sending import AwaitedRun, ends

    awaited = {
        NodeName(name): AwaitedRun(
            uuid=answer.reply.in_reply_to, sent_in=range(answer.reply.iat, answer.reply.iat + 1)
        )
        for name, answer in answers.items()
        if answer.reply is not None and answer.ok
    }
    observer = render.observer(quiet=quiet, title=f"waiting for {whom([*awaited])}")

    def show_end(name: str, end: dict[str, Any]) -> None:
        if not quiet:
            observer.line(_end(name, end))

    async with shown(observer):
        found = await ends(
            awaited,
            kv,
            fleet.verifier,
            sender=fleet.signer.name.caller,
            ttl=math.inf,
            patience=patience,
            on_end=show_end,
        )
    for name in () if quiet else [name for name, end in found.items() if end is None]:
        render.emit(f"{name}  {render.word('unknown')}: no result arrived in time")
    return found
