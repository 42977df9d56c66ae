"""The only place that picks adapters: from a root and its settings to working parts."""

import os
import sys
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet import share
from localpuppet.errors import PuppetMissingError
from localpuppet.formats.documents import Documents
from localpuppet.machine.files import refuse_foreign
from localpuppet.settings import node as node_settings

if TYPE_CHECKING:
    # Each verb pays only for the parts that it asks for: see docs/performance.md.
    from collections.abc import Callable, Iterator

    from localpuppet.enc.command import EncCommand
    from localpuppet.enc.input import Fetch
    from localpuppet.formats.names import NodeName, ReleasePath
    from localpuppet.machine.clock import SystemClock
    from localpuppet.machine.processes import SystemProcesses
    from localpuppet.puppet.command import Call
    from localpuppet.puppet.installation import Installation
    from localpuppet.releases.git.mirrors import Git
    from localpuppet.releases.git.repository import Repository
    from localpuppet.releases.ledger import Ledger
    from localpuppet.releases.locker import Locker
    from localpuppet.releases.packages.building import Packager
    from localpuppet.releases.packages.staging import Importer
    from localpuppet.releases.packages.tools import SystemPackageTools
    from localpuppet.releases.release import Release
    from localpuppet.releases.staging import Approve, Staging
    from localpuppet.releases.store import Store
    from localpuppet.runs.holds import Holds
    from localpuppet.runs.observer import Observer
    from localpuppet.runs.options import Wish
    from localpuppet.runs.records import Records
    from localpuppet.runs.supervisor import Supervisor


