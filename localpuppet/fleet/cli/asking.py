"""Sends requests to other nodes, for the commands that have `--node`."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.cli.progress import shown, whom
from localpuppet.fleet.requests.request import PATIENCE
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render

if TYPE_CHECKING:
    from localpuppet.fleet.requests.client import NodeAnswer
    from localpuppet.fleet.requests.request import Arguments


def ask_nodes(
    node: NodeApp,
    nodes: Sequence[str],
    action: str,
    args: "Arguments",
    *,
    as_json: bool,
    patience: float = PATIENCE,
) -> int:
    """Send a request to nodes, show each reply, and return the exit code.

    A missing reply is shown, and makes the exit code 69; a refusal and a run without a report make
    it 1.
    """
    from localpuppet.fleet.wiring.fleet import FleetWiring, run

    names = [NodeName.parse(name) for name in dict.fromkeys(nodes)]
    fleet = FleetWiring(node)
    observer = render.observer(quiet=as_json, title=f"asking {whom(names)}")

    async def ask() -> "dict[str, NodeAnswer]":
        async with shown(observer), fleet.connected() as kv:
            return await fleet.requests(kv).ask_all(names, action, args, patience=patience)

    answers = run(ask())
    replies = {name: answer.to_dict() for name, answer in answers.items()}
    if as_json:
        render.emit_json({"schema": 1, "action": action, "replies": replies})
    else:
        for name, reply in replies.items():
            _show(name, action, reply, node.clock.now())
    if any(answer.unresponsive for answer in answers.values()):
        return 69
    complete = all(
        reply["ok"] and (action != "report" or reply["result"].get("report") is not False)
        for reply in replies.values()
    )
    return 0 if complete else 1


def _show(name: str, action: str, reply: dict[str, Any], now: datetime) -> None:
    if not reply["ok"]:
        render.say(f"{name}: {render.word('failed')}: {render.user_text(reply['error'])}", err=True)
        return
    from localpuppet.fleet.cli.render_reply import MARGIN, shown_reply

    word, lines = shown_reply(action, reply["result"], now)
    render.emit(f"{name}: {word}")
    for line in lines.splitlines():
        render.emit(f"{' ' * MARGIN}{line}")
    run_record = reply["result"].get("run")
    if reply["result"].get("report") is False and isinstance(run_record, dict):
        logs = f"localpuppet logs {run_record.get('id', '')} --node {name}"
        render.emit(f"{' ' * MARGIN}'{render.user_text(logs)}' shows Puppet's output")
