"""Extends commands of a node by the fleet: they send requests to other nodes, and show their part.

Imports are deferred: `status` loads nothing for a node that no other node affected.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from localpuppet.base.formats.text import one_line, parse_line, shown_names
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.node_ports import CommandAddition, CommandAdditions, NodeSelection

if TYPE_CHECKING:
    from localpuppet.fleet.agent.confirmation import Confirmation
    from localpuppet.fleet.exports.collectors import RejectedResource
    from localpuppet.fleet.requests.request import Arguments
    from localpuppet.node.runs.run_records import RunDirectory

# Exported resources that `status` names, of those that a run left out.
SHOWN = 3


class FleetAdditions(CommandAdditions):
    """The fleet's additions to commands of a node."""

    def __init__(self, node: NodeApp) -> None:
        self._node = node

    def ask(
        self,
        selection: NodeSelection,
        action: str,
        *,
        as_json: bool,
        limit: int | None = None,
        **values: str | None,
    ) -> int:
        """Send a request to other nodes; see `ask_nodes`."""
        from localpuppet.fleet.cli.requests import ask_nodes, chosen

        arguments = _arguments(action, values)
        names = chosen(self._node, selection, acts=action in ("disable", "enable"))
        return ask_nodes(self._node, names, action, arguments, as_json=as_json, limit=limit)

    def history(self, selection: NodeSelection, *, limit: int, as_json: bool) -> int:
        """Show the runs of other nodes; see `show_histories`."""
        from localpuppet.fleet.cli.node_records import show_histories
        from localpuppet.fleet.cli.requests import chosen

        names = chosen(self._node, selection, acts=False)
        return show_histories(self._node, names, limit=limit, as_json=as_json)

    def status(self, run: "RunDirectory | None", *, rolled_back: bool) -> CommandAddition:
        """Return which exported resources the run left out, and the state of a confirmation."""
        named, more = _left_out(run)
        confirmation = self._confirmation()
        rows = []
        if named:
            rows.append(("Left out", click.style(_named(named, more), fg="yellow")))
        if confirmation is not None and confirmation.concerns(rolled_back=rolled_back):
            rows.append(("Unconfirmed", click.style(render.user_text(confirmation), fg="yellow")))
        return CommandAddition(
            fields={
                "confirmation": confirmation.to_public() if confirmation else None,
                "left_out": [asdict(resource) for resource in named],
                "more_left_out": more,
            },
            rows=rows,
        )

    def why(self, run: "RunDirectory", request: Mapping[str, Any]) -> CommandAddition:
        """Return what the run exported, collected and kicked, and which change led to it."""
        from localpuppet.fleet.cli.node_records import changes
        from localpuppet.fleet.edges.kicks import kicked_by

        kicked = kicked_by(self._node.records, run.id)
        confirmation = self._confirmation()
        mine = confirmation is not None and confirmation.run == run.id
        resources = _resources(run)
        kicks = f"{click.style('Kicks', dim=True)}\n{render.hanging('  ', shown_names(kicked))}"
        paragraphs = [changes(request), *resources.paragraphs, kicks if kicked else ""]
        return CommandAddition(
            fields={**resources.fields, "kicks": [*map(str, kicked)]},
            rows=[("Confirmation", render.user_text(confirmation))] if mine else (),
            paragraphs=[text for text in paragraphs if text],
        )

    def _confirmation(self) -> "Confirmation | None":
        """Return the confirmation of the release that was assigned last, if there is one."""
        state = self._node.settings.state
        # Most nodes have none: `status` then saves the imports.
        if not (state / "confirmation.json").exists():
            return None
        from localpuppet.fleet.agent.confirmation import ConfirmationMemory

        return ConfirmationMemory(state).read()

    def report(self, run: "RunDirectory") -> CommandAddition:
        """Return what the run exported and collected."""
        return _resources(run)

    def check(self) -> CommandAddition:
        """Return what the policies allow, and what collectors would take of other nodes now.

        Raises:
            InvalidInputError: The agent has two processes, and its bus is a file.
        """
        from localpuppet.fleet.cli.node_records import check_fleet

        return check_fleet(self._node)


def _arguments(action: str, values: Mapping[str, str | None]) -> "Arguments":
    from localpuppet.fleet.requests.request import Disable, Enable, RunArguments, StatusRequest

    if action == "status":
        return StatusRequest()
    if action == "disable":
        message = parse_line(values["message"] or "", what="message")
        return Disable(message=message, length=values["length"])
    return Enable() if action == "enable" else RunArguments.named(values["run"])


def _left_out(run: "RunDirectory | None") -> "tuple[list[RejectedResource], int]":
    """Return which resources the collectors of a run left out, and how many more."""
    # Most runs have none: this saves 20 ms of imports.
    if run is None or not run.collected.exists():
        return [], 0
    from localpuppet.fleet.exports.recording import read_collected

    collected = read_collected(run)
    named = [left for collector in collected for left in collector.left_out]
    return named, sum(collector.more_left_out for collector in collected)


def _named(left_out: "Sequence[RejectedResource]", more: int) -> str:
    named = [f"{one_line(resource.resource)} of {resource.node}" for resource in left_out[:SHOWN]]
    rest = len(left_out[SHOWN:]) + more
    if rest:
        named.append(f"{rest} more")
    return f"{', '.join(named)}: 'localpuppet why' says the reasons"


def _resources(run: "RunDirectory") -> CommandAddition:
    """Return what a run exported and collected."""
    from localpuppet.fleet.cli.node_records import lines
    from localpuppet.fleet.exports.recording import read_collected, read_exports

    collected, exported = read_collected(run), read_exports(run)
    return CommandAddition(
        fields={
            "collected": [collector.to_dict() for collector in collected],
            "exports": [resource.ref for resource in exported],
        },
        paragraphs=[lines(collected, len(exported))] if collected or exported else (),
    )
