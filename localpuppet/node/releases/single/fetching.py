"""Brings single modules that are not tags into the store: commits, and archives of the Forge.

    fetch the commit or archive -> unpack -> whose is it? -> are the bytes as pinned?

- Tags go through `releases.fetch`.
- A tree that differs from its pin stops the call.
- The Forge is asked only for what the store lacks. Callers hold the store's lock.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import IntegrityError
from localpuppet.base.machine.files import make_private, remove_tree
from localpuppet.node.releases.limits import Budget
from localpuppet.node.releases.lock import AnyPin, CommitPin, ForgePin, Pin
from localpuppet.node.releases.store import Store

if TYPE_CHECKING:
    from localpuppet.node.releases.forge.ports import ForgeRelease, ModuleForge
    from localpuppet.node.releases.git.repository import Repository

Untagged = CommitPin | ForgePin
_Come = dict[str, tuple[Untagged, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFetcher:
    """Brings commits and archives.

    Attributes:
        repository: Git.
        forge: Returns the Forge; called only if it is needed.
        store: Takes the trees.
        proves: Whether each tree is written again, even if the store has it: see `Fetcher`.
    """

    repository: "Repository"
    forge: "Callable[[], ModuleForge]"
    store: Store
    proves: bool = False

    def bring(
        self,
        pins: Mapping[str, AnyPin],
        *,
        file: str,
        ask_all: bool = False,
        budget: Budget | None = None,
    ) -> dict[str, Untagged]:
        """Bring trees into the store, and return their complete pins; pins of tags are ignored.

        Args:
            pins: By key. An empty `tree_sha256` or `archive_sha256` is filled in.
            file: The file that has them, for messages.
            ask_all: Ask the Forge even about archives whose trees are in the store.
            budget: As for `Fetcher.bring`: all parts of one release are counted together.

        Raises:
            InvalidInputError: The forge has no such release.
            IntegrityError: A tree differs from its pin, is too large, or has a forbidden member.
            UnavailableError: A repository or the Forge is unreachable.
        """
        wanted = {key: pin for key, pin in pins.items() if not isinstance(pin, Pin)}
        absent = {key: pin for key, pin in wanted.items() if not self._has(pin)}
        with_digests = dict(wanted)
        budget = budget or self.store.budget()
        for key, pin in wanted.items():
            if key not in absent:
                members, size = self.store.weight(pin.tree_sha256)
                budget.take(size, where=f"{file}: {key}", members=members)
        come = {**self._commits(absent, file, budget), **self._archives(absent, file, budget)}
        with_digests |= {
            key: replace(pin, tree_sha256=sha256) for key, (pin, sha256) in come.items()
        }
        if ask_all:
            self._ask(
                {
                    key: pin
                    for key, pin in wanted.items()
                    if isinstance(pin, ForgePin) and key not in absent
                }
            )
        return with_digests

    def _has(self, pin: Untagged) -> bool:
        return bool(pin.tree_sha256) and self.store.sound(pin.tree_sha256) and not self.proves

    def _commits(self, absent: Mapping[str, Untagged], file: str, budget: Budget) -> _Come:
        pins = {key: pin for key, pin in absent.items() if isinstance(pin, CommitPin)}
        if not pins:
            return {}
        names = [(str(pin.url), pin.commit) for pin in pins.values()]
        self.repository.fetch_commits(names)
        trees = self.repository.commit_trees(names)
        batch = [
            (str(pin.url), trees[pin.url, pin.commit], str(number))
            for number, pin in enumerate(pins.values())
        ]
        keys = list(pins)
        staging = self.store.staging()
        try:
            with closing(self.repository.write(batch, staging, budget)) as written:
                directories = ((keys[int(number)], staging / number) for number in written)
                digests = self.store.add(directories, accept=_acceptance(pins, file))
        finally:
            remove_tree(staging)
        return {key: (pin, digests[key]) for key, pin in pins.items()}

    def _archives(self, absent: Mapping[str, Untagged], file: str, budget: Budget) -> _Come:
        pins = {key: pin for key, pin in absent.items() if isinstance(pin, ForgePin)}
        if not pins:
            return {}
        archives: dict[str, str] = {}
        staging = self.store.staging()
        try:
            with closing(self._unpacked(pins, staging, archives, budget)) as trees:
                digests = self.store.add(trees, accept=_acceptance(pins, file))
        finally:
            remove_tree(staging)
        return {
            key: (replace(pin, archive_sha256=archives[key]), digests[key])
            for key, pin in pins.items()
        }

    def _unpacked(
        self,
        pins: Mapping[str, ForgePin],
        staging: Path,
        archives: dict[str, str],
        budget: Budget,
    ) -> Generator[tuple[str, Path], None, None]:
        """Yield key and tree of each archive, and note its digest in `archives`."""
        from localpuppet.node.releases.forge.archive import unpack_module

        keys = {_release(pin): key for key, pin in pins.items()}
        wanted = {_release(pin): pin.archive_sha256 for pin in pins.values()}
        with closing(self.forge().archives(wanted)) as arrivals:
            for number, (release, archive, sha256) in enumerate(arrivals):
                target = staging / str(number)
                make_private(target)
                archives[keys[release]] = sha256
                budget.take_archive(archive.stat().st_size, where=str(release))
                top = unpack_module(archive, target, release=release, budget=budget)
                yield keys[release], top

    def _ask(self, pins: Mapping[str, ForgePin]) -> None:
        """Reject pins whose digest differs from the Forge's."""
        if not pins:
            return
        from localpuppet.node.releases.forge.ports import other_archive

        digests = self.forge().digests([_release(pin) for pin in pins.values()])
        for pin in pins.values():
            release = _release(pin)
            if digests[release] and digests[release] != pin.archive_sha256:
                raise other_archive(release, pinned=pin.archive_sha256, now=digests[release])


def _release(pin: ForgePin) -> "ForgeRelease":
    from localpuppet.node.releases.forge.ports import ForgeRelease

    return ForgeRelease(pin.forge, pin.version)


def _acceptance(pins: Mapping[str, Untagged], file: str) -> Callable[[Mapping[str, str]], None]:
    """Return a check that rejects trees that differ from their pins, before any is stored."""

    def accept(digests: Mapping[str, str]) -> None:
        for key, sha256 in digests.items():
            expected = pins[key].tree_sha256
            if expected and sha256 != expected:
                raise IntegrityError(
                    f"has the digest {sha256[:16]}…, the lock says {expected[:16]}…",
                    where=f"{file}: {key}",
                    hint="find out who edited the lock, or what was locked",
                )

    return accept
