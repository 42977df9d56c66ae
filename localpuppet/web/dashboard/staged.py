"""What is staged on this machine: which releases, who signed them, and how two of them differ.

Owns: what of that is remembered between two looks. Refuses to know: HTML; how signatures are
verified, and how trees are read.

- A signature is judged by its source's signers file as it is now, and again when that has changed.
- Nothing is fetched: what this machine does not have of a tag, it cannot tell. Nor can it where the
  tag has been moved since: who signed what it is now did not sign what is staged.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from localpuppet.base.errors import IntegrityError, InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.releases.comparing import differences
from localpuppet.node.releases.difference import Difference
from localpuppet.node.releases.git.repository import Repository
from localpuppet.node.releases.lock import Pin
from localpuppet.node.releases.release import Release
from localpuppet.node.releases.release_files import ReleaseFiles
from localpuppet.node.releases.source import Source
from localpuppet.node.releases.staged import Staged
from localpuppet.node.releases.staged_records import StagedRecords
from localpuppet.node.releases.threshold import signed_by
from localpuppet.node.releases.verified import rules_digest

# Signatures and comparisons that are remembered.
MOST_SIGNED = 1000
MOST_COMPARED = 8
# What stands behind "signed by" where no name does.
# Seconds after which it is looked again whether it can be told who signed.
AGAIN = 60.0
NOBODY = "nobody whose signature counts"
UNTOLD = "somebody; it cannot be told here who"

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class StagedReleases(Protocol):
    """The releases that are staged on this machine."""

    def all(self) -> Sequence[Staged]:
        """Return all, by name.

        Raises:
            StateError: A record is damaged.
        """
        ...

    def signed(self, staged: Staged) -> str:
        """Return who signed a release, one line; empty where its source asks for no signature."""
        ...

    def subject(self, staged: Staged) -> str:
        """Return the first line of what a release's tag says; empty where it cannot be told."""
        ...

    def differences(self, before: ReleasePath, after: ReleasePath) -> Mapping[str, Difference]:
        """Return how two releases differ: `dependencies`, `files`.

        Raises:
            InvalidInputError: One of them is not staged here.
            LocalpuppetError: One cannot be read, or is not what it was.
        """
        ...


class StagedHere:
    """The releases in a state directory; `StagedReleases`.

    Args:
        records: Their records.
        resolve: Returns a release that is on this node.
        repository: Git; asked for what is in its mirrors.
        sources: The site's sources by name.
        reader: Reads locks.
        monotonic: Seconds that only go forward.
    """

    def __init__(
        self,
        records: StagedRecords,
        resolve: Callable[[ReleasePath], Release],
        *,
        repository: Repository,
        sources: Mapping[str, Source],
        reader: ReleaseFiles,
        monotonic: Callable[[], float],
    ) -> None:
        self._records = records
        self._resolve = resolve
        self._repository = repository
        self._sources = sources
        self._reader = reader
        self._monotonic = monotonic
        # One at a time: whoever looks has them read whole trees, and start git.
        self._turn = threading.Lock()
        self._signed: OrderedDict[tuple[str, str], tuple[str, float]] = OrderedDict()
        self._compared: OrderedDict[tuple[str, str], Mapping[str, Difference]] = OrderedDict()

    def all(self) -> Sequence[Staged]:
        """Return all; see `StagedReleases`."""
        return self._records.all()

    def signed(self, staged: Staged) -> str:
        """Return who signed a release; see `StagedReleases`."""
        source = self._sources.get(staged.app.source)
        if source is None or source.signers is None:
            return ""
        try:
            key = (f"{staged.app} {staged.pin.tag_object}", rules_digest(source))
        except LocalpuppetError:
            return UNTOLD
        with self._turn:
            found, until = self._signed.get(key, (UNTOLD, 0.0))
            if until <= self._monotonic():
                found = self._signers(source, staged.pin)
                until = self._monotonic() + AGAIN if found == UNTOLD else math.inf
                self._signed[key] = found, until
                _forget(self._signed, MOST_SIGNED)
            return found

    def _signers(self, source: Source, pin: Pin) -> str:
        try:
            if self._repository.tag(pin.url, pin.tag).id != pin.tag_object:
                return UNTOLD
            return ", ".join(signed_by(self._repository, source, url=pin.url, tag=pin.tag))
        except IntegrityError:
            return NOBODY
        except LocalpuppetError:
            return UNTOLD

    def subject(self, staged: Staged) -> str:
        """Return what a release's tag says; see `StagedReleases`."""
        pin = staged.pin
        try:
            with self._turn:
                found = self._repository.tag(pin.url, pin.tag)
        except LocalpuppetError:
            return ""
        return found.subject if found.id == pin.tag_object else ""

    def differences(self, before: ReleasePath, after: ReleasePath) -> Mapping[str, Difference]:
        """Return how two releases differ; see `StagedReleases`."""
        first, second = self._staged(before), self._staged(after)
        key = first.composition, second.composition
        with self._turn:
            if key not in self._compared:
                pair = self._resolve(before), self._resolve(after)
                self._compared[key] = differences(*pair, reader=self._reader)
                _forget(self._compared, MOST_COMPARED)
            return self._compared[key]

    def _staged(self, app: ReleasePath) -> Staged:
        found = self._records.of(app)
        if found is None:
            raise InvalidInputError(
                "is not staged on this machine", where=str(app), hint=f"localpuppet stage {app}"
            )
        return found


def _forget(kept: OrderedDict[_Key, _Value], most: int) -> None:
    while len(kept) > most:
        kept.popitem(last=False)
