"""Limit the places of a shared resource that one owner can take, so that others find room.

Example: of 1,000 places, with a reserve of 200 for owners with fewer than 20, one owner takes
1,000; ten others still get 20 places each.
"""

from localpuppet.base.value import Value


class Quota(Value):
    """A limit for all owners, with a reserve for owners with few places.

    Attributes:
        shared: The number of places for all owners.
        reserve: Additional places for owners with few; `shared + reserve` is never exceeded.
        few: An owner with fewer places than this may use the reserve.
        each: The maximum for one owner; `None` for no such limit.
    """

    shared: int
    reserve: int
    few: int
    each: int | None = None

    def has_room(self, *, own: int, total: int) -> bool:
        """Return whether an owner may take another place.

        Args:
            own: The number of places that the owner has.
            total: The number of places that all owners have.
        """
        if self.each is not None and own >= self.each:
            return False
        return total < self.shared or (own < self.few and total < self.shared + self.reserve)
