"""How much of something bounded one signer may take, so that others find room.

Example: of 1,000 places, with a reserve of 200 for who has fewer than 20, one signer takes 1,000;
ten others still find 20 places each.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A bound for all, and what is kept for those who have little.

    Attributes:
        shared: How many places anybody may take.
        reserve: How many more there are for owners with few; `shared + reserve` is never passed.
        few: Who has fewer than so many places may take one of the reserve.
        each: How many places one owner may have; `None` for no such bound.
    """

    shared: int
    reserve: int
    few: int
    each: int | None = None

    def has_room(self, *, own: int, total: int) -> bool:
        """Return whether an owner may take one place more.

        Args:
            own: How many places the owner has.
            total: How many are taken by all.
        """
        if self.each is not None and own >= self.each:
            return False
        return total < self.shared or (own < self.few and total < self.shared + self.reserve)
