"""Performs one run or one deployment in the child that the agent forked for it."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from localpuppet.base.errors import BusyError, LocalpuppetError, OnHoldError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.fleet.agent.agent import RequestedRunResult, RunCompletion, RunOrder
from localpuppet.fleet.agent.confirmation.retreat import RetreatOrder
from localpuppet.fleet.agent.rollout_steps import Deployment
from localpuppet.fleet.requests.arguments import Compile, DeployAction
from localpuppet.fleet.wiring.confirmations import is_confirmed
from localpuppet.fleet.wiring.fleet import fleet_settings
from localpuppet.node.app import NodeApp
from localpuppet.node.runs.observer import SilentObserver
from localpuppet.node.runs.options import RunOptions
from localpuppet.node.runs.reason import public_reason
from localpuppet.node.runs.run import Status

if TYPE_CHECKING:
    from localpuppet.node.runs.preparing import AssignmentService

# Bytes of differences between two catalogs; a child reports at most 64 KiB.
MAX_CHANGES = 40 * 1024


class _Begins(SilentObserver):
    """Watches a run for its beginning."""

    def __init__(self, begun: Callable[[], None]) -> None:
        super().__init__()
        self._begun = begun

    def command(self, text: str) -> None:
        """Report that the run begins: Puppet starts with this command line."""
        self._begun()


def run_order(node: NodeApp, order: RunOrder, begun: Callable[[], None]) -> RunCompletion:
    """Apply a release as `localpuppet apply` does, and return the result.

    Args:
        node: The parts of the node; its settings are read again for each run.
        order: The causes and options of the run.
        begun: Called when the run is recorded and Puppet is about to start.
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
                return RunCompletion(result=RequestedRunResult.BUSY, reason=str(error))
    except LocalpuppetError as error:
        return RunCompletion(result=RequestedRunResult.IMPOSSIBLE, reason=str(error))
    return _end(status)


def deploy(node: NodeApp, order: Deployment, _begun: Callable[[], None]) -> RunCompletion:
    """Stage, apply or leave a release, and return the result: `OVER` on success.

    Args:
        node: The parts of the node; its settings are read again.
        order: The assignment and the action.
    """
    assignment, deed = order.assignment, order.args.action

    def take() -> None:
        assigning = _assigning(node)
        if deed is DeployAction.STAGE:
            assigning.stage(assignment)
        elif deed is DeployAction.APPLY:
            assigning.take(assignment)
        else:
            assigning.go_back(assignment)

    return _done(take)


def retreat(node: NodeApp, order: RetreatOrder, _begun: Callable[[], None]) -> RunCompletion:
    """Go back from a release that was not confirmed, and return the result; see `deploy`.

    Args:
        node: The parts of the node; its settings are read again.
        order: The release to leave.
    """
    left, by = order.left, order.because
    return _done(lambda: _assigning(node).go_back(left, by=by))


def _assigning(node: NodeApp) -> "AssignmentService":
    fresh = node.again()
    return fresh.assigning(
        confirm=fleet_settings(fresh).agent.confirm or 0.0,
        confirmed=partial(is_confirmed, fresh),
    )


def _done(work: Callable[[], None]) -> RunCompletion:
    """Call a function, and return whether it succeeded as the result of a request."""
    try:
        work()
    except BusyError as error:
        return RunCompletion(result=RequestedRunResult.BUSY, reason=str(error))
    except LocalpuppetError as error:
        return RunCompletion(result=RequestedRunResult.IMPOSSIBLE, reason=str(error))
    return RunCompletion(result=RequestedRunResult.OVER)


def compile_candidate(node: NodeApp, order: Compile, _begun: Callable[[], None]) -> RunCompletion:
    """Compile two catalogs, and return their differences; see `deploy`.

    Args:
        node: The parts of the node; its settings are read again.
        order: The release of the second catalog.
    """
    try:
        changes = node.again().candidate().changes(order.release)
    except LocalpuppetError as error:
        return RunCompletion(result=RequestedRunResult.IMPOSSIBLE, reason=str(error))
    return RunCompletion(
        result=RequestedRunResult.OVER, details=changes.bounded(MAX_CHANGES).to_dict()
    )


def _run(
    node: NodeApp,
    options: RunOptions,
    begun: Callable[[], None],
    named: Callable[[ReleasePath], None],
) -> Status:
    prepared = node.preparation().prepare(options, named=named)
    server = node.fork_server if fleet_settings(node).agent.warm else None
    supervisor = node.supervisor(_Begins(begun), fork_server=server)
    node.processes.watch_signals()
    return supervisor.apply(prepared)


def _end(status: Status) -> RunCompletion:
    return RunCompletion(
        result=RequestedRunResult.OVER,
        run=status.id,
        outcome=str(status.outcome),
        reason="" if status.succeeded else public_reason(status),
    )


def warm(node: NodeApp) -> None:
    """Import the modules that a run needs, so that forked children share them."""
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
