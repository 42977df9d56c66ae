"""`localpuppet rollback`: back to the last good release, with the node document of that time."""

import click

from localpuppet.cli import render, render_run
from localpuppet.cli.apply import user
from localpuppet.errors import InvalidInputError
from localpuppet.formats.names import ReleasePath
from localpuppet.formats.times import show_time
from localpuppet.machine.files import read_json
from localpuppet.releases.ledger import Rollback
from localpuppet.runs.records import Records, RunDirectory
from localpuppet.runs.run import Status
from localpuppet.wiring.node import NodeWiring


@click.command(
    "rollback",
    short_help="Switch this node to an earlier release.",
    epilog="""\b
Examples:
  localpuppet rollback && localpuppet apply
  localpuppet rollback --to r1
  localpuppet rollback --end               follow input.yaml again
""",
)
@click.option("--to", "tag", metavar="TAG", help="A certain release.  [default: the last good one]")
@click.option("--end", is_flag=True, help="End a rollback; the input decides again.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def rollback_command(node: NodeWiring, tag: str | None, end: bool, as_json: bool) -> None:
    """Switch this node to an earlier release; 'localpuppet apply' then runs it.

    The node document is the one of the release's last good run here. It holds, also for the timer,
    until the input changes or --end is said.
    """
    if end:
        node.ledger.end_rollback()
        render.emit("the input decides again")
        return
    from localpuppet.enc.input import read_input
    from localpuppet.wiring.releases import ReleaseWiring

    read = read_input(str(node.settings.input), documents=node.documents, fetch=node.fetch())
    before = node.ledger.rollback()
    current = before.app if before else read.input.app
    status = _last_good(node.records, current, tag)
    app = ReleasePath.parse(status.app, where="app")
    ReleaseWiring(node).resolve(app)  # it is here, and what it names is
    request = read_json(RunDirectory(node.records.directory / status.id).request)
    rollback = Rollback(
        app=app,
        run=status.id,
        node_document=request["node_document"],
        input_sha256=read.sha256,
        user=user(),
        since=show_time(node.clock.now()),
    )
    node.ledger.roll_back(rollback)
    if as_json:
        render.emit_json({"schema": 1, "app": app, "run": status.id, "from": current})
        return
    ended = render_run.moment(status.finished_at)
    render.emit(f"rolled back from {current} to {app}, as it ran on {ended}")
    render.emit("'localpuppet apply' runs it; a changed input.yaml ends the rollback")


def _last_good(records: Records, current: ReleasePath, tag: str | None) -> Status:
    """Return the newest good, whole run of another release of the same source.

    Raises:
        InvalidInputError: There is no such run.
    """
    wanted = None if tag is None else f"{current.source}/tags/{tag}"
    for status in records.history():
        whole = not status.noop and not status.partial
        if status.outcome is None or not status.outcome.success or not whole:
            continue
        path = ReleasePath(status.app)
        if path == wanted or (wanted is None and path.source == current.source and path != current):
            return status
    what = wanted or f"another release of {current.source!r}"
    raise InvalidInputError(
        f"there is no good run of {what} in the record",
        hint="see 'localpuppet history'; 'apply --allow-rollback' takes any release",
    )
