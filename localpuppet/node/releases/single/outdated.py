"""Finds possible updates of a lock: newer versions, tags, and commits of branches.

Nothing is fetched or changed.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from localpuppet.node.releases.lock import ForgePin, Lock
from localpuppet.node.releases.single.moves import PinMove, label, newer_ref, newer_version

if TYPE_CHECKING:
    from localpuppet.node.releases.forge.ports import ModuleForge
    from localpuppet.node.releases.git.repository import Repository


def outdated(
    lock: Lock, *, repository: "Repository", forge: "Callable[[], ModuleForge]"
) -> tuple[PinMove, ...]:
    """Return the possible updates, by name.

    Raises:
        InvalidInputError: The Forge no longer has a module.
        UnavailableError: A repository or the forge is unreachable.
    """
    pins = lock.pins
    slugs = [pin.forge for pin in pins.values() if isinstance(pin, ForgePin)]
    urls = [str(pin.url) for pin in pins.values() if not isinstance(pin, ForgePin)]
    versions = forge().versions(slugs) if slugs else {}
    refs = repository.refs(urls) if urls else {}
    moves = []
    for key in sorted(pins):
        pin = pins[key]
        new = (
            newer_version(pin, versions[pin.forge])
            if isinstance(pin, ForgePin)
            else newer_ref(pin, refs[pin.url])
        )
        if new:
            moves.append(PinMove(name=key.partition(".")[2], old=label(pin), new=new))
    return tuple(moves)
