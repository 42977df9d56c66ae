"""Builds the parts of a run from the settings: preparation and supervision."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import PuppetMissingError
from localpuppet.base.machine.files import make_private
from localpuppet.base.machine.ownership import refuse_foreign
from localpuppet.base.share.files import shared_file
from localpuppet.node.settings.node import SYSTEM_ROOT
from localpuppet.node.wiring.compiling import classifier, compilation, enc_command
from localpuppet.node.wiring.node import NodeInputs, NodeWiring, program_environment
from localpuppet.node.wiring.releases import ReleaseWiring, elsewhere
from localpuppet.node.wiring.state import (
    compiled_directory,
    open_good_runs,
    open_records,
    require_puppet,
    rollback_in_force,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from localpuppet.base.formats.names import ReleasePath, RunId
    from localpuppet.node.candidates.candidate import Candidate
    from localpuppet.node.enc.assignment import Assignment
    from localpuppet.node.puppet.command import ApplyCommand
    from localpuppet.node.puppet.environment import FacterConf, LeanStart
    from localpuppet.node.puppet.installation import Installation
    from localpuppet.node.puppet.launching import CompiledRuby, PuppetForkServer
    from localpuppet.node.releases.ledger import AppliedElsewhere
    from localpuppet.node.releases.release import Release
    from localpuppet.node.runs.observer import Observer
    from localpuppet.node.runs.options import RunOptions
    from localpuppet.node.runs.preparing import (
        AssignmentService,
        NodeInput,
        RunPreparation,
        TrialPreparation,
    )
    from localpuppet.node.runs.records import RunDirectory
    from localpuppet.node.runs.run import Status
    from localpuppet.node.runs.supervisor import Supervisor
    from localpuppet.node.settings.node import Settings


class RunWiring:
    """The parts of a run.

    Args:
        node: The parts of the node.
    """

    def __init__(self, node: NodeWiring) -> None:
        self._node = node
        self._inputs = NodeInputs(node)
        self._releases = ReleaseWiring(node)

    def _node_input(self) -> "NodeInput":
        from localpuppet.node.runs.preparing import NodeInput

        node = self._node
        return NodeInput(
            own=node.settings.input,
            reader=self._inputs.reader,
            instance_facts=lambda: self._inputs.instance.facts(),
            asks_enc=node.settings.enc is not None,
        )

    def preparation(self) -> "RunPreparation":
        """Return the preparation of runs."""
        from localpuppet.node.releases.ledger import Ledger
        from localpuppet.node.runs.preparing import RunPreparation

        node = self._node
        return RunPreparation(
            node_input=self._node_input(),
            ledger=Ledger(node.settings.state),
            releases=self._releases.provider(),
            note=node.observe("").note,
            applied_elsewhere=partial(applied_elsewhere, node),
            keep=self._releases.sources.store.locks.take_for_run,
        )

    def assigning(
        self, *, confirm: float, confirmed: "Callable[[Assignment], bool]"
    ) -> "AssignmentService":
        """Return what stages, applies and takes back assignments.

        Args:
            confirm: Seconds within which an assigned release must be confirmed; 0 for no
                confirmation.
            confirmed: Returns whether an assignment was confirmed.
        """
        from localpuppet.node.enc.assignment import AssignedRelease
        from localpuppet.node.releases.ledger import Ledger
        from localpuppet.node.runs.preparing import AssignmentService

        node, state = self._node, self._node.settings.state
        return AssignmentService(
            own=node.settings.input,
            inputs=self._inputs.reader,
            assigned=AssignedRelease(state),
            ledger=Ledger(state),
            records=open_records(node),
            good_runs=open_good_runs(node),
            releases=self._releases.provider(),
            reader=self._releases.reader(),
            answer=lambda: classifier(node, self._inputs).answer(None),
            keep=self._releases.sources.store.locks.take_for_run,
            clock=node.clock,
            confirm=confirm,
            confirmed=confirmed,
            note=node.observe("").note,
        )

    def candidate(self) -> "Candidate":
        """Return the comparison of this node's release with another."""
        from localpuppet.node.candidates.candidate import Candidate
        from localpuppet.node.wiring.preview import node_catalogs

        node = self._node
        return Candidate(
            own=node.settings.input,
            inputs=self._inputs.reader,
            releases=self._releases.provider(),
            reader=self._releases.reader(),
            catalogs=node_catalogs(node, self._inputs, asks=True),
            answer=lambda: classifier(node, self._inputs).answer(None),
            keep=self._releases.sources.store.locks.take_for_run,
        )

    def trial(self) -> "TrialPreparation":
        """Return the preparation of work trees."""
        from localpuppet.node.runs.preparing import TrialPreparation

        node = self._node
        return TrialPreparation(
            node_input=self._node_input(),
            release=self._releases.mutable.work_tree,
            immutable_only=node.settings.immutable_only,
            note=node.observe("").note,
        )

    def supervisor(
        self, observer: "Observer", *, fork_server: "PuppetForkServer | None" = None
    ) -> "Supervisor":
        """Return the supervisor of runs.

        Args:
            observer: Receives output and notes.
            fork_server: Starts Puppet warm, if the caller has one.

        Raises:
            InvalidInputError: A setting is invalid.
        """
        from localpuppet.node.releases.interfaces import Interfaces, check_kept
        from localpuppet.node.runs.supervisor import Node, Supervisor

        settings = self._node.settings
        refuse_foreign_files(settings)
        installation = self._installation_or_problem()
        lean = lean_start(self._node, installation)
        if lean.facter and not (lean.flags or isinstance(installation, PuppetMissingError)):
            # The file may block secret facts: the user must know that it has no effect.
            command = installation.command
            observer.note(f"puppet.facter_conf: {command} does not pass RUBYOPT to Ruby; not used")
        compiled = self._compiled_ruby()

        def after_run(run: "RunDirectory", status: "Status") -> None:
            self._node.neighbours.after_run(observer.note, run, status)
            if compiled is not None:
                compiled.after_run(observer.note)

        node = Node(
            state=settings.state,
            installation=installation,
            call=self._call,
            reports=settings.reports,
            lean_start=lean,
            fork_server=fork_server,
            route_file=shared_file("routes.yaml"),
            env=program_environment(),
            enc_command=enc_command(self._node),
            grace=settings.grace,
            min_free=settings.min_free,
            keep_runs=settings.keep_runs,
            keep_days=settings.keep_days,
            keep_releases=settings.keep_releases,
            metrics=settings.metrics,
            rollback=partial(rollback_in_force, self._node),
            fits=partial(check_kept, Interfaces(settings.state), partial(elsewhere, self._node)),
            variables_of_calls=self._node.neighbours.variables,
            after_run=after_run,
        )
        return Supervisor(
            node,
            clock=self._node.clock,
            processes=self._node.processes,
            documents=self._node.documents,
            observer=observer,
        )

    def _compiled_ruby(self) -> "CompiledRuby | None":
        """Return the compiled Ruby; `None` if the site disables it."""
        from localpuppet.base.machine.processes import start_apart
        from localpuppet.node.puppet.launching import CompiledRuby

        node = self._node
        directory = compiled_directory(node)
        if directory is None:
            return None
        return CompiledRuby(
            directory,
            script=shared_file("compile_ruby.rb"),
            command=lambda: Path(require_puppet(node).command),
            start=partial(start_apart, env=program_environment()),
            path=program_environment().get("PATH", ""),
            min_free=node.settings.min_free,
        )

    def _installation_or_problem(self) -> "Installation | PuppetMissingError":
        """Return Puppet, or the reason why it cannot be used, for the record."""
        try:
            return require_puppet(self._node)
        except PuppetMissingError as error:
            return error

    def _call(
        self,
        installation: "Installation",
        release: "Release",
        environment: str,
        options: "RunOptions",
    ) -> "ApplyCommand":
        """Return the `puppet apply` for a release."""
        from localpuppet.node.puppet.command import ApplyCommand

        settings = self._node.settings
        return ApplyCommand(
            command=installation.command,
            compilation=compilation(
                self._node, release, environment, settings.state / "environments"
            ),
            node_document=settings.node_document,
            noop=options.noop,
            tags=options.tags,
            extra=options.extra,
            config_version=release.config_version,
            storeconfigs=self._node.neighbours.exchange_resources,
            root=None if settings.root == SYSTEM_ROOT else settings.root,
            selection=installation.selection,
        )


