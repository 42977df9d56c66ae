"""The parts of a node: one object builds them for commands, the agent and the layers above.

Each part is built at its first use, and its modules are imported then: `status` and `enc` need only
a few. Classes below take plain values and never this object.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from localpuppet.base.errors import InvalidInputError, PuppetMissingError, StateError
from localpuppet.base.formats.documents import Documents
from localpuppet.base.machine.own_program import shared_file
from localpuppet.base.value import Value
from localpuppet.node import settings as node_settings
from localpuppet.node.node_ports import CommandAdditions, Neighbours
from localpuppet.node.runs.observer import NoteObserver
from localpuppet.node.settings import SettingsFile, read_settings

if TYPE_CHECKING:
    from localpuppet.base.formats.names import NodeName, ReleasePath
    from localpuppet.base.machine.fork_server import ForkServerClient
    from localpuppet.base.machine.ports import Progress
    from localpuppet.base.machine.process_table import SystemClock
    from localpuppet.base.machine.processes import SystemProcesses
    from localpuppet.node.candidates import Candidate, NodeCatalogs
    from localpuppet.node.enc.assignment import Assignment
    from localpuppet.node.enc.input import InputReader
    from localpuppet.node.enc.instance_data import InstanceData, Service
    from localpuppet.node.enc.instance_facts import InstanceSource
    from localpuppet.node.preview.engine import PuppetCompileEngine
    from localpuppet.node.preview.workspace import PreviewWorkspace
    from localpuppet.node.puppet.command_line import ApplyCommand, Compilation, LeanStart
    from localpuppet.node.puppet.installation import Installation
    from localpuppet.node.releases.branches import CodeSupply, MutableCode
    from localpuppet.node.releases.fetch import Supply
    from localpuppet.node.releases.git.access import GitAccess
    from localpuppet.node.releases.git.mirrors import Git
    from localpuppet.node.releases.git.program import GitProgram
    from localpuppet.node.releases.manifest import ReleaseFiles
    from localpuppet.node.releases.modules import ModuleAccess
    from localpuppet.node.releases.packages.package_staging import PackageStaging
    from localpuppet.node.releases.packages.tools import SystemPackageTools
    from localpuppet.node.releases.release import Release
    from localpuppet.node.releases.release_records import (
        AppliedElsewhere,
        Ledger,
        Rollback,
        StagedRelease,
    )
    from localpuppet.node.releases.staging import Approve, GarbageCollector, ReleaseStaging
    from localpuppet.node.releases.store import Store
    from localpuppet.node.runs.attempts import Attempts
    from localpuppet.node.runs.classifier import Classifier
    from localpuppet.node.runs.holds import Holds
    from localpuppet.node.runs.interface_reader import InterfaceReader, Parser
    from localpuppet.node.runs.observer import Observer
    from localpuppet.node.runs.options import RunOptions
    from localpuppet.node.runs.preparing import AssignmentService, ReleaseProvider, RunPreparation
    from localpuppet.node.runs.puppet_calls import PuppetCaller
    from localpuppet.node.runs.release_check import CheckedRelease
    from localpuppet.node.runs.run import Status
    from localpuppet.node.runs.run_records import GoodRuns, Records, RunDirectory
    from localpuppet.node.runs.supervisor import Supervisor
    from localpuppet.node.sealed.authoring import Keys
    from localpuppet.node.sealed.sealed_findings import SealedFindings
    from localpuppet.node.sealed.serving import SealedServer
    from localpuppet.node.sealed.tree import SealedOpener
    from localpuppet.node.sealed.trust import SealedRepository, SealedTrust

    T = TypeVar("T")


SectionReader = Callable[[SettingsFile], Any]


class NodePorts(Value):
    """The additions of layers above to a node.

    Attributes:
    `sections` returns the readers of further sections of `localpuppet.yaml`, given its keys; an
    invalid section is an error for every command. `failed_in` returns the nodes that did not
    succeed in a rollout.
    """

    sections: Callable[[Collection[str]], Sequence[SectionReader]] = lambda _keys: ()
    neighbours: "Callable[[NodeApp], Neighbours]" = lambda _node: Neighbours()
    additions: "Callable[[NodeApp], CommandAdditions]" = lambda _node: CommandAdditions()
    failed_in: "Callable[[NodeApp, str], Collection[NodeName]]" = lambda _node, _rollout: ()


ALONE = NodePorts()
# Types, functions and classes that every run finds after the release's.
OWN_MODULES = shared_file("modules/localpuppet")
# Variables of the job that the compiler of a preview gets: no others, because a job's have secrets.
KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ")
# Directories of localpuppet's own unit. OpenVox 9 takes the first for its own, and gives it to the
# user puppet.
_OF_UNIT = tuple(
    f"{kind}_DIRECTORY" for kind in ("RUNTIME", "STATE", "CACHE", "LOGS", "CONFIGURATION")
)


def program_environment() -> dict[str, str]:
    """Return this process's environment for Puppet and the ENC, with a PATH even under cron."""
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    kept = {name: value for name, value in os.environ.items() if name not in _OF_UNIT}
    return {"PATH": path, **kept}


