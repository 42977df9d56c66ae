"""`localpuppet capture`: write what the catalogs of nodes depend on, for a preview."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import click

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.app import FleetApp, run
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import OPTION, command, flag, path_type, selects_nodes
from localpuppet.node.node_ports import NodeSelection


@command(
    "capture",
    exits={
        0: "the directory has a new capture of each node",
        1: "a node has no new capture, or this node keeps none yet",
        69: "the bus is unreachable, or the inventory is too old",
    },
)
@click.argument("directory", metavar="DIR", type=path_type())
@selects_nodes(OPTION)
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def capture_command(node: NodeApp, directory: Path, selection: NodeSelection, as_json: bool) -> int:
    """Write what the catalogs of nodes depend on.

    A capture has what the catalog of a node's last good run depended on: facts, the data of its
    input, and the answers to its queries. DIR gets one private file NODE.json for each node. Values
    that may be secret are placeholders: see capture.withhold in localpuppet.yaml. Facts that
    inventory.hide matches are left out.

    Without a selection, it is the capture of this node, and no bus is needed. Other nodes
    send theirs: the policy of each must allow you `capture`, which '*' does not include. If a node
    sends no capture, its earlier file stays, and the command names it.

    Examples:
      localpuppet capture nodes/                 this node
      localpuppet capture --query '' nodes/      every node of the inventory
      localpuppet capture --query role=web nodes/
      localpuppet capture --node web01.example.com nodes/ --json
    """
    problems = {}
    if not selection:
        names = [_write_own(node, directory)]
    else:
        from localpuppet.fleet.cli.requests import chosen

        names = chosen(node, selection, acts=False)
        problems = _collect(node, names, directory, as_json=as_json)
    captured = [name for name in names if name not in problems]
    if as_json:
        document = {"directory": str(directory), "captured": captured, "failed": problems}
        render.emit_json({"schema": 1, **document})
    else:
        render.emit(f"captured {len(captured)} of {render.counted(len(names), 'node')}")
    return 1 if problems else 0


def _write_own(node: NodeApp, directory: Path) -> NodeName:
    from localpuppet.base.machine.files import make_private
    from localpuppet.node.preview.nodes_directory import write_capture

    _, capture = FleetApp(node).captures.read()
    make_private(directory)
    write_capture(directory, capture)
    return capture.node


def _collect(
    node: NodeApp, names: Sequence[NodeName], directory: Path, *, as_json: bool
) -> dict[NodeName, str]:
    from localpuppet.fleet.captures import collect_captures
    from localpuppet.fleet.cli.requests import shown, whom
    from localpuppet.fleet.requests.request import PATIENCE

    observer = render.observer(quiet=as_json, title=f"capturing {whom(names)}")

    fleet, done = FleetApp(node), count(1)

    def progress(name: NodeName, problem: str) -> None:
        observer.count(next(done), len(names), "nodes")
        if problem and not as_json:
            text = render.user_text(problem.removeprefix(f"capture of {name}: "))
            observer.line(f"{name}: {render.word('failed')}: {text}")

    async def collect() -> dict[NodeName, str]:
        async with shown(observer), fleet.connected() as kv:
            return await collect_captures(
                fleet.requests(kv), names, directory, patience=PATIENCE, progress=progress
            )

    return run(collect())
