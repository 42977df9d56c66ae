"""The data and services that the wiring gives to the dashboard's views."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from localpuppet.base.formats.names import RolloutId
from localpuppet.base.machine.ports import Clock, Log
from localpuppet.rollout.commands import RolloutCommand
from localpuppet.web.access.loopback import LoopbackDoor
from localpuppet.web.access.rules import AccessRule
from localpuppet.web.dashboard.actions import ActionOutcome, NodeAction
from localpuppet.web.dashboard.diagrams import Draw
from localpuppet.web.dashboard.fleet import Fleet
from localpuppet.web.dashboard.inventory_questions import Inventory, Reports
from localpuppet.web.dashboard.live import Live
from localpuppet.web.dashboard.memory import DashboardStore
from localpuppet.web.dashboard.releases import StagedReleases
from localpuppet.web.dashboard.rollout_actions import Groups, RolloutStart
from localpuppet.web.dashboard.rollouts import Rollouts

# Seconds that a node's view waits for its links: the first visitor may see the view without them.
PATIENCE = 0.5
# Seconds within which a form must arrive.
FORM_PATIENCE = 10.0


class Actor(Protocol):
    """Sends signed requests for actions to nodes."""

    @property
    def name(self) -> str:
        """Return the caller in whose name requests are sent."""

    @property
    def machine(self) -> str:
        """Return the name of this machine."""

    async def act(self, deed: NodeAction) -> ActionOutcome:
        """Request an action of nodes; return the result of each within bounded time.

        Raises:
            LocalpuppetError: The bus is unreachable; which nodes received the request is unknown.
        """

    async def say(self, rollout: RolloutId, word: RolloutCommand, about: str) -> str:
        """Send a command to the controller of a rollout; return the result.

        Args:
            rollout: The rollout.
            word: The command.
            about: The subject of the command, see `SentCommand`.

        Raises:
            LocalpuppetError: No controller is running, or it does not wait for that command.
        """

    async def plan(self, selection: Mapping[str, str]) -> Groups:
        """Return the groups of a rollout.

        Args:
            selection: `query` or `role` → its value.

        Raises:
            LocalpuppetError: The selection is invalid or empty, or the inventory is unreachable.
        """

    async def start(self, start: RolloutStart) -> str:
        """Start a process that runs a rollout; return the result.

        Raises:
            LocalpuppetError: The process did not start the rollout.
        """

    async def resume(self, rollout: RolloutId) -> str:
        """Start a process that continues a rollout; return the result.

        Raises:
            LocalpuppetError: A process is running already, the rollout is over or another user's,
                or the process could not start.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewContext:
    """The data and services of the views.

    Attributes:
        fleet: The rows.
        memory: Runs.
        inventory: The entries of nodes' last good runs.
        staged: The releases that are staged on this machine.
        rollouts: The rollouts of this machine.
        reports: Requests reports from nodes.
        live: Sends changes to browsers.
        door: The access rule.
        clock: Time.
        log: Gets a line for each action.
        draw: Draws diagrams.
        entrance: The same access rule, if it has a login link, with tokens for actions; `None` over
            TLS, which has no actions.
        actor: Sends actions to nodes; `None` for a dashboard without actions.
        patience: Seconds that a node's view waits for its links; `None` for no limit.
        form_patience: Seconds within which a form must arrive.
    """

    fleet: Fleet
    memory: DashboardStore
    inventory: Inventory
    staged: StagedReleases
    rollouts: Rollouts
    reports: Reports
    live: Live
    door: AccessRule
    clock: Clock
    log: Log
    draw: Draw
    entrance: LoopbackDoor | None = None
    actor: Actor | None = None
    patience: float | None = PATIENCE
    form_patience: float = FORM_PATIENCE
