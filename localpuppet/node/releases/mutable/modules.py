"""Brings the locked modules of mutable code (a work tree, `trunk`, a branch) onto the node.

Trees are compared with their pins, as for a release. The lock of a revision that the user does not
trust names what its author likes, so it decides neither who asks nor what is shown:

- what the base's lock pins, and other versions of the repositories and Forge modules that the base
  or the settings name: brought as for the base;
- anything else: as everybody can get it, from listed hosts.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.value import Value
from localpuppet.node.releases.fetch import Supply, wanted_of
from localpuppet.node.releases.layout.links import ModuleLinks, release_links
from localpuppet.node.releases.lock import AnyPin, ForgePin, Lock

if TYPE_CHECKING:
    from localpuppet.node.releases.git.repository import Repository


class CodeSupply(Value):
    """One way of bringing code.

    Attributes:
        supply: Provides code.
        repository: Provides git, under a title for progress.
    """

    supply: Supply
    repository: "Callable[[str], AbstractContextManager[Repository]]"


class LockedModules(CodeSupply):
    """Brings locked modules and collections onto the node."""

    def bring(self, lock: Lock, moduledir: str, *, title: str, file: Path) -> None:
        """Bring the trees of a lock into the store, and link its modules.

        Args:
            lock: The lock.
            moduledir: The directory of its modules; empty for the top of the release.
            title: The purpose, for the progress line.
            file: The lock's file, for messages.

        Raises:
            InvalidInputError: The forge has no such release, or an untrusted lock names code of a
                place that is not listed.
            IntegrityError: A tag moved, or bytes or a signature are wrong.
            UnavailableError: A repository or the forge is unreachable.
            BusyError: Another process changes the store.
        """
        wanted = wanted_of(lock, self.supply.sources, file=str(file))
        ways = [*self.ways(lock.pins, str(file))]
        with self.supply.store.locks.take_for_changes():
            budget = self.supply.store.budget()
            for way, pins in ways:
                tags = {key: wanted[key] for key in pins if key in wanted}
                with way.repository(title) as repository:
                    way.supply.tags(repository).bring(tags, budget=budget)
                    way.supply.modules(repository).bring(pins, file=str(file), budget=budget)
            links = release_links(file.parent, moduledir, lock.trees)
            ModuleLinks(self.supply.store.directory).make(links)

    def ways(
        self, pins: Mapping[str, AnyPin], file: str
    ) -> Iterator[tuple[CodeSupply, Mapping[str, AnyPin]]]:
        """Yield how to bring pins, with those that are brought so."""
        yield self, pins


class UntrustedModules(LockedModules):
    """Brings the modules of an untrusted revision.

    Attributes:
        base: The pins of the base's lock, which are on the node.
        named: The URLs of the repositories that the settings name.
        known: Brings other versions of known code.
        public: Brings what everybody can get.
        address: Returns the address that a pin is fetched from.
        hosts: The hosts of public code: HOST or HOST:PORT, in lower case.
    """

    base: frozenset[AnyPin]
    named: frozenset[str]
    known: CodeSupply
    public: CodeSupply
    address: Callable[[AnyPin], str]
    hosts: frozenset[str]

    def ways(
        self, pins: Mapping[str, AnyPin], file: str
    ) -> Iterator[tuple[CodeSupply, Mapping[str, AnyPin]]]:
        """Yield how to bring pins; see `LockedModules.ways`.

        Raises:
            InvalidInputError: A pin is of a place that is not listed.
        """
        same = {key: pin for key, pin in pins.items() if pin in self.base}
        names = self.named | {_name(pin) for pin in self.base}
        known = {key: pin for key, pin in pins.items() if _name(pin) in names and key not in same}
        public = {key: pin for key, pin in pins.items() if key not in same and key not in known}
        for key, pin in public.items():
            self._refuse_unlisted(pin, f"{file}: {key}")
        for way, some in ((self, same), (self.known, known), (self.public, public)):
            if some:
                yield way, some

    def _refuse_unlisted(self, pin: AnyPin, where: str) -> None:
        url = urlsplit(self.address(pin))
        # The Forge is no source, and only an https host can be listed.
        cures = [] if isinstance(pin, ForgePin) else ["its repository in 'sources'"]
        cures += ["its host in 'preview.hosts'"] if url.scheme == "https" else []
        name = f"name {' or '.join(cures)} of localpuppet.yaml, or " if cures else ""
        if url.scheme != "https" or url.netloc.lower().removesuffix(":443") not in self.hosts:
            raise InvalidInputError(
                "only this revision names this code, which is at no https host of 'preview.hosts';"
                " the revision is not trusted",
                where=where,
                hint=f"{name}pass '--trusted' for code that may do all that you can",
            )


def _name(pin: AnyPin) -> str:
    """Return the exact repository, or the module of the Forge."""
    return pin.forge if isinstance(pin, ForgePin) else pin.url
