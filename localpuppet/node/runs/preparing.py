"""Prepares a run for `localpuppet apply`, the agent or a rollout.

    read the input -> rolled back? older? -> provide the release -> compute the node document
    -> ask for instance data

Refusals come before anything is locked or recorded. Each step is done once: the release is resolved
once, the node document computed once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.names import ReleasePath, RunId
from localpuppet.base.formats.times import show_time
from localpuppet.base.machine.flock import Flock
from localpuppet.node.enc.classify import node_document
from localpuppet.node.enc.document import EncData, NodeDocument
from localpuppet.node.enc.input import InputReader, LoadedInput
from localpuppet.node.releases.ledger import AppliedElsewhere, Ledger, Rollback
from localpuppet.node.releases.provider import ReleaseProvider
from localpuppet.node.releases.release import Release
from localpuppet.node.runs.options import RunOptions, RunRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """A run that is ready for the supervisor.

    Attributes:
        loaded: The input.
        release: The input's release, on the node.
        options: How to run Puppet.
        ends_rollback: Whether an operator's rollback ends when this run begins, because the input
            has changed. A run that is refused earlier leaves the rollback in force.
        document: The node document; `None` if the site's ENC command adds to it: the supervisor
            calls that command when the record is open.
        instance_facts: The facts that the cloud's instance data gives, by name.
        kept: Lock that keeps `gc` away from the release until the record is open.
    """

    loaded: LoadedInput
    release: Release
    options: RunOptions
    document: NodeDocument | None
    instance_facts: Mapping[str, str] = field(default_factory=dict)
    ends_rollback: bool = False
    kept: Flock | None = None

    def on_record(self) -> None:
        """Let `gc` continue: the record names what the run needs, or no run follows."""
        if self.kept is not None:
            self.kept.release()

    def request(
        self,
        run: RunId,
        now: datetime,
        *,
        command: Sequence[str],
        document: Mapping[str, Any],
        answer: EncData | None = None,
    ) -> RunRequest:
        """Return the request as the record has it.

        Args:
            run: The run's id.
            now: UTC.
            command: The whole argument vector of Puppet; empty if Puppet is not started.
            document: The node document; empty without one.
            answer: The answer of the site's ENC command, if any.
        """
        loaded, release, options = self.loaded, self.release, self.options
        data = loaded.input.data if answer is None else loaded.input.data.over(answer)
        return RunRequest(
            id=run,
            requested_at=show_time(now),
            user=options.user,
            cause=options.cause,
            release=release.name,
            modulepath=tuple(map(str, release.whole_modulepath)),
            environment=str(document.get("environment", "")),
            input=loaded.name,
            input_sha256=loaded.sha256,
            layers=loaded.input.layers,
            noop=options.noop,
            timeout=options.timeout,
            command=tuple(command),
            node_document=document,
            causes=options.causes,
            work_tree=release.work_tree,
            instance_facts=tuple(sorted(self.instance_facts)),
            assignment={} if loaded.assignment is None else loaded.assignment.to_public(),
            # After a rollback the whole document is recorded, and the input has no part in it.
            data=options.document.to_dict() if options.document else data.to_dict(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInput:
    """The sources of a node's input.

    Attributes:
        own: The node's own input.
        reader: Reads inputs.
        instance_facts: Returns the facts from the cloud's instance data.
        asks_enc: Whether the site has its own ENC command.
    """

    own: Path
    reader: InputReader
    instance_facts: Callable[[], Mapping[str, str]]
    asks_enc: bool

    def read(self, source: str | None) -> LoadedInput:
        """Return the input at a path or URL; the node's own for `None`.

        Raises:
            LocalpuppetError: The input is invalid or unreachable.
        """
        return self.reader.read(str(self.own) if source is None else source)

    def document(self, loaded: LoadedInput, release: Release) -> NodeDocument | None:
        """Return the node document; `None` if the supervisor asks the site's ENC for it.

        Raises:
            InvalidInputError: The input does not fit the release.
        """
        return None if self.asks_enc else node_document(loaded, release.enc, answer=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPreparation:
    """Prepares runs of a node.

    Attributes:
        node_input: The node's input.
        ledger: What was applied, and an operator's rollback.
        releases: Provides releases.
        note: Takes messages for people.
        applied_elsewhere: Returns the release that this node last published on the bus as applied;
            used if the ledger does not know the source.
        keep: Keeps `gc` away from releases; the lock is released when the run is on record.
    """

    node_input: NodeInput
    ledger: Ledger
    releases: ReleaseProvider
    note: Callable[[str], None]
    applied_elsewhere: Callable[[ReleasePath], AppliedElsewhere | None]
    keep: Callable[[], Flock]

    def prepare(
        self,
        options: RunOptions,
        *,
        source: str | None = None,
        package: Path | None = None,
        allow_older: bool = False,
        named: Callable[[ReleasePath], None] = lambda _: None,
    ) -> PreparedRun:
        """Read the input, provide its release, and refuse the run if it cannot succeed.

        Until the caller calls `on_record`, `gc` removes no release.

        Args:
            options: How to run Puppet.
            source: The input; the node's own for `None`.
            package: A package to install first, and to take the release from.
            allow_older: Whether the input may name an older release.
            named: Takes the release, as soon as it is known.

        Raises:
            LocalpuppetError: The input is invalid, or the release cannot be provided. Nothing is
                locked or recorded then.
        """
        kept = self.keep()
        prepared = None
        try:
            loaded = self.node_input.read(source)
            named(loaded.input.app)
            rollback = self.ledger.rollback() if source is None else None
            in_force = rollback is not None and rollback.stands(loaded.sha256, loaded.serial)
            stands = in_force and not allow_older
            try:
                if rollback is not None and stands:
                    loaded, options = self._overruled(loaded, options, rollback)
                    named(loaded.input.app)
                # After a rollback the next input decides, even if its release is older.
                assigned_older = loaded.assignment is not None and loaded.assignment.allow_older
                decided = allow_older or rollback is not None or assigned_older
                release = self._release(loaded.input.app, package, decided=decided)
            except LocalpuppetError as error:
                raise loaded.placed(error) from error
            if release.repaired:
                self.note(f"warning: {release.name} was repaired: {release.repaired}")
            prepared = PreparedRun(
                loaded=loaded,
                release=release,
                options=options,
                document=options.document or self.node_input.document(loaded, release),
                instance_facts=self.node_input.instance_facts(),
                ends_rollback=rollback is not None and not stands and not options.noop,
                kept=kept,
            )
            return prepared
        finally:
            if prepared is None:
                kept.release()

    def _release(self, app: ReleasePath, package: Path | None, *, decided: bool) -> Release:
        """Provide the release; reject an older one unless `decided` allows it."""
        if decided:
            return self.releases.provide(app, package=package)
        before = self.applied_elsewhere(app) if self.ledger.begins(app) else None
        self.ledger.check_forward(app, before=before)
        release = self.releases.provide(app, package=package)
        # A release that came only now brought the time of its tag with it.
        self.ledger.check_forward(app, before=before)
        return release

    def _overruled(
        self, loaded: LoadedInput, options: RunOptions, rollback: Rollback
    ) -> tuple[LoadedInput, RunOptions]:
        """Replace the input's release by the one that an operator rolled back to.

        A rollback ends when the node's own input changes.
        """
        self.note(
            f"rolled back to {rollback.release} by {rollback.user} (run {rollback.run});"
            f" a {'new assignment or a ' if rollback.serial else ''}changed input ends that"
        )
        document = NodeDocument.from_dict(rollback.node_document)
        rolled_back = replace(
            loaded,
            name=f"rollback to run {rollback.run}",
            input=replace(loaded.input, app=rollback.release, layers=()),
            assignment=None,
        )
        return rolled_back, replace(options, document=document)
