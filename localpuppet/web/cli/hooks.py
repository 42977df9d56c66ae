"""`localpuppet hooks`: what deliveries of git hosts have led to."""

from typing import Any

import click

from localpuppet.base.formats.times import show_epoch
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag
from localpuppet.node.cli.render_run import moment


@command("hooks")
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def hooks_command(node: NodeApp, as_json: bool) -> None:
    """List the hooks, and what the last delivery to each led to.

    'localpuppet web --hooks' takes the deliveries of git hosts.

    Examples:
      localpuppet hooks
      localpuppet hooks --json | jq '.hooks[] | select(.failed)'
    """
    from localpuppet.web.hooks.hook_settings import hook_settings
    from localpuppet.web.hooks.hook_worker import LookRecord, read_records

    hooks = node.section(hook_settings)
    records = read_records(node.settings.state)
    rows: list[dict[str, Any]] = []
    for name, hook in hooks.items():
        record = records.get(name, LookRecord())
        rows.append(
            {
                "hook": name,
                "type": str(hook.type),
                "source": hook.source,
                "action": "rollout" if hook.rollout else "stage",
                "query": hook.query,
                "delivered_at": show_epoch(record.delivered_at) if record.delivered_at else None,
                "looked_at": show_epoch(record.looked_at) if record.looked_at else None,
                "release": record.release,
                "result": record.failing or record.result,
                "failed": bool(record.failing),
            }
        )
    if as_json:
        render.emit_json({"schema": 1, "hooks": rows})
        return
    shown = [
        (
            *(row["hook"], row["source"], f"{row['action']} {row['query']}"),
            *(moment(row[key]) for key in ("delivered_at", "looked_at")),
            row["result"],
        )
        for row in rows
    ]
    head = ("HOOK", "SOURCE", "ACTION", "DELIVERED", "LOOKED", "RESULT")
    render.emit(render.table(head, shown) if shown else "no hook in 'hooks:'")
