"""Answer this node's collectors from the stored exports and the collect policy."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError, StateError, UnavailableError
from localpuppet.base.formats.text import one_line
from localpuppet.fleet.exports.policy import DEFAULT, CollectPolicy
from localpuppet.fleet.exports.recording import CollectorRecord, answered
from localpuppet.fleet.exports.search import CollectorResult, Search, choose
from localpuppet.fleet.trust.policy import read_policy_file

if TYPE_CHECKING:
    from localpuppet.fleet.exports.held import HeldExports

MAX_WARNED = 3


class CollectorService:
    """Answers the collectors of this node.

    Args:
        held: The stored exports of other nodes.
        me: This node.
        policy: The path of `policies/collect.policy`.
    """

    def __init__(self, held: "HeldExports", *, me: str, policy: Path) -> None:
        self._held = held
        self._me = me
        self._policy = policy

    def collect(self, kind: str, search: Search) -> CollectorResult:
        """Return the result of a collector; see `choose`.

        Args:
            kind: The type.
            search: The collector's condition.

        Raises:
            InvalidInputError: The policy is invalid or stops the run.
            UnavailableError: The exports of a node were never read.
        """
        policy = read_collect_policy(self._policy)
        with closing(self._held.find(kind=kind, tag=search.tag())) as offers:
            return choose(offers, kind, search, me=self._me, policy=policy)

    def again(self, before: Sequence[CollectorRecord]) -> list[CollectorRecord]:
        """Return the results that the collectors of a past run would get now.

        A collector that fails now, or had no answer then, gets a `reason` and no digest.

        Args:
            before: The collectors as recorded in the run.
        """
        return [self._again(earlier) for earlier in before]

    def _again(self, before: CollectorRecord) -> CollectorRecord:
        asked = CollectorRecord(type=before.type, filter=before.filter, at=before.at)
        try:
            return answered(asked, self.collect(asked.type, Search.parse(asked.filter)))
        except (InvalidInputError, StateError, UnavailableError) as error:
            return replace(asked, reason=one_line(str(error)))

    def warnings(self, choice: CollectorResult) -> list[str]:
        """Return warnings about a result for the author of the manifest, each one line."""
        warnings = [
            f"{resource.resource} of {resource.node} is left out: {resource.reason}"
            for resource in choice.left_out[:MAX_WARNED]
        ]
        more = len(choice.left_out) - len(warnings) + choice.more_left_out
        if more:
            warnings.append(f"{more} more are left out")
        for refusal in list(self._held.refused().values())[:MAX_WARNED]:
            warnings.append(
                f"ignoring exports of {refusal.node} since its last run: {refusal.reason}"
            )
        return warnings


def read_collect_policy(path: Path) -> CollectPolicy:
    """Return this node's collect policy; without a file, one that takes only servers.

    Raises:
        InvalidInputError: The file is invalid, or other users can write to it or its directory.
    """
    return read_policy_file(path, CollectPolicy.parse) or DEFAULT
