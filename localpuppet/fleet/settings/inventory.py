"""`inventory:` in `localpuppet.yaml`: what a node tells the others, and for how long that counts.

inventory:
facts: ["os", "networking", "role"]      # only these facts leave the node
hide: ["ssh*", "my_secret.*"]            # and none of these
refresh: 12h                             # after so long the same is told again
max_stale: 15m                           # an older view is not asked
expire: 60d                              # a node that said nothing for so long is left out
policy: policies/inventory.policy        # who may claim which roles and addresses
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.times import parse_duration

if TYPE_CHECKING:
    # Every verb reads the settings; only those that publish select facts.
    from localpuppet.fleet.inventory.facts import FactSelection

REFRESH = "12h"
MAX_STALE = "15m"
POLICY = "policies/inventory.policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class InventorySettings:
    """What a node tells of itself, and what it believes of others.

    Attributes:
        facts: Patterns of the facts that leave the node; empty for all.
        hide: Patterns of those that do not.
        refresh: Seconds after which what has not changed is told again.
        max_stale: Seconds for which a view counts after it was last current.
        expire: Seconds after which an entry does not count any more; `None` for never.
        policy: The file that says who may claim what.
    """

    facts: tuple[str, ...]
    hide: tuple[str, ...]
    refresh: float
    max_stale: float
    expire: float | None
    policy: Path

    @property
    def selection(self) -> "FactSelection":
        """Which facts leave the node."""
        from localpuppet.fleet.inventory.facts import FactSelection

        return FactSelection(facts=self.facts, hide=self.hide)


def inventory_settings(raw: Mapping[str, Any], root: Path, file: Path) -> InventorySettings:
    """Return what `inventory:` says.

    Raises:
        InvalidInputError: A time is refused, or entries would expire before they are told again.
    """
    body = raw.get("inventory", {})

    def seconds(key: str, default: str) -> float:
        try:
            return parse_duration(str(body.get(key, default)), what=key)
        except InvalidInputError as error:
            raise error.at(f"{file}: inventory.{key}") from error

    refresh = seconds("refresh", REFRESH)
    expire = seconds("expire", "") if "expire" in body else None
    if expire is not None and expire <= 2 * refresh:
        raise InvalidInputError(
            "must be more than twice inventory.refresh",
            where=f"{file}: inventory.expire",
            hint="or nodes that are well would be left out",
        )
    return InventorySettings(
        facts=tuple(body.get("facts", ())),
        hide=tuple(body.get("hide", ())),
        refresh=refresh,
        max_stale=seconds("max_stale", MAX_STALE),
        expire=expire,
        policy=root / body.get("policy", POLICY),
    )
