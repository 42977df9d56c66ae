"""`localpuppet assign`: give a release to nodes that take theirs by request."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from localpuppet.base.formats.names import NodeName, ReleasePath
from localpuppet.base.formats.times import parse_duration
from localpuppet.fleet.cli.progress import shown, whom
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag, option
from localpuppet.node.cli.completion import complete_release

if TYPE_CHECKING:
    from localpuppet.fleet.requests.arguments import Deploy
    from localpuppet.fleet.requests.client import NodeAnswer
    from localpuppet.node.enc.document import Classes

PATIENCE = "10m"


@command(
    "assign",
    exits={0: "every node accepted the release", 1: "a node refused", 69: "a node did not answer"},
)
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@click.argument("release", shell_complete=complete_release)
@option(
    "--values FILE",
    "Layers and class parameters that override the nodes' own.",
    type=click.Path(path_type=Path),
)
@flag("--stage", "Only fetch and verify the release on the nodes.")
@flag("--allow-older", "Accept a release that is older than the node's.")
@option(
    "--wait-timeout TIME", "Wait at most TIME for each node.", default=PATIENCE, show_default=True
)
@flag("--json as_json", "Print the replies as JSON.")
@click.pass_obj
def assign_command(node: NodeApp, /, as_json: bool, **given: Any) -> int:  # noqa: ANN401
    """Give nodes a release, which each of them then runs.

    RELEASE is SOURCE/tags/TAG. The input of each NODE must have 'app: SOURCE/assigned'. Before
    anything changes, each node fetches and verifies the release and compares the values with its
    classes.

    The policy of each node must allow you `status` and `deploy:SOURCE/tags/PATTERN`, `values` for
    --values, and `older` for --allow-older.

    FILE is YAML. It crosses the bus, so put no secrets in it:
      layers: [canary]
      classes:
        shop: {port: 8081}

    Examples:
      localpuppet assign web01.example.com web02.example.com shop/tags/r7
      localpuppet assign web01.example.com shop/tags/r7 --stage
      localpuppet assign web01.example.com shop/tags/r7 --values canary.yaml
    """
    from localpuppet.fleet.requests.arguments import Deploy, DeployAction
    from localpuppet.fleet.requests.repeating import deploy_to
    from localpuppet.fleet.wiring.fleet import FleetWiring, run

    names = [NodeName.parse(name) for name in dict.fromkeys(given["nodes"])]
    layers, classes = read_values(node, given["values"])
    args = Deploy(
        release=ReleasePath.parse(given["release"], where="RELEASE"),
        action=DeployAction.STAGE if given["stage"] else DeployAction.APPLY,
        serial=1,
        layers=layers,
        classes=classes,
        allow_older=given["allow_older"],
    )
    patience = parse_duration(given["wait_timeout"], what="--wait-timeout")
    fleet = FleetWiring(node)
    observer = render.observer(quiet=as_json, title=f"{args.release} for {whom(names)}")

    async def ask() -> "dict[str, NodeAnswer]":
        async with shown(observer), fleet.connected() as kv:
            return await deploy_to(fleet.requests(kv), names, args, patience=patience)

    answers = run(ask())
    if as_json:
        replies = {name: answer.to_dict() for name, answer in answers.items()}
        render.emit_json({"schema": 1, "release": args.release, "replies": replies})
    else:
        for name, answer in answers.items():
            _show(name, answer, args)
    if any(answer.unresponsive for answer in answers.values()):
        return 69
    return 0 if all(answer.ok for answer in answers.values()) else 1


def read_values(node: NodeApp, file: Path | None) -> "tuple[tuple[str, ...], Classes]":
    """Return the layers and classes in a file of values; none without a file."""
    if file is None:
        return (), {}
    from localpuppet.base.machine.files import read_user_file
    from localpuppet.node.enc.document import EncData

    raw = node.documents.parse(read_user_file(file), schema="values", where=str(file))
    layers = tuple(cast("list[str]", raw.get("layers") or []))
    return layers, EncData.from_dict(raw, where=str(file)).classes


def _show(name: str, answer: "NodeAnswer", args: "Deploy") -> None:
    from localpuppet.fleet.requests.arguments import DeployAction

    if not answer.ok:
        error = render.user_text(str(answer.to_dict()["error"]))
        render.say(f"{name}: {render.word('failed')}: {error}", err=True)
    elif args.action is DeployAction.STAGE:
        render.emit(f"{name}: has {args.release}, and could take it")
    else:
        render.emit(f"{name}: took {args.release}; its run follows")
