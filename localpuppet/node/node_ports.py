"""Ports of a node to the nodes around it, for layers above: nothing happens if it is alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.value import Value

if TYPE_CHECKING:
    from localpuppet.base.formats.names import NodeName, ReleasePath
    from localpuppet.base.formats.values import Json
    from localpuppet.node.releases.release_records import AppliedElsewhere, StagedRelease
    from localpuppet.node.runs.run import Attempt, Status
    from localpuppet.node.runs.run_records import RunDirectory


class Neighbours:
    """What other nodes have to do with a run of this node: nothing, if the node is alone."""

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables by which Puppet code in a run reaches other nodes."""
        return {}

    @property
    def certname(self) -> str:
        """The name by which other nodes know this node; empty for Puppet's own setting."""
        return ""

    @property
    def exchange_resources(self) -> bool:
        """Whether a catalog exports resources and collects those of other nodes."""
        return False

    def applied_elsewhere(
        self, app: "ReleasePath", note: Callable[[str], None]
    ) -> "AppliedElsewhere | None":
        """Return the release of the same source that this node applied before its reinstallation.

        Args:
            app: The release of a source of which this node has no record.
        """
        return None

    def facts(self, name: "NodeName") -> "Mapping[str, Json] | None":
        """Return the facts of another node; `None` if it has published none.

        Raises:
            InvalidInputError: The node is alone.
        """
        raise InvalidInputError(f"this node has no bus to ask for the facts of {name}")

    def compare_tag(self, staged: "StagedRelease") -> None:
        """Reject a tag that is new to this node and differs on other nodes.

        Raises:
            IntegrityError: Other nodes report other commits, and none reports this one.
        """

    def after_run(self, note: Callable[[str], None], run: "RunDirectory", status: "Status") -> None:
        """Publish a run that is over; a failure is noted and changes nothing about the run."""

    def after_refusal(self, note: Callable[[str], None], attempt: "Attempt") -> None:
        """Publish an apply that was refused before it had a record; see `after_run`."""

    def after_command(
        self, note: Callable[[str], None], user: str, action: str, subject: str
    ) -> None:
        """Publish that a user changed the holds on this node by a command; see `after_run`.

        Args:
            action: `disable` or `enable`.
            subject: What the command was about, in one line.
        """


class CommandAddition(Value):
    """What a layer above adds to the output of a command; `fields` are keys of the JSON."""

    fields: "Mapping[str, Json]" = field(default_factory=dict)
    rows: Sequence[tuple[str, str]] = ()
    paragraphs: Sequence[str] = ()
    warnings: Sequence[str] = ()


class NodeSelection(Value):
    """The nodes that a command is for, as its words name them; false if they name none.

    A node must match each of the parts that are given. `failed_in` is the id of a rollout in which
    the nodes did not succeed.
    """

    nodes: Sequence[str] = ()
    query: str | None = None
    roles: Sequence[str] = ()
    failed_in: str | None = None
    without: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.nodes or self.roles or self.failed_in or self.query is not None)


class CommandAdditions:
    """What other nodes have to do with commands of this node: nothing, if the node is alone."""

    def ask(
        self,
        selection: NodeSelection,
        action: str,
        *,
        as_json: bool,
        limit: int | None = None,
        **values: str | None,
    ) -> int:
        """Ask other nodes for an action, show their answers, and return the exit code.

        Args:
            action: `status`, `log`, `report`, `disable` or `enable`.
            limit: How many lines of a log, or resources of a kind, to show; `None` for all.

        Raises:
            InvalidInputError: The node is alone, or an argument is refused.
        """
        raise InvalidInputError("this node has no bus to ask other nodes", where="--node")

    def history(self, selection: NodeSelection, *, limit: int, as_json: bool) -> int:
        """Show the runs of other nodes that they published, and return the exit code.

        Raises:
            InvalidInputError: The node is alone.
        """
        raise InvalidInputError("this node has no bus with runs of other nodes", where="--node")

    def status(self, run: "RunDirectory | None", *, rolled_back: bool) -> CommandAddition:
        """Return what to add to `status`."""
        return CommandAddition()

    def why(self, run: "RunDirectory", request: Mapping[str, Any]) -> CommandAddition:
        """Return what to add to `why` of a run, of which `request` is the `request.json`."""
        return CommandAddition()

    def report(self, run: "RunDirectory") -> CommandAddition:
        """Return what to add to `report` of a run."""
        return CommandAddition()

    def check(self) -> CommandAddition:
        """Return what to add to `check`.

        Raises:
            LocalpuppetError: A policy is refused, or a record cannot be read.
        """
        return CommandAddition()