class NodeApp:
    """The parts of a node, for one command."""

    def __init__(
        self,
        root: str | None,
        *,
        observe: "Callable[[str], Progress]" = NoteObserver,
        ports: NodePorts = ALONE,
    ) -> None:
        self._root_option = root
        self.observe = observe
        self._ports = ports
        self._sections: dict[SectionReader, Any] = {}
        self._shown: Progress | None = None  # shows progress of fetches

    def at(self, root: str) -> "NodeApp":
        """Return the parts of another root."""
        return NodeApp(root, observe=self.observe, ports=self._ports)

    def again(self) -> "NodeApp":
        """Return the parts of the same root with freshly read settings."""
        return NodeApp(str(self.settings.root), ports=self._ports)

    def for_makers(self) -> "NodeApp":
        """Return the parts with a state directory that the maker of a release can write to."""
        app = NodeApp(self._root_option, observe=self.observe, ports=self._ports)
        state = node_settings.makers_state(self.settings.state, os.environ)
        app.settings = replace(self.settings, state=state)
        return app

    @cached_property
    def neighbours(self) -> Neighbours:
        return self._ports.neighbours(self)

    def failed_in(self, rollout: str) -> "Collection[NodeName]":
        """Return the nodes that did not succeed in a rollout."""
        return self._ports.failed_in(self, rollout)

    @cached_property
    def additions(self) -> CommandAdditions:
        return self._ports.additions(self)

    @cached_property
    def clock(self) -> "SystemClock":
        from localpuppet.base.machine.process_table import SystemClock

        return SystemClock()

    @cached_property
    def processes(self) -> "SystemProcesses":
        """The processes of this machine."""
        from localpuppet.base.machine.processes import SystemProcesses

        return SystemProcesses()

    @property
    def note(self) -> Callable[[str], None]:
        """What takes messages for people."""
        return self.observe("").note

    # Settings

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

    @cached_property
    def _own_settings(self) -> node_settings.Settings:
        return node_settings.settings_of(self._root, self._raw_settings)

    def section(self, read: "Callable[[SettingsFile], T]") -> "T":
        """Return the section of a layer above; read it once."""
        if read not in self._sections:
            self._sections[read] = read(
                SettingsFile(
                    root=self._root,
                    state=self._own_settings.state,
                    path=self._root / node_settings.FILE,
                    raw=self._raw_settings,
                    documents=self.documents,
                )
            )
        section: T = self._sections[read]
        return section

    def refuse_foreign_files(self) -> None:
        """Reject unsafe files of the site that a run executes, or that name what it executes.

        Raises:
            InvalidInputError: A file is missing, or others may write it.
        """
        from localpuppet.base.machine.files import refuse_foreign

        # Facter's configuration can name directories of facts, which are programs.
        own = self.settings
        for file in (own.enc_script, own.site_manifest, own.puppet.facter_conf):
            if file is not None:
                refuse_foreign(file)

    # Inputs and node documents

    @cached_property
    def inputs(self) -> "InputReader":
        from localpuppet.node.enc.input import Https, InputReader

        settings = self.settings
        return InputReader(
            documents=self.documents,
            fetch=Https(ca=settings.https_ca, timeout=settings.timeouts.https),
            # Most inputs are files, and their readers do not pay for clouds.
            user_data=lambda: self.instance.input(),
            assigned=self._assignment,
        )

    @cached_property
    def instance(self) -> "InstanceSource":
        """The instance data of this machine, whose service is asked once."""
        from localpuppet.node.enc.instance_facts import InstanceSource

        own = self.settings.instance

        def ask(service: "Service") -> "InstanceData":
            from localpuppet.node.enc.metadata_services import ask_here

            return ask_here(service, own.leases)

        return InstanceSource(
            # cloud-init's user data belongs to root; other users read it only if the site sets its
            # directories.
            files=own.files if own.asked_for or os.geteuid() == 0 else None,
            service=own.service,
            ask=ask,
            memory=self.settings.state / "instance" / "answer.json",
            boot_id=lambda: self.processes.me().boot_id,
        )

    def _assignment(self) -> "Assignment | None":
        from localpuppet.node.enc.assignment import AssignedRelease

        return AssignedRelease(self.settings.state).read()

    @cached_property
    def classifier(self) -> "Classifier":
        """What computes node documents without a run.

        Raises:
            InvalidInputError: The setting `enc` is not a command.
        """
        from localpuppet.node.runs.classifier import Classifier

        settings, enc_command = self.settings, None
        if settings.enc is not None:
            from localpuppet.node.enc.site_command import EncCommand, parse_command

            enc_command = EncCommand(
                argv=parse_command(
                    settings.enc, where=f"{settings.root / node_settings.FILE}: enc"
                ),
                timeout=settings.timeouts.enc,
                env=program_environment(),
                note=self.note,
            )
        return Classifier(
            inputs=self.inputs,
            documents=self.documents,
            resolve=self.resolve,
            enc_command=enc_command,
            certname=lambda: self.require_puppet().settings["certname"],
            processes=lambda: self.processes,
        )

    # What a node keeps about itself

    @cached_property
    def records(self) -> "Records":
        from localpuppet.base.machine.process_table import SystemProcessTable
        from localpuppet.node.runs.run_records import Records

        return Records(self.settings.state / "runs", SystemProcessTable())

    @cached_property
    def ledger(self) -> "Ledger":
        """The order of applied releases, and the rollback in force."""
        from localpuppet.node.releases.release_records import Ledger

        return Ledger(self.settings.state)

    @cached_property
    def good_runs(self) -> "GoodRuns":
        from localpuppet.node.runs.run_records import GoodRuns

        keep = self.settings.keep.releases
        return GoodRuns(self.settings.state / "good_runs", records=self.records, releases=keep)

    @cached_property
    def attempts(self) -> "Attempts":
        """The refused applies."""
        from localpuppet.node.runs.attempts import Attempts, write_system_log

        return Attempts(
            directory=self.settings.state / "attempts",
            own=self.settings.input,
            records=self.records,
            metrics=self.settings.metrics,
            clock=self.clock,
            system_log=write_system_log,
            after_refusal=lambda refused: self.neighbours.after_refusal(write_system_log, refused),
        )

    def holds(self, *, ask: bool) -> "Holds":
        """Return the holds on the node; see `find_puppet` for `ask`."""
        return self._holds(self.find_puppet(ask=ask))

    def _holds(self, puppet: "Installation | None") -> "Holds":
        from localpuppet.node.runs.holds import Holds

        disabled = puppet.disable_file if puppet else None
        return Holds(self.settings.state / "holds", disabled, self.clock)

    def rollback_in_force(self) -> "Rollback | None":
        """Return the rollback in force, or `None`."""
        # Most nodes have none, and `status` does not pay for the ledger then.
        if not (self.settings.state / "rollback.json").exists():
            return None
        assignment = self._assignment()
        serial = 0 if assignment is None else assignment.serial
        return self.ledger.in_force(self.settings.input, serial=serial)

    @cached_property
    def fork_server(self) -> "ForkServerClient":
        """The agent's fork server, whether it is running or not."""
        from localpuppet.base.machine.fork_server import ForkServerClient

        return ForkServerClient(self._fork_server_socket, self.processes)

    def fork_server_memory(self) -> int | None:
        """Return the memory of the agent's fork server in bytes; `None` if it is not running."""
        # Most nodes have none, and `status` does not pay for sockets then.
        return self.fork_server.memory() if self._fork_server_socket.exists() else None

    @property
    def _fork_server_socket(self) -> Path:
        return self.settings.state / "agent" / "fork_server.sock"

    # Puppet

    def find_puppet(self, *, ask: bool) -> "Installation | None":
        """Return the installed Puppet.

        Args:
            ask: Ask Puppet if it is unknown; otherwise `None` means "unknown".
        """
        from localpuppet.node.puppet.installation import PuppetProbe

        settings = self.settings
        probe = PuppetProbe(
            memory=settings.state / "cache" / "puppet.json",
            command=settings.puppet.command,
            directories=settings.puppet.directories,
            lean_start=shared_file("lean_start.rb"),
            env=program_environment(),
        )
        return probe.installation() if ask else probe.known()

    def require_puppet(self) -> "Installation":
        """Return the installed Puppet, with the certname of runs: the setting `node`, if any."""
        installation = self.find_puppet(ask=True)
        if installation is None:
            raise PuppetMissingError("cannot find OpenVox or Puppet")
        if not (name := self.neighbours.certname):
            return installation
        return replace(installation, settings={**installation.settings, "certname": name})

    @property
    def _compiled_directory(self) -> Path | None:
        """The directory of compiled Ruby; `None` if the site disables it."""
        settings = self.settings
        return settings.state / "cache" / "ruby" if settings.puppet.compiled_ruby else None

    def lean_start(self, installation: "Installation | PuppetMissingError") -> "LeanStart":
        """Return how Ruby starts for Puppet in a run.

        Raises:
            StateError: Facter's cache directory cannot be created.
        """
        from localpuppet.base.machine.files import make_private
        from localpuppet.node.puppet.command_line import FacterConf, LeanStart

        facter = None
        if self.settings.puppet.facter_conf is not None:
            cache = self.settings.state / "cache" / "facts"
            make_private(cache)
            facter = FacterConf(file=self.settings.puppet.facter_conf, cache=cache)
        return LeanStart(
            flags=() if isinstance(installation, PuppetMissingError) else installation.lean,
            file=shared_file("lean_start.rb"),
            compiled=self._compiled_directory,
            facter=facter,
        )

    def _reading_environment(
        self, installation: "Installation", base: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Return the environment for what reads code with Puppet's library outside of a run.

        Ruby starts as in a run, from the compiled Ruby of earlier runs, and writes nothing.
        """
        from localpuppet.node.puppet.command_line import (
            PLACEHOLDERS,
            SEALED,
            LeanStart,
            environment,
        )

        lean = LeanStart(
            flags=installation.lean,
            file=shared_file("lean_start.rb"),
            compiled=self._compiled_directory,
            records=False,
        )
        more = {SEALED: PLACEHOLDERS}
        return environment(base or program_environment(), lean=lean, more=more)

    def compilation(
        self, release: "Release", environment: str, environments: Path
    ) -> "Compilation":
        """Return the compilation of a release in an environment below a directory."""
        from localpuppet.node.puppet.command_line import Compilation

        settings = self.settings
        return Compilation(
            own_directories=settings.puppet.directories,
            certname=self.neighbours.certname,
            enc_script=settings.enc_script,
            environments=environments,
            environment=environment,
            environment_code=release.environment_code,
            # localpuppet's modules come last: a site's module of the same name hides them.
            modulepath=(*release.whole_modulepath, OWN_MODULES),
            hiera_config=release.hiera_config,
            site_manifest=release.site_manifest or settings.site_manifest,
            immutable=release.is_immutable,
        )

    @cached_property
    def puppet_caller(self) -> "PuppetCaller":
        """What calls Puppet for lookups and facts, and applies nothing."""
        from localpuppet.node.runs.puppet_calls import PuppetCaller

        return PuppetCaller(
            state=self.settings.state,
            compilation=self.compilation,
            instance_facts=lambda: self.instance.facts(),
            installed=self.require_puppet,
            env=self._reading_environment,
            processes=self.processes,
            timeout=self.settings.timeouts.run,
        )

    # Where code comes from

    @cached_property
    def store(self) -> "Store":
        from localpuppet.node.releases.store import Store

        return Store(self.settings.state, note=self.note)

    @cached_property
    def files(self) -> "ReleaseFiles":
        """The reader of manifests and locks."""
        from localpuppet.node.enc.input import read_enc
        from localpuppet.node.releases.manifest import ReleaseFiles

        settings = self.settings
        return ReleaseFiles(
            documents=self.documents,
            allow_file=settings.allow_file_urls,
            tags_only=settings.tags_only,
            basemodulepath=settings.basemodulepath,
            read_enc=read_enc,
        )

    @cached_property
    def supply(self) -> "Supply":
        """The provider of code."""
        from localpuppet.node.releases.fetch import Supply

        return Supply(
            store=self.store,
            sources=self.settings.sources,
            files=self.files,
            access=self._module_access(),
        )

    def _module_access(self, *, public: bool = False) -> "ModuleAccess":
        from localpuppet.node.releases.git.access import rewrite_url
        from localpuppet.node.releases.modules import ModuleAccess

        settings = self.settings
        return ModuleAccess(
            state=settings.state,
            settings=settings.module_sources,
            address=partial(rewrite_url, rewrite=settings.rewrite),
            patience=settings.timeouts.https,
            timeout=settings.timeouts.git,
            public=public,
            progress=self.counted("archives"),
        )

    def git(
        self, progress: "Callable[[int, int], None] | None" = None, *, public: bool = False
    ) -> "Git":
        """Return git.

        Args:
            public: Whether to fetch as everybody can, into separate mirrors: see `PublicAccess`.
        """
        from localpuppet.node.releases.git.access import rewrite_url
        from localpuppet.node.releases.git.mirrors import PLACE, Git
        from localpuppet.node.releases.git.program import GitProgram
        from localpuppet.node.releases.limits import GitLimits

        settings = self.settings
        mirrors, progress = settings.state / PLACE, progress or (lambda _done, _all: None)
        address = partial(rewrite_url, rewrite=settings.rewrite)
        limits = GitLimits(min_free=settings.min_free)
        if public:
            from localpuppet.node.releases.git.program import public_git

            program = public_git(
                env=program_environment(),
                address=address,
                timeout=settings.timeouts.git,
                patience=settings.timeouts.https,
                limits=limits,
            )
            return Git(mirrors, program, progress=progress, kind="public ")
        program = GitProgram(
            env=program_environment(),
            allow_file=settings.allow_file_urls,
            timeout=settings.timeouts.git,
            address=address,
            access=self._access,
            limits=limits,
        )
        return Git(
            mirrors,
            program,
            progress=progress,
            names={source.url: name for name, source in settings.sources.items()},
        )

    def _access(self, address: str) -> "GitAccess":
        """Return the access settings for an address, with checked credentials."""
        from localpuppet.base.machine.files import read_user_file
        from localpuppet.node.releases.git.access import access_for, check_credentials, rewrite_url

        rules, sources = self.settings.rewrite, self.settings.sources.values()
        known = {rewrite_url(source.url, rules): source.access for source in sources}
        access = access_for(address, known)
        if access.credentials is not None:
            check_credentials(read_user_file(access.credentials), where=str(access.credentials))
        return access

    @contextmanager
    def repository(self, title: str, *, public: bool = False) -> "Iterator[Git]":
        """Yield git, and show the progress of fetches under a title."""
        progress = self.observe(title)
        progress.begin()
        before, self._shown = self._shown, progress
        try:
            yield self.git(self.counted("repositories"), public=public)
        finally:
            self._shown = before
            progress.close()

    def counted(self, things: str) -> "Callable[[int, int], None]":
        """Return a callback that shows how many things are done, while `repository` is in use."""

        def count(done: int, total: int) -> None:
            if self._shown is not None:
                self._shown.count(done, total, things)

        return count

    @cached_property
    def local_git(self) -> "GitProgram":
        """Git for repositories on this machine."""
        from localpuppet.node.releases.git.program import GitProgram

        timeout = self.settings.timeouts.git
        return GitProgram(env=program_environment(), allow_file=False, timeout=timeout)

    # Releases

    @cached_property
    def mutable(self) -> "MutableCode":
        """Branches, `trunk` and work trees."""
        from localpuppet.node.releases.branches import MutableCode
        from localpuppet.node.releases.git.work_tree import ignored

        settings = self.settings
        return MutableCode(
            supply=self.supply,
            repository=self.repository,
            public=self._public_supply,
            modules=settings.modules,
            hosts=settings.preview.hosts,
            immutable_only=settings.immutable_only,
            ignored=partial(ignored, self.local_git),
            note=self.note,
        )

    def _public_supply(self) -> "CodeSupply":
        """Return what brings code as everybody can get it."""
        from localpuppet.node.releases.branches import CodeSupply

        return CodeSupply(
            supply=replace(self.supply, access=self._module_access(public=True)),
            repository=partial(self.repository, public=True),
        )

    def staged(self, path: "ReleasePath") -> "tuple[Release, StagedRelease]":
        """Return a release that is staged on this machine, and its record; see `resolve`."""
        from localpuppet.node.releases.release_records import StagedRecords

        record = StagedRecords(self.settings.state).need(path)
        return self.resolve(path), record

    def resolve(self, path: "ReleasePath") -> "Release":
        """Return a release that is on this node.

        Raises:
            InvalidInputError: The release is invalid or missing.
            IntegrityError: A tag requires verification and is not verified.
        """
        from localpuppet.node.releases.release import resolve

        settings = self.settings
        if path.is_branch and self.mutable.is_branch(path):
            return self.mutable.branch(path)
        return resolve(
            path,
            modules=settings.modules,
            store=settings.state,
            files=self.files,
            sources=settings.sources,
            immutable_only=settings.immutable_only,
        )

    def staging(self, repository: "Git", approve: "Approve | None" = None) -> "ReleaseStaging":
        """Return the releases on this node; see `ReleaseStaging` for `approve`."""
        from localpuppet.node.releases.staging import ReleaseStaging

        return ReleaseStaging(
            modules=self.settings.modules,
            supply=self.supply,
            repository=repository,
            approve=approve,
            clock=self.clock,
        )

    def package_staging(
        self,
        repository: "Git",
        approve: "Approve | None" = None,
        *,
        accept_moved: bool = False,
    ) -> "PackageStaging":
        """Return the staging of releases, which first compares a new tag with other nodes'."""
        from localpuppet.node.releases.packages.package_staging import PackageStaging
        from localpuppet.node.releases.staging import compare_first

        manager = self.settings.install_packages
        if not accept_moved:
            approve = compare_first(self.neighbours.compare_tag, approve)
        return PackageStaging(
            staging=self.staging(repository, approve),
            supply=self.supply,
            directories=self.settings.packages,
            install=None
            if manager is None
            else lambda name: self.package_tools.install_by_name(name, manager),
        )

    @contextmanager
    def _lent_staging(self, title: str, approve: "Approve") -> "Iterator[PackageStaging]":
        with self.repository(title) as repository:
            yield self.package_staging(repository, approve)

    def _offered(self, path: "ReleasePath") -> bool:
        """Return whether a source, a package or a pack has a release."""
        from localpuppet.node.releases.packages.directory import find, find_pack

        settings = self.settings
        if path.source in settings.sources or find(settings.packages, path) is not None:
            return True
        # What is here already, a link or a directory of the site's own, needs no package manager.
        installable = settings.install_packages is not None
        if installable and not (settings.modules / path).exists():
            return True
        return find_pack(settings.packages, path) is not None

    @cached_property
    def package_tools(self) -> "SystemPackageTools":
        """The programs that build and install packages."""
        from localpuppet.node.releases.packages.tools import SystemPackageTools

        return SystemPackageTools(env=program_environment(), timeout=self.settings.timeouts.git)

    @cached_property
    def provider(self) -> "ReleaseProvider":
        from localpuppet.node.runs.preparing import ReleaseProvider

        return ReleaseProvider(
            offered=self._offered,
            resolve=self.resolve,
            staging=self._lent_staging,
            tools=lambda: self.package_tools,
            reader=lambda: self.reader,
            mutable=None if self.settings.immutable_only else lambda path: self.mutable.stage(path),
        )

    @cached_property
    def reader(self) -> "InterfaceReader":
        from localpuppet.node.runs.interface_reader import InterfaceReader

        return InterfaceReader(
            store=self.store,
            installed=self.require_puppet,
            parser=self._parser,
            elsewhere=self.elsewhere,
            observe=self.observe,
        )

    def _parser(self, installation: "Installation") -> "Parser":
        """Return the parser of the installed Puppet."""
        from localpuppet.node.runs.interface_reader import Parser

        env = self._reading_environment(installation)
        ruby = installation.interpreter(env["PATH"])
        if ruby is None:
            raise PuppetMissingError(
                "its Ruby was not found beside it, in its first line or in PATH",
                where=installation.command,
            )
        return Parser(
            ruby=ruby,
            load_path=installation.load_path,
            script=shared_file("interface.rb"),
            own_modules=OWN_MODULES,
            env=env,
            version=installation.version,
            processes=self.processes,
        )

    def elsewhere(self) -> "tuple[Path, Sequence[Path]]":
        """Return the site manifest and Hiera files, which add to a release's classes and data."""
        installation = self.find_puppet(ask=True)
        return self.settings.site_manifest, installation.hiera_files if installation else []

    def applied_elsewhere(self, app: "ReleasePath") -> "AppliedElsewhere | None":
        """Return the release that the node applied before its reinstallation: see `Neighbours`."""
        return self.neighbours.applied_elsewhere(app, self.note)

    def garbage(self) -> "GarbageCollector":
        """Return what removes releases and trees that no run or rollback needs."""
        from localpuppet.node.releases.staging import GarbageCollector

        settings = self.settings
        return GarbageCollector(
            staging=self.staging(self.git()),
            ledger=self.ledger,
            named=self._named_apps,
            good=self.good_runs.releases,
            in_use=self.records.in_use,
            forget=self.reader.forget,
            urls=[source.url for source in settings.sources.values()],
            keep_staged=settings.gc.keep_staged,
        )

    def _named_apps(self) -> "list[ReleasePath]":
        """Return the releases that the inputs in the root name, and the assigned one."""
        inputs = [self.settings.input, *sorted(self.settings.inputs.glob("*.yaml"))]
        assigned = self._assignment()
        named = [self.inputs.app(path) for path in inputs if path.exists()]
        return named if assigned is None else [*named, assigned.release]

    def check_release(self, directory: Path) -> "CheckedRelease":
        """Check a working copy of a release's maker; see `ReleaseChecker.check`.

        Raises:
            PuppetMissingError: Puppet or its interpreter is missing.
            LocalpuppetError: The working copy cannot be released.
        """
        from localpuppet.node.releases.git.work_tree import ignored, refuse_unstageable
        from localpuppet.node.runs.release_check import ReleaseChecker

        state = self.settings.state
        with self.repository(f"checking {directory}") as repository:
            checker = ReleaseChecker(
                supply=self.supply,
                repository=repository,
                state=state,
                parser=self._parser(self.require_puppet()),
                ignored=partial(ignored, self.local_git),
                bus=self.neighbours.exchange_resources,
                refuse_unstageable=partial(refuse_unstageable, self.local_git, scratch=state),
                sealed=self.check_sealed,
            )
            return checker.check(directory)

    def check_sealed(
        self, directory: Path, wanted: "Mapping[str, Keys] | None" = None
    ) -> "SealedFindings":
        """Check the sealed values of a working copy; see `check_sealed` for `wanted`."""
        from localpuppet.node.sealed.sealed_findings import SealedFindings, check_sealed
        from localpuppet.node.sealed.tree import SealedTree

        tree = SealedTree.on_disk(directory)
        if tree.is_empty:
            return SealedFindings()
        from localpuppet.node.releases.author.hiera_data import yaml_files

        repository = self.sealed_repository(directory)
        source = repository.source(self.settings.sources)
        last = repository.last_release(source)
        released = None if last is None else repository.tree_of(last.commit)
        past = repository.past(since="" if last is None else last.commit)
        if released is not None and {*tree.paths()} - {*released.paths()}:
            past = replace(past, values=repository.past("values").values)
        return check_sealed(
            tree,
            released=released,
            past=past,
            wanted=wanted,
            authors={} if last is None else repository.authors(last.commit),
            data=yaml_files(directory).items(),
            is_signed=None if source is None else source.signers is not None,
        )

    def sealed_repository(self, directory: Path) -> "SealedRepository":
        """Return what git knows of the sealed values in a working copy."""
        from localpuppet.node.sealed.trust import SealedRepository

        return SealedRepository(self.local_git, directory)

    def sealed_trust(self, directory: Path) -> "SealedTrust":
        """Return what the newest verified release and this person say of groups."""
        from localpuppet.node.sealed.tree import SealedTree
        from localpuppet.node.sealed.trust import SealedTrust

        repository = self.sealed_repository(directory)
        last = repository.last_release(repository.source(self.settings.sources))
        return SealedTrust(
            SealedTree.of_files({}) if last is None else repository.tree_of(last.commit),
            "" if last is None else last.tag,
            file=node_settings.users_state(os.environ) / "approved-groups.json",
            repository=repository.origin or str(directory.resolve()),
        )

    # Catalogs

    def compile_engine(
        self,
        *,
        trusted: bool = False,
        processes: int | None = None,
        mark_key: str = "",
        asks: bool = False,
        hidden: Sequence[Path] = (),
    ) -> "PuppetCompileEngine":
        """Return what compiles catalogs.

        Args:
            trusted: Whether the code is trusted: then it is not isolated.
            processes: Catalogs that are compiled at a time; `None` for one a processor.
            mark_key: The key of the marks of secrets, hexadecimal; empty for no marks.
            asks: Whether query functions ask the agent of this node, which requires trusted code.
            hidden: Directories that isolated code does not see: the work tree, the cache.
        """
        from localpuppet.base.machine.isolation import CodeIsolation
        from localpuppet.node.preview.engine import LIMITS, PuppetCompileEngine

        state = self.settings.state
        processes = processes or len(os.sched_getaffinity(0))
        return PuppetCompileEngine(
            scratch=state / "compiles",
            store=tuple(state / name for name in ("objects", "links")),
            compilation=self.compilation,
            command=self._compiling_command,
            version=lambda: self.require_puppet().version,
            ruby=lambda: map(Path, self.require_puppet().places),
            env=partial(self._compiling_environment, asks=asks),
            own_modules=OWN_MODULES,
            site_manifest=self.settings.site_manifest,
            isolation=CodeIsolation(
                path=program_environment()["PATH"],
                memory=LIMITS["memory"] * (processes + 1),  # the process they are forked from
                programs=LIMITS["programs"] * (processes + 1),
                otherwise="pass '--trusted' for code that you trust",
                hidden=(self.settings.root, state, *hidden),
                trusted=trusted,
            ),
            processes=processes,
            mark_key=mark_key,
            asks=asks,
        )

    def _compiling_command(self) -> list[str]:
        """Return a command that loads the file in RUBYOPT with Puppet's library."""
        puppet = self.require_puppet()
        ruby = None if puppet.ruby else puppet.interpreter(program_environment()["PATH"])
        return [str(ruby), "-e", ""] if ruby else [puppet.command, "--version"]

    def _compiling_environment(self, *, asks: bool) -> dict[str, str]:
        base = {key: text for key, text in program_environment().items() if asks or key in KEPT}
        own = self._reading_environment(self.require_puppet(), {**base, "HOME": "/nonexistent"})
        main = shared_file("preview/main.rb")
        return {**own, "RUBYOPT": f"{own.get('RUBYOPT', '')} -r{main}".lstrip()}

    def preview(
        self,
        *,
        trusted: bool = False,
        processes: int | None = None,
        hidden: Sequence[Path] = (),
        staged: bool = False,
    ) -> "PreviewWorkspace":
        """Return what compares the catalogs of nodes; it writes where a maker can.

        Args:
            trusted: See `compile_engine`, also for the others.
            staged: Whether it compares releases in the state directory: then it writes there.
        """
        from localpuppet.node.preview.workspace import PreviewWorkspace

        own = self if staged else self.for_makers()
        return PreviewWorkspace(
            state=own.settings.state,
            site_manifest=own.settings.site_manifest,
            own_modules=OWN_MODULES,
            files=own.files,
            git=own.local_git,
            work_tree=own.mutable.work_tree,
            engine=lambda key: own.compile_engine(
                trusted=trusted, processes=processes, mark_key=key, hidden=hidden
            ),
            staged=own.staged,
            lock_store=lambda: own.store.locks.take_for_run(),
            puppet=own.require_puppet,
            path=program_environment()["PATH"],
            clock=own.clock,
            observe=own.observe,
        )

    def catalogs(self, *, asks: bool = False) -> "NodeCatalogs":
        """Return what compiles catalogs with this node's facts, and applies nothing.

        Args:
            asks: Whether query functions ask the agent, as in a run.
        """
        import secrets

        from localpuppet.node.candidates import NodeCatalogs

        engine = self.compile_engine(trusted=True, asks=asks, mark_key=secrets.token_hex(32))
        return NodeCatalogs(puppet=self.puppet_caller, engine=engine)

    def candidate(self) -> "Candidate":
        """Return the comparison of this node's release with another."""
        from localpuppet.node.candidates import Candidate

        return Candidate(
            own=self.settings.input,
            inputs=self.inputs,
            releases=self.provider,
            reader=self.reader,
            catalogs=self.catalogs(asks=True),
            answer=lambda: self.classifier.answer(None),
            lock_store=self.store.locks.take_for_run,
        )

    # Runs

    def preparation(self) -> "RunPreparation":
        from localpuppet.node.runs.preparing import RunPreparation

        return RunPreparation(
            own=self.settings.input,
            inputs=self.inputs,
            instance_facts=lambda: self.instance.facts(),
            asks_enc=self.settings.enc is not None,
            ledger=self.ledger,
            releases=self.provider,
            work_tree=lambda directory: self.mutable.work_tree(directory),
            immutable_only=self.settings.immutable_only,
            note=self.note,
            applied_elsewhere=self.applied_elsewhere,
            lock_store=self.store.locks.take_for_run,
        )

    def assigning(
        self, *, confirm: float, confirmed: "Callable[[Assignment], bool]"
    ) -> "AssignmentService":
        """Return what stages, applies and takes back assignments.

        Args:
            confirm: Seconds within which an assigned release must be confirmed; 0 for no
                confirmation.
        """
        from localpuppet.node.enc.assignment import AssignedRelease
        from localpuppet.node.runs.preparing import AssignmentService

        state = self.settings.state
        return AssignmentService(
            own=self.settings.input,
            inputs=self.inputs,
            assigned=AssignedRelease(state),
            ledger=self.ledger,
            records=self.records,
            good_runs=self.good_runs,
            releases=self.provider,
            reader=self.reader,
            answer=lambda: self.classifier.answer(None),
            lock_store=self.store.locks.take_for_run,
            clock=self.clock,
            confirm=confirm,
            confirmed=confirmed,
            open_groups=self.open_sealed_groups,
            note=self.note,
        )

    def supervisor(
        self, observer: "Observer", *, fork_server: "ForkServerClient | None" = None
    ) -> "Supervisor":
        """Return the supervisor of runs.

        Args:
            fork_server: Starts Puppet warm, if the caller has one.
        """
        from localpuppet.node.runs.supervisor import Supervisor

        settings = self.settings
        self.refuse_foreign_files()
        installation = self._installation_or_problem()
        lean = self.lean_start(installation)
        if lean.facter and not (lean.flags or isinstance(installation, PuppetMissingError)):
            # The file may block secret facts: the user must know that it has no effect.
            command = installation.command
            observer.note(f"puppet.facter_conf: {command} does not pass RUBYOPT to Ruby; not used")

        def after_run(run: "RunDirectory", status: "Status") -> None:
            self.neighbours.after_run(observer.note, run, status)
            self._compile_missing_ruby(installation, observer.note)

        return Supervisor(
            state=settings.state,
            records=self.records,
            good_runs=self.good_runs,
            holds=self._holds(None if isinstance(installation, Exception) else installation),
            ledger=self.ledger,
            installation=installation,
            call=self._call,
            reports=settings.puppet.reports,
            lean_start=lean,
            fork_server=fork_server,
            route_file=shared_file("routes.yaml"),
            env=program_environment(),
            answer=partial(self.classifier.answer, None),
            grace=settings.timeouts.grace,
            min_free=settings.min_free,
            keep_runs=settings.keep.runs,
            keep_days=settings.keep.days,
            metrics=settings.metrics,
            rollback=self.rollback_in_force,
            fits=self.reader.check_kept,
            variables_of_calls=self.neighbours.variables,
            sealed=partial(self.sealed_server, note=observer.note),
            after_run=after_run,
            clock=self.clock,
            processes=self.processes,
            documents=self.documents,
            observer=observer,
        )

    def sealed_server(
        self, release: "Release", *, note: Callable[[str], None]
    ) -> "SealedServer | None":
        """Return what opens the sealed values of a release; `None` if nothing is opened."""
        if release.work_tree or not release.has_sealed_values:
            return None
        from localpuppet.base.formats.names import ReleasePath
        from localpuppet.node.sealed.serving import SealedServer

        source = self.settings.sources.get(ReleasePath(release.name).source)
        if source is None or source.signers is None:
            note(
                f"warning: {release.name} has sealed values, but its source does not require"
                " signatures: who changes the release reads what is sealed next (set"
                " require_signed)"
            )
        return SealedServer(partial(self.sealed_opener, release.directory))

    def open_sealed_groups(self, release: "Release") -> tuple[str, ...]:
        """Open the groups of sealed values of a release for this node; return their names.

        Raises:
            InvalidInputError: A group names this node, and its wrap does not open.
        """
        if not release.has_sealed_values:
            return ()
        opener = self.sealed_opener(release.directory)
        if closed := opener.closed_groups(self.require_puppet().settings["certname"]):
            raise InvalidInputError(
                f"{', '.join(closed)}: this node is a member, and its key does not open the group",
                where=f"{release.name}: sealed",
                hint="seal for its key: 'localpuppet sealed reseal', with --replace and its name",
            )
        return opener.opened_groups()

    def sealed_opener(self, directory: Path) -> "SealedOpener":
        """Return what opens the sealed values below a directory with this node's key."""
        from localpuppet.node.sealed.age import SealingKey
        from localpuppet.node.sealed.tree import SealedOpener, SealedTree

        identities = SealingKey(self.settings.state / "keys").identities()
        return SealedOpener(SealedTree.on_disk(directory), identities)

    def _installation_or_problem(self) -> "Installation | PuppetMissingError":
        """Return Puppet, or the reason why it cannot be used, for the record."""
        try:
            return self.require_puppet()
        except PuppetMissingError as error:
            return error

    def _compile_missing_ruby(
        self, installation: "Installation | PuppetMissingError", note: Callable[[str], None]
    ) -> None:
        from localpuppet.node.puppet.launching import compile_missing_ruby

        directory, env = self._compiled_directory, program_environment()
        if directory is None or isinstance(installation, PuppetMissingError):
            return
        command, min_free = Path(installation.command), self.settings.min_free
        try:
            compile_missing_ruby(directory, command, env=env, min_free=min_free)
        except StateError as error:
            note(f"could not compile Ruby for the next run: {error}")

    def _call(
        self,
        installation: "Installation",
        release: "Release",
        environment: str,
        options: "RunOptions",
    ) -> "ApplyCommand":
        """Return the `puppet apply` for a release."""
        from localpuppet.node.puppet.command_line import ApplyCommand

        settings = self.settings
        return ApplyCommand(
            command=installation.command,
            compilation=self.compilation(release, environment, settings.state / "environments"),
            node_document=settings.node_document,
            noop=options.noop,
            tags=options.tags,
            extra=options.extra,
            config_version=release.config_version,
            storeconfigs=self.neighbours.exchange_resources,
            root=None if settings.root == node_settings.SYSTEM_ROOT else settings.root,
            selection=installation.selection,
        )
