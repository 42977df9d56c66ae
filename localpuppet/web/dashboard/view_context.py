"""The data and services that the wiring gives to the dashboard's views."""

from collections.abc import Callable, Mapping
from typing import Protocol

from localpuppet.base.formats.names import RolloutId
from localpuppet.base.machine.ports import Clock, Log
from localpuppet.base.value import Value
from localpuppet.rollout.commands import RolloutCommand
from localpuppet.web.access.rules import AccessRule, LoopbackDoor, Visitor
from localpuppet.web.dashboard.actions import ActionOutcome, NodeAction
from localpuppet.web.dashboard.fleet import Fleet
from localpuppet.web.dashboard.inventory_questions import Inventory, Reports
from localpuppet.web.dashboard.live import Live
from localpuppet.web.dashboard.memory import DashboardStore
from localpuppet.web.dashboard.releases import StagedReleases
from localpuppet.web.dashboard.rollout_actions import Groups, RolloutStart
from localpuppet.web.dashboard.rollout_previews import RolloutPreviews
from localpuppet.web.dashboard.rollouts import Rollouts
from localpuppet.web.dashboard.topology import Draw

# Seconds that a node's view waits for its links: the first visitor may see the view without them.
PATIENCE = 0.5
# Seconds within which a form must arrive.
FORM_PATIENCE = 10.0
# Seconds that a user waits for a rollout to begin, before a page says that it has not.
BEGIN_PATIENCE = 20.0


class Actor(Protocol):
    """Sends signed requests for actions to nodes."""

    @property
    def name(self) -> str:
        """Return the caller in whose name requests are sent."""

    @property
    def machine(self) -> str:
        """Return the name of this machine."""

    async def act(self, deed: NodeAction) -> ActionOutcome:
        """Request an action of nodes; return the result of each within bounded time."""

    async def say(self, rollout: RolloutId, word: RolloutCommand, about: str) -> str:
        """Send a command and its subject to the controller of a rollout; return the result."""

    async def plan(self, selection: Mapping[str, str]) -> Groups:
        """Return the groups of a rollout by `query` or `role`."""

    async def start(self, start: RolloutStart) -> RolloutId:
        """Start a process that runs a rollout; return the rollout once it has begun."""

    async def resume(self, rollout: RolloutId) -> str:
        """Start a process that continues a rollout; return the result."""


class ViewContext(Value):
    """The data and services of the views.

    Attributes:
        entrance: The same access rule, if it has a login link, with tokens for actions; `None` over
            TLS, which has no actions.
        patience, form_patience, begin_patience: For a node's links, a form, the begin of a rollout.
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
    reads_code: Callable[[Visitor], bool]
    entrance: LoopbackDoor | None = None
    actor: Actor | None = None
    previews: RolloutPreviews | None = None
    patience: float | None = PATIENCE
    form_patience: float = FORM_PATIENCE
    begin_patience: float = BEGIN_PATIENCE