# What every Puppet run of ours finds behind the release: types, functions, classes.
OWN_MODULES = share.path("modules/localpuppet")
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Parts:
    """Builds each part when it is first asked for: `status` needs few of them.

    Args:
        root: What `--root` said.
    """

    def __init__(self, root: str | None) -> None:
        self.root_option = root

    @cached_property
    def clock(self) -> "SystemClock":
        """Time."""
        from localpuppet.machine.clock import SystemClock

        return SystemClock()

    @cached_property
    def processes(self) -> "SystemProcesses":
        """Processes of this machine."""
        from localpuppet.machine.processes import SystemProcesses

        return SystemProcesses()

    @cached_property
    def _root(self) -> Path:
        return node_settings.find_root(self.root_option, os.environ)

    @cached_property
    def documents(self) -> Documents:
        """Reads documents; remembers in the state directory of the root, where it may."""
        return Documents(node_settings.state_directory(self._root) / "cache" / "documents")

    @cached_property
    def settings(self) -> node_settings.Settings:
        """The settings of the root."""
        return node_settings.load(self._root, self.documents)

    @cached_property
    def records(self) -> "Records":
        """The runs of this node."""
        from localpuppet.runs.records import Records

        return Records(self.settings.state / "runs", self.processes)

    def fetch(self) -> "Fetch":
        """Return the https client."""
        from localpuppet.wiring.fetching import LazyHttps

        return LazyHttps(self.settings)

    @cached_property
    def environment(self) -> dict[str, str]:
        """The environment for Puppet and the ENC: ours, with a PATH in any case (cron, env -i)."""
        return {"PATH": DEFAULT_PATH, **os.environ}

    def installation(self, *, ask: bool) -> "Installation | None":
        """Return the installed Puppet.

        Args:
            ask: Ask it, if it is not known yet; otherwise `None` says "not known".

        Raises:
            PuppetMissingError: There is none, or it does not answer.
        """
        from localpuppet.puppet.probe import PuppetProbe

        probe = PuppetProbe(
            self.settings.state / "cache" / "puppet.json",
            command=self.settings.puppet,
            directories=self.settings.puppet_directories,
            lean_start=share.path("lean_start.rb"),
            env=self.environment,
        )
        return probe.installation() if ask else probe.known()

    def node_name(self) -> "NodeName":
        """Return this node's name: the setting, or Puppet's certname in lower case.

        Raises:
            InvalidInputError: It is no node's name.
            PuppetMissingError: It is not set, and there is no Puppet to ask.
        """
        from localpuppet.formats.names import NodeName
        from localpuppet.settings import fleet

        said = fleet.load(self.settings, self.documents).node
        if said is not None:
            return said
        return NodeName.parse(self.installed().settings["certname"].lower())

    def holds(self, *, ask: bool) -> "Holds":
        """Return the holds on this node; see `installation` for `ask`."""
        from localpuppet.runs.holds import Holds

        installation = self.installation(ask=ask)
        return Holds(
            self.settings.state / "holds",
            installation.disable_file if installation else None,
            self.clock,
        )

    def release(self, app: str) -> "Release":
        """Return the release that an input names.

        Raises:
            InvalidInputError: It is refused.
        """
        from localpuppet.formats.names import ReleasePath
        from localpuppet.releases.release import resolve

        path = ReleasePath.parse(app, where="app")
        return resolve(
            path,
            modules=self.settings.modules,
            store=self.settings.state,
            allow_file=self.settings.allow_file_urls,
            documents=self.documents,
            immutable_only=self.settings.immutable_only,
        )

    def enc_command(self) -> "EncCommand | None":
        """Return the site's own ENC command, if it has one.

        Raises:
            InvalidInputError: The setting is no command.
        """
        from localpuppet.enc.command import EncCommand

        settings = self.settings
        if settings.enc is None:
            return None
        return EncCommand.parse(settings.enc, timeout=settings.enc_timeout, env=self.environment)

    def call(
        self, installation: "Installation", release: "Release", environment: str, wish: "Wish"
    ) -> "Call":
        """Return the `puppet apply` for a release."""
        from localpuppet.puppet.command import Call

        settings = self.settings
        return Call(
            command=installation.command,
            own_directories=settings.puppet_directories,
            enc_script=settings.enc_script,
            node_document=settings.node_document,
            environments=settings.state / "environments",
            environment=environment,
            # Our own modules come last: a site's module of the same name hides them.
            modulepath=(*release.modulepath, OWN_MODULES),
            hiera_config=release.hiera_config,
            noop=wish.noop,
            tags=wish.tags,
            extra=wish.extra,
            site_manifest=settings.site_manifest,
        )

    def installed(self) -> "Installation":
        """Return the installed Puppet.

        Raises:
            PuppetMissingError: There is none, or it does not answer.
        """
        found = self._installation_or_problem()
        if isinstance(found, PuppetMissingError):
            raise found
        return found

    def _installation_or_problem(self) -> "Installation | PuppetMissingError":
        """Return Puppet, or why it cannot be used: that is for the record to say."""
        try:
            found = self.installation(ask=True)
        except PuppetMissingError as error:
            return error
        return found or PuppetMissingError("Puppet was not found")

    def supervisor(self, observer: "Observer") -> "Supervisor":
        """Return what runs Puppet on this node.

        Raises:
            InvalidInputError: A setting is refused.
        """
        from localpuppet.releases.interfaces import check_kept
        from localpuppet.runs.supervisor import Node, Supervisor
        from localpuppet.wiring.puppet_environment import telling

        settings = self.settings
        for script in (settings.enc_script, settings.site_manifest):
            refuse_foreign(script)
        node = Node(
            state=settings.state,
            installation=self._installation_or_problem(),
            call=self.call,
            reports=settings.reports,
            lean_start=share.path("lean_start.rb"),
            route_file=share.path("routes.yaml"),
            env=self.environment,
            enc_command=self.enc_command(),
            grace=settings.grace,
            min_free=settings.min_free,
            keep_runs=settings.keep_runs,
            keep_days=settings.keep_days,
            metrics=settings.metrics,
            fits=partial(check_kept, self),
            telling=telling(settings),
        )
        return Supervisor(
            node,
            clock=self.clock,
            processes=self.processes,
            documents=self.documents,
            observer=observer,
        )

    @cached_property
    def store(self) -> "Store":
        """The content store."""
        from localpuppet.releases.store import Store

        return Store(self.settings.state)

    @cached_property
    def ledger(self) -> "Ledger":
        """What was applied on this node."""
        from localpuppet.releases.ledger import Ledger

        return Ledger(self.settings.state)

    def git(self, progress: "Callable[[int, int], None] | None" = None) -> "Git":
        """Return git, with `progress` told of fetches."""
        from localpuppet.releases.git.mirrors import Git

        return Git(
            self.settings.state / "mirrors",
            env=self.environment,
            allow_file=self.settings.allow_file_urls,
            timeout=self.settings.git_timeout,
            progress=progress or (lambda _done, _all: None),
        )

    @contextmanager
    def git_progress(self, title: str) -> "Iterator[Git]":
        """Yield git, and show on a terminal how far its fetches are."""
        from localpuppet.cli import render

        observer = render.observer(quiet=not render.on_terminal(sys.stdout), title=title)
        observer.begin()
        try:
            yield self.git(observer.count)
        finally:
            observer.close()

    def staging(
        self,
        repository: "Repository",
        approve: "Approve | None" = None,
    ) -> "Staging":
        """Return the releases on this node; see `Staging` for `approve`."""
        from localpuppet.releases.staging import Staging

        settings = self.settings
        return Staging(
            state=settings.state,
            modules=settings.modules,
            store=self.store,
            repository=repository,
            sources=settings.sources,
            documents=self.documents,
            allow_file=settings.allow_file_urls,
            approve=approve,
        )

    def importer(
        self,
        repository: "Repository",
        approve: "Approve | None" = None,
    ) -> "Importer":
        """Return what stages releases from git, installed packages and packs."""
        from localpuppet.releases.packages.staging import Importer

        settings = self.settings
        return Importer(
            staging=self.staging(repository, approve),
            store=self.store,
            directories=settings.packages,
            sources=settings.sources,
            documents=self.documents,
            allow_file=settings.allow_file_urls,
        )

    def package_tools(self) -> "SystemPackageTools":
        """Return the programs that build and install packages."""
        from localpuppet.releases.packages.tools import SystemPackageTools

        return SystemPackageTools(env=self.environment, timeout=self.settings.git_timeout)

    def packager(self, repository: "Repository") -> "Packager":
        """Return what makes packages."""
        from localpuppet.releases.packages.building import Packager

        return Packager(
            staging=self.staging(repository),
            store=self.store,
            repository=repository,
            tools=self.package_tools(),
            directories=self.settings.packages,
        )

    def locker(self, repository: "Repository") -> "Locker":
        """Return what makes locks."""
        from localpuppet.releases.locker import Locker

        return Locker(
            repository=repository,
            store=self.store,
            sources=self.settings.sources,
            documents=self.documents,
            allow_file=self.settings.allow_file_urls,
        )

    def named_apps(self) -> "list[ReleasePath]":
        """Return the releases that the inputs in the root name.

        Raises:
            InvalidInputError: An input is refused: what it names could not be kept.
        """
        from localpuppet.enc.input import read_input

        settings = self.settings
        found = [settings.input, *sorted(settings.inputs.glob("*.yaml"))]
        return [
            read_input(str(path), documents=self.documents, fetch=self.fetch()).input.app
            for path in found
            if path.exists()
        ]

    def input_app(self) -> "ReleasePath":
        """Return the release that the node's input names.

        Raises:
            InvalidInputError: The input is refused.
        """
        from localpuppet.enc.input import read_input

        source = str(self.settings.input)
        return read_input(source, documents=self.documents, fetch=self.fetch()).input.app
