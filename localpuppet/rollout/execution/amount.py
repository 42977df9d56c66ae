"""A number of nodes as people write it: `3`, or `25%` of a total."""

import re

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.value import Value

_AMOUNT = re.compile(r"([0-9]{1,6})(%?)\Z")


class Amount(Value):
    """A number of nodes, absolute or as a percentage."""

    number: int
    percent: bool

    @classmethod
    def parse(cls, text: str, *, what: str, minimum: int = 1) -> "Amount":
        """Parse an amount.

        Args:
            text: The amount as a person wrote it.
            what: The option or field, for messages.
            minimum: The smallest number that is allowed.

        Raises:
            InvalidInputError: The text is not an amount, is below the minimum, or is above 100%.
        """
        match = _AMOUNT.match(text)
        if not match:
            raise InvalidInputError(
                f"{text[:40]!r} is not a number of nodes", where=what, hint="write 3 or 25%"
            )
        amount = cls(number=int(match[1]), percent=bool(match[2]))
        if amount.number < minimum or (amount.percent and amount.number > 100):
            most = " to 100%" if amount.percent else " or more"
            raise InvalidInputError(f"is {text}, must be {minimum}{most}", where=what)
        return amount

    def of(self, total: int) -> int:
        """Return the number of nodes out of `total`; a percentage is rounded down."""
        return total * self.number // 100 if self.percent else self.number

    def __str__(self) -> str:
        return f"{self.number}{'%' * self.percent}"
