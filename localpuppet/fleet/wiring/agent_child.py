"""One run of the agent's, or one deployment, in the child that was forked for it."""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from localpuppet.base.errors import BusyError, LocalpuppetError, OnHoldError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.fleet.agent.confirmation.retreat import RetreatOrder
from localpuppet.fleet.agent.deployments import Deployment
from localpuppet.fleet.agent.runner import RequestedRunResult, RunCompletion, RunOrder
from localpuppet.fleet.requests.compile import Compile
from localpuppet.fleet.requests.deploy import DeployAction
from localpuppet.fleet.wiring.confirmations import is_confirmed
from localpuppet.fleet.wiring.settings import fleet_settings
from localpuppet.node.runs.observer import SilentObserver
from localpuppet.node.runs.options import RunOptions
from localpuppet.node.runs.reason import public_reason
from localpuppet.node.runs.run import Status
from localpuppet.node.wiring.node import NodeWiring
from localpuppet.node.wiring.run import RunWiring

if TYPE_CHECKING:
    from localpuppet.node.runs.assigning import AssignmentService

# Bytes of what differs between two catalogs; a child has 64 KiB for all that it tells.
MAX_CHANGES = 40 * 1024


class _Begins(SilentObserver):
    """Watches a run for its beginning."""

    def __init__(self, begun: Callable[[], None]) -> None:
        super().__init__()
        self._begun = begun

    def command(self, text: str) -> None:
        """Take the command line, before Puppet starts."""
        self._begun()


def run_order(node: NodeWiring, order: RunOrder, begun: Callable[[], None]) -> RunCompletion:
    """Do what `localpuppet apply` does, and return how it went.

    Args:
        node: The parts of the node; its settings are read again for each run.
        order: What the run is for.
        begun: Called when the run is on record, and Puppet about to be started.
    """
    node = node.again()
    try:
        options = RunOptions(
            noop=order.noop,
            tags=",".join(order.puppet_tags) or None,
            extra=(),
            timeout=node.settings.run_timeout,
            user="agent",
            cause=order.text[:200],
            causes=order.causes,
            through=order.through,
        )
        with node.attempts.noted(options, source=str(node.settings.input)) as named:
            try:
                status = _run(node, options, begun, named)
            except (BusyError, OnHoldError) as error:
                # Not an attempt: the agent keeps the causes, and their run follows.
                return RunCompletion(fate=RequestedRunResult.BUSY, reason=str(error))
    except LocalpuppetError as error:
        return RunCompletion(fate=RequestedRunResult.IMPOSSIBLE, reason=str(error))
    return _end(status)


def deploy(node: NodeWiring, order: Deployment, _begun: Callable[[], None]) -> RunCompletion:
    """Have, take or leave a release, and return how that went: `OVER` where it is done.

    Args:
        node: The parts of the node; its settings are read again.
        order: What is to be done.
    """
    assignment, deed = order.assignment, order.args.deed

    def take() -> None:
        assigning = _assigning(node)
        if deed is DeployAction.STAGE:
            assigning.stage(assignment)
        elif deed is DeployAction.APPLY:
            assigning.take(assignment)
        else:
            assigning.go_back(assignment)

    return _done(take)


def retreat(node: NodeWiring, order: RetreatOrder, _begun: Callable[[], None]) -> RunCompletion:
    """Go back from a release that is not confirmed, and return how that went; see `deploy`.

    Args:
        node: The parts of the node; its settings are read again.
        order: What is left.
    """
    left, by = order.left, order.because
    return _done(lambda: _assigning(node).go_back(left, by=by))


def _assigning(node: NodeWiring) -> "AssignmentService":
    fresh = node.again()
    return RunWiring(fresh).assigning(
        confirm=fleet_settings(fresh).agent.confirm or 0.0,
        confirmed=partial(is_confirmed, fresh),
    )


def _done(work: Callable[[], None]) -> RunCompletion:
    """Do something that is done or not, and return how that went."""
    try:
        work()
    except BusyError as error:
        return RunCompletion(fate=RequestedRunResult.BUSY, reason=str(error))
    except LocalpuppetError as error:
        return RunCompletion(fate=RequestedRunResult.IMPOSSIBLE, reason=str(error))
    return RunCompletion(fate=RequestedRunResult.OVER)


def compile_candidate(
    node: NodeWiring, order: Compile, _begun: Callable[[], None]
) -> RunCompletion:
    """Compile two catalogs, and tell what differs; see `deploy`.

    Args:
        node: The parts of the node; its settings are read again.
        order: With which release.
    """
    try:
        changes = RunWiring(node.again()).candidate().changes(order.release)
    except LocalpuppetError as error:
        return RunCompletion(fate=RequestedRunResult.IMPOSSIBLE, reason=str(error))
    return RunCompletion(fate=RequestedRunResult.OVER, told=changes.bounded(MAX_CHANGES).to_dict())


def _run(
    node: NodeWiring,
    options: RunOptions,
    begun: Callable[[], None],
    named: Callable[[ReleasePath], None],
) -> Status:
    wiring = RunWiring(node)
    prepared = wiring.preparation().prepare(options, named=named)
    server = node.fork_server() if fleet_settings(node).agent.warm else None
    supervisor = wiring.supervisor(_Begins(begun), fork_server=server)
    node.processes.watch_signals()
    return supervisor.apply(prepared)


def _end(status: Status) -> RunCompletion:
    return RunCompletion(
        fate=RequestedRunResult.OVER,
        run=status.id,
        outcome=str(status.outcome),
        reason="" if status.succeeded else public_reason(status),
    )


def learn(node: NodeWiring) -> None:
    """Read the settings, and ask Puppet for its own, once in a child that remembers them.

    Without Puppet's settings nobody knows the node's name, nor where Puppet keeps its own hold.

    What was accepted before is read without YAML, JSON Schema and sh: 5 MiB that the agent would
    keep for as long as it lives. What goes wrong here goes wrong again in the agent, and is said.
    """
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        with suppress(LocalpuppetError, OSError):
            _ = fleet_settings(node)
            node.documents.remember()
            node.installation(ask=True)
    finally:
        os._exit(0)


def warm(node: NodeWiring) -> None:
    """Import what a run needs, so that the children have it already."""
    from localpuppet.base.machine import processes
    from localpuppet.node.puppet import fault, probe
    from localpuppet.node.releases import interfaces, provider, reading, staging
    from localpuppet.node.releases.git import mirrors
    from localpuppet.node.releases.packages import directory
    from localpuppet.node.releases.packages import staging as package_staging
    from localpuppet.node.runs import preparing, supervisor

    _ = (package_staging, interfaces, directory, staging, supervisor, mirrors, probe, processes)
    _ = (provider, reading, preparing, fault)
    _ = node.settings