def applied_elsewhere(node: NodeWiring, app: "ReleasePath") -> "AppliedElsewhere | None":
    """Return the release that a node applied before its reinstallation; see `Neighbours`."""
    return node.neighbours.applied_elsewhere(app, node.observe("").note)


def refuse_foreign_files(settings: "Settings") -> None:
    """Reject unsafe files of the site that a run executes, or that name what it executes.

    Raises:
        InvalidInputError: A file is missing, or others may write it.
    """
    # Facter's configuration can name directories of facts, which are programs.
    for file in (settings.enc_script, settings.site_manifest, settings.facter_conf):
        if file is not None:
            refuse_foreign(file)


def detached(announce: "Callable[[RunId], None]") -> "Callable[[RunId], Callable[[], None]]":
    """Return a function that moves a run to a separate process; see `Supervisor.apply`.

    Args:
        announce: Called in the calling process when the run's process is ready.
    """
    from localpuppet.base.machine.processes import detach

    return lambda run: detach(lambda: announce(run))


def lean_start(node: NodeWiring, installation: "Installation | PuppetMissingError") -> "LeanStart":
    """Return how Ruby starts for Puppet on this node."""
    from localpuppet.node.puppet.environment import LeanStart

    settings = node.settings
    return LeanStart(
        flags=() if isinstance(installation, PuppetMissingError) else installation.lean,
        file=shared_file("lean_start.rb"),
        compiled=compiled_directory(node),
        facter=_facter(settings),
    )


def _facter(settings: "Settings") -> "FacterConf | None":
    """Return the site's configuration of Facter.

    Raises:
        StateError: Facter's cache directory cannot be created.
    """
    from localpuppet.node.puppet.environment import FacterConf

    if settings.facter_conf is None:
        return None
    cache = settings.state / "cache" / "facts"
    make_private(cache)
    return FacterConf(file=settings.facter_conf, cache=cache)
