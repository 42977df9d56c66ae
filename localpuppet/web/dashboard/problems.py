"""Errors of addresses of the dashboard."""

from localpuppet.base.errors import LocalpuppetError


class NotThereError(LocalpuppetError):
    """No page exists at this address."""
