"""Ports to which layers above connect; a node alone has these no-op defaults."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError

if TYPE_CHECKING:
    from localpuppet.base.formats.names import NodeName, ReleasePath
    from localpuppet.base.formats.values import Json
    from localpuppet.node.releases.ledger import AppliedElsewhere
    from localpuppet.node.releases.staged import Staged
    from localpuppet.node.runs.records import RunDirectory
    from localpuppet.node.runs.run import Status


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
            note: Takes what a person should read.
        """
        return None

    def facts(self, name: "NodeName") -> "Mapping[str, Json] | None":
        """Return the facts of another node; `None` if it has published none.

        Raises:
            InvalidInputError: The node is alone.
            UnavailableError: The other nodes cannot be asked.
        """
        raise InvalidInputError(f"this node has no bus to ask for the facts of {name}")

    def compare_tag(self, staged: "Staged") -> None:
        """Refuse a tag that this node sees for the first time and that is another on other nodes.

        Raises:
            IntegrityError: Other nodes report other commits, and none reports this one.
            StateError: What this node remembers of tags is damaged.
        """

    def after_run(self, note: Callable[[str], None], run: "RunDirectory", status: "Status") -> None:
        """Publish a run that is over; a failure is noted and changes nothing about the run.

        Args:
            note: Takes what a person should read.
            run: The run.
            status: Its end.
        """
