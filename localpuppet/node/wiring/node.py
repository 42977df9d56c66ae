"""Builds the parts that most verbs need: settings, records, holds, Puppet, layers above.

Each part is built at first use, because `status` needs only a few.
"""

import os
import pwd
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.documents import Documents
from localpuppet.base.value import Value
from localpuppet.node.enc.instance.source import InstanceSource
from localpuppet.node.runs.observer import SilentObserver
from localpuppet.node.settings import node as node_settings
from localpuppet.node.settings.node import SettingsFile, read_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from localpuppet.base.formats.names import NodeName, ReleasePath
    from localpuppet.base.formats.values import Json
    from localpuppet.node.enc.instance.data import InstanceData, Service
    from localpuppet.node.releases.ledger import AppliedElsewhere
    from localpuppet.node.releases.staged import StagedRelease
    from localpuppet.node.runs.records import RunDirectory
    from localpuppet.node.runs.run import Attempt, Status
    from localpuppet.node.settings.node import Settings


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
            note: Takes messages for people.
        """
        return None

    def facts(self, name: "NodeName") -> "Mapping[str, Json] | None":
        """Return the facts of another node; `None` if it has published none.

        Raises:
            InvalidInputError: The node is alone.
            UnavailableError: The other nodes are unreachable.
        """
        raise InvalidInputError(f"this node has no bus to ask for the facts of {name}")

    def compare_tag(self, staged: "StagedRelease") -> None:
        """Reject a tag that is new to this node and differs on other nodes.

        Raises:
            IntegrityError: Other nodes report other commits, and none reports this one.
        """

    def after_run(self, note: Callable[[str], None], run: "RunDirectory", status: "Status") -> None:
        """Publish a run that is over; a failure is noted and changes nothing about the run.

        Args:
            note: Takes messages for people.
            run: The run.
            status: Its end.
        """

    def after_refusal(self, note: Callable[[str], None], attempt: "Attempt") -> None:
        """Publish an apply that was refused before it had a record; see `after_run`."""

    def after_command(
        self, note: Callable[[str], None], user: str, action: str, subject: str
    ) -> None:
        """Publish that a user changed the holds on this node by a command; see `after_run`.

        Args:
            note: Takes messages for people.
            user: The user.
            action: `disable` or `enable`.
            subject: What the command was about, in one line.
        """


class CommandAddition(Value):
    """What a layer above adds to the output of a command.

    Attributes:
        fields: Further keys of the JSON document.
        rows: Further rows, each with a label.
        paragraphs: Further paragraphs.
        warnings: Further warnings.
    """

    fields: "Mapping[str, Json]" = field(default_factory=dict)
    rows: Sequence[tuple[str, str]] = ()
    paragraphs: Sequence[str] = ()
    warnings: Sequence[str] = ()


class CommandAdditions:
    """What other nodes have to do with commands of this node: nothing, if the node is alone."""

    def ask(self, nodes: Sequence[str], action: str, *, as_json: bool, **values: str | None) -> int:
        """Ask other nodes for an action, show their answers, and return the exit code.

        Args:
            nodes: Their names.
            action: `status`, `log`, `report`, `disable` or `enable`.
            as_json: Show the answers as JSON.
            values: The arguments of the action.

        Raises:
            InvalidInputError: The node is alone, or an argument is refused.
        """
        raise InvalidInputError("this node has no bus to ask other nodes", where="--node")

    def history(self, nodes: Sequence[str], *, limit: int, as_json: bool) -> int:
        """Show the runs of other nodes that they published, and return the exit code.

        Args:
            nodes: Their names.
            limit: How many runs of each node to show.
            as_json: Show them as JSON.

        Raises:
            InvalidInputError: The node is alone.
        """
        raise InvalidInputError("this node has no bus with runs of other nodes", where="--node")

    def status(self, run: "RunDirectory | None", *, rolled_back: bool) -> CommandAddition:
        """Return what to add to `status`.

        Args:
            run: The run that is shown; `None` without one.
            rolled_back: Whether a rollback is in force.
        """
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

        return instance_source(self._node.settings, lambda: self._node.processes.me().boot_id)

    def _assignment(self) -> "Assignment | None":
        from localpuppet.node.enc.assignment import AssignedRelease

        return AssignedRelease(self._node.settings.state).read()


def instance_source(settings: "Settings", boot_id: "Callable[[], str]") -> InstanceSource:
    """Return the source of this node's instance data.

    cloud-init's user data belongs to root; other users read it only if the site sets its
    directories.
    """
    instance = settings.instance
    looks = instance.asked_for or os.geteuid() == 0
    return InstanceSource(
        files=instance.files if looks else None,
        service=instance.service,
        ask=partial(_ask, settings),
        memory=settings.state / "instance" / "answer.json",
        boot_id=boot_id,
    )


def _ask(settings: "Settings", service: "Service") -> "InstanceData":
    from localpuppet.node.enc.instance.services import (
        MetadataClient,
        ask_service,
        newest_lease,
        server_of,
    )

    lease = partial(newest_lease, settings.instance.leases, owners=_network_users())
    return ask_service(service, MetadataClient(server_of(service, lease)))


def _network_users() -> list[int]:
    """Return the user of systemd-networkd, who writes its leases; none without one."""
    try:
        return [pwd.getpwnam("systemd-network").pw_uid]
    except KeyError:
        return []
