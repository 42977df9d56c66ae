"""Compares pins: what changed between two locks, and what could be updated.

Nothing is fetched or changed.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from localpuppet.base.value import Value
from localpuppet.node.releases.forge.versions import ModuleVersion, Range, newest
from localpuppet.node.releases.manifest import AnyPin, CommitPin, ForgePin, Lock

if TYPE_CHECKING:
    from localpuppet.node.releases.forge.archive import ModuleForge
    from localpuppet.node.releases.git.repository import Repository


_FORGE = "https://forge.puppet.com/modules"
_HOST = re.compile(
    r"(?P<repository>https://(?:github\.com|codeberg\.org|gitea\.[^/]+|(?P<gitlab>gitlab\.[^/]+))"
    r"/[^?#]+?)(?:\.git)?/?\Z"
)
_NUMBERS = re.compile(r"(?:[a-z]+[-_]?)?(\d+(?:\.\d+)*)\Z", re.IGNORECASE | re.ASCII)


class PinMove(Value):
    """A name whose pin changed, or could change.

    Attributes:
        name: The module or source.
        old: The old pin; empty for a new name.
        new: The new or possible pin; empty for a removed name.
        changes: The URL of a page with the changes, or empty.
    """

    name: str
    old: str
    new: str
    changes: str = ""

    def to_dict(self) -> dict[str, str | None]:
        """Return the JSON form."""
        return {name: value or None for name, value in asdict(self).items()}


def moves(old: Lock, new: Lock) -> tuple[PinMove, ...]:
    """Return what differs between two locks, by name."""
    before, after = old.pins, new.pins
    return tuple(
        PinMove(
            name=key.partition(".")[2],
            old=label(before.get(key)),
            new=label(after.get(key)),
            changes=changes(before.get(key), after.get(key)),
        )
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    )


def changes(old: AnyPin | None, new: AnyPin | None) -> str:
    """Return the URL of a page with the changes between two pins, or empty.

    The Forge has one for each module (a mirror of it has the same modules); GitHub, GitLab, Gitea
    and Codeberg compare commits.
    """
    if isinstance(new, ForgePin):
        return f"{_FORGE}/{new.forge}/changelog" if isinstance(old, ForgePin) else ""
    if old is None or new is None or isinstance(old, ForgePin) or old.url != new.url:
        return ""
    host = _HOST.match(new.url)
    if host is None:
        return ""
    way = "/-/compare/" if host["gitlab"] else "/compare/"
    return f"{host['repository']}{way}{old.commit[:12]}...{new.commit[:12]}"


def label(pin: AnyPin | None) -> str:
    """Return a pin in a few words: a tag, a version, a branch and its commit."""
    if pin is None:
        return ""
    if isinstance(pin, CommitPin):
        return f"{pin.branch} {pin.short}".strip()
    return pin.name


def newer_version(pin: ForgePin, versions: Iterable[ModuleVersion]) -> str:
    """Return the newest version of a module if it is newer than the pin, else empty."""
    version = newest(Range.parse("latest", where=""), versions)
    return version if version is not None and version.order > pin.version.order else ""


def newer_ref(pin: AnyPin, refs: Mapping[str, str]) -> str:
    """Return the newer tag, or the newer commit of the branch, or empty."""
    if isinstance(pin, ForgePin):
        return ""
    if isinstance(pin, CommitPin):
        commit = refs.get(f"refs/heads/{pin.branch}", pin.commit) if pin.branch else pin.commit
        return f"{pin.branch} {commit[:12]}" if commit != pin.commit else ""
    here = _numbers(pin.tag)
    tags = [name.removeprefix("refs/tags/") for name in refs if name.startswith("refs/tags/")]
    numbered = [(numbers, tag) for tag in tags if (numbers := _numbers(tag))]
    best = max(numbered, default=((), ""))
    return best[1] if here and best[0] > here else ""


def _numbers(tag: str) -> tuple[int, ...]:
    match = _NUMBERS.match(tag)
    return tuple(int(number) for number in match[1].split(".")) if match else ()


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
