"""Builds the parts that most verbs need from a root and its settings: records, holds, Puppet.

Each part is built at first use, because `status` needs only a few.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from localpuppet.base.formats.documents import Documents
from localpuppet.base.value import Value
from localpuppet.node.runs.observer import SilentObserver
from localpuppet.node.settings import node as node_settings
from localpuppet.node.settings.node import SettingsFile, read_settings
from localpuppet.node.wiring.ports import CommandAdditions, Neighbours

if TYPE_CHECKING:
    from localpuppet.base.machine.clock import SystemClock
    from localpuppet.base.machine.ports import Progress
    from localpuppet.base.machine.processes import SystemProcesses
    from localpuppet.node.enc.assignment import Assignment
    from localpuppet.node.enc.input import InputReader
    from localpuppet.node.enc.instance.source import InstanceSource

    T = TypeVar("T")

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

SectionReader = Callable[[SettingsFile], Any]


class NodePorts(Value):
    """The additions of layers above to a node.

    Attributes:
        sections: Returns the readers of further sections of `localpuppet.yaml`, given its keys; an
            invalid section is an error for every command.
        neighbours: Returns what runs need of other nodes.
        additions: Returns the additions to commands.
    """

    sections: Callable[[Collection[str]], Sequence[SectionReader]] = lambda _keys: ()
    neighbours: "Callable[[NodeWiring], Neighbours]" = lambda _node: Neighbours()
    additions: "Callable[[NodeWiring], CommandAdditions]" = lambda _node: CommandAdditions()


ALONE = NodePorts()


class NodeWiring:
    """The parts of a node.

    Args:
        root: The value of `--root`.
        observe: Returns a progress display with a title.
        ports: The additions of layers above.
    """

    def __init__(
        self,
        root: str | None,
        *,
        observe: "Callable[[str], Progress]" = SilentObserver,
        ports: NodePorts = ALONE,
    ) -> None:
        self._root_option = root
        self.observe = observe
        self._ports = ports
        self._sections: dict[SectionReader, Any] = {}

    def again(self) -> "NodeWiring":
        """Return the parts of the same root with freshly read settings."""
        return NodeWiring(str(self.settings.root), ports=self._ports)

    @cached_property
    def neighbours(self) -> Neighbours:
        """The other nodes."""
        return self._ports.neighbours(self)

    @cached_property
    def additions(self) -> CommandAdditions:
        """The additions to commands."""
        return self._ports.additions(self)

    @cached_property
    def clock(self) -> "SystemClock":
        """The clock."""
        from localpuppet.base.machine.clock import SystemClock

        return SystemClock()

    @cached_property
    def processes(self) -> "SystemProcesses":
        """The processes of this machine."""
        from localpuppet.base.machine.processes import SystemProcesses

        return SystemProcesses()

    @cached_property
    def _root(self) -> Path:
        return node_settings.find_root(self._root_option, os.environ)

    @cached_property
    def documents(self) -> Documents:
        """The reader of documents, with a cache in the state directory if that is writable."""
        return Documents(node_settings.state_directory(self._root) / "cache" / "documents")

    @cached_property
    def _raw_settings(self) -> Mapping[str, Any]:
        file = self._root / node_settings.FILE
        return read_settings(file, schema="settings", documents=self.documents)

    @cached_property
    def settings(self) -> node_settings.Settings:
        """The settings of the root, with checked sections of layers above."""
        for read in self._ports.sections(self._raw_settings.keys()):
            self.section(read)
        return self._own_settings

    def for_makers(self) -> "NodeWiring":
        """Return the parts with a state directory that the maker of a release can write to."""
        wiring = NodeWiring(self._root_option, observe=self.observe, ports=self._ports)
        state = node_settings.makers_state(self.settings.state, os.environ)
        wiring.settings = replace(self.settings, state=state)
        return wiring

    @cached_property
    def _own_settings(self) -> node_settings.Settings:
        return node_settings.settings_of(self._root, self._raw_settings)

    @cached_property
    def _settings_file(self) -> SettingsFile:
        """The settings file of the root, in which each layer has its section."""
        return SettingsFile(
            root=self._root,
            state=self._own_settings.state,
            path=self._root / node_settings.FILE,
            raw=self._raw_settings,
            documents=self.documents,
        )

    def section(self, read: "Callable[[SettingsFile], T]") -> "T":
        """Return the section of a layer above; read it once.

        Args:
            read: Reads the section.

        Raises:
            InvalidInputError: A setting is invalid.
        """
        if read not in self._sections:
            self._sections[read] = read(self._settings_file)
        section: T = self._sections[read]
        return section


def program_environment() -> dict[str, str]:
    """Return this process's environment for Puppet and the ENC, with a PATH even under cron."""
    return {"PATH": DEFAULT_PATH, **os.environ}


class NodeInputs:
    """The reader of inputs, and the instance data: its service is asked once.

    Args:
        node: The settings and documents of the root.
    """

    def __init__(self, node: NodeWiring) -> None:
        self._node = node

    @cached_property
    def reader(self) -> "InputReader":
        """The reader of inputs."""
        from localpuppet.node.enc.https import Https
        from localpuppet.node.enc.input import InputReader

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
        from localpuppet.node.enc.assignment import AssignedRelease

        return AssignedRelease(self._node.settings.state).read()
