"""What can be wrong with an address of the page, beside what can be wrong everywhere."""

from localpuppet.base.errors import LocalpuppetError


class NotThereError(LocalpuppetError):
    """There is nothing at this address."""
