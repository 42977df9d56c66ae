"""`inventory:` in `localpuppet.yaml`: what a node publishes, and how long entries count.

inventory:
  facts: ["os", "networking", "role"]      # only these facts leave the node
  hide: ["ssh*", "my_secret.*"]            # except these
  catalogs: true                           # the whole catalog leaves the node, too
  refresh: 12h                             # an unchanged entry is published again after this
  max_stale: 15m                           # an older view is not queried
  expire: 60d                              # an older entry does not count
  policy: policies/inventory.policy        # which nodes may claim which roles and addresses
"""

from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.records import JsonRecord
from localpuppet.node.settings import Seconds, SettingsFile

if TYPE_CHECKING:
    # All commands read the settings; only those that publish select facts.
    from localpuppet.fleet.inventory.facts import FactSelection


class InventorySettings(JsonRecord):
    """What a node publishes of itself, and what it accepts from other nodes.

    Attributes:
        facts: Patterns of the facts that leave the node; empty for all.
        hide: Patterns of the facts that do not.
        catalogs: Whether the node publishes its whole catalog, without Sensitive values.
        refresh: Seconds after which an unchanged entry is published again.
        max_stale: Seconds for which a view counts after it was last current.
        expire: Seconds after which an entry no longer counts; `None` for never.
    """

    facts: tuple[str, ...] = ()
    hide: tuple[str, ...]
    catalogs: bool
    refresh: Seconds
    max_stale: Seconds
    expire: Seconds | None = None
    policy: Path

    @property
    def selection(self) -> "FactSelection":
        """The facts that leave the node."""
        from localpuppet.fleet.inventory.facts import FactSelection

        return FactSelection(facts=self.facts, hide=self.hide)


def inventory_settings(file: SettingsFile) -> InventorySettings:
    """Return the settings below `inventory:`."""
    settings = file.section(InventorySettings, "inventory")
    if settings.expire is not None and settings.expire <= 2 * settings.refresh:
        raise InvalidInputError(
            "must be more than twice inventory.refresh",
            where=f"{file.path}: inventory.expire",
            hint="raise it: otherwise queries leave out healthy nodes",
        )
    return settings
