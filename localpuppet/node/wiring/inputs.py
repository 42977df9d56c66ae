"""Builds the reader of inputs, and the instance data of this machine."""

from functools import cached_property
from typing import TYPE_CHECKING

from localpuppet.node.enc.https import Https
from localpuppet.node.enc.input import InputReader
from localpuppet.node.wiring.node import NodeWiring

if TYPE_CHECKING:
    from localpuppet.node.enc.assignment import Assignment
    from localpuppet.node.enc.instance.source import InstanceSource


class NodeInputs:
    """The reader of inputs, and the instance data: its service is asked once.

    Args:
        node: The settings and documents of the root.
    """

    def __init__(self, node: NodeWiring) -> None:
        self._node = node

    @cached_property
    def reader(self) -> InputReader:
        """The reader of inputs."""
        settings = self._node.settings
        return InputReader(
            documents=self._node.documents,
            fetch=Https(ca=settings.https_ca, timeout=settings.https_timeout),
            user_data=lambda: self.instance.input(),
            assigned=self._assignment,
        )

    @cached_property
    def instance(self) -> "InstanceSource":
        """The instance data of this machine."""
        # Most inputs are files, and their readers do not pay for clouds.
        from localpuppet.node.wiring.instance import instance_source

        return instance_source(self._node.settings, lambda: self._node.processes.me().boot_id)

    def _assignment(self) -> "Assignment | None":
        from localpuppet.node.enc.assigned import AssignedRelease

        return AssignedRelease(self._node.settings.state).read()
