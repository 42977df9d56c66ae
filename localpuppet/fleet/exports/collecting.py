"""What a collector of this node gets, of what is held and by this node's policy.

Owns: where the policy is read. Refuses to know: how old the answer may be (the caller), Puppet.
"""

import functools
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError, StateError, UnavailableError
from localpuppet.base.formats.text import one_line
from localpuppet.fleet.exports.choosing import CollectorResult, choose
from localpuppet.fleet.exports.policy import DEFAULT, CollectPolicy
from localpuppet.fleet.exports.recording import CollectorRecord, answered
from localpuppet.fleet.exports.search import Search
from localpuppet.fleet.trust.policy_file import policy_bytes

if TYPE_CHECKING:
    from localpuppet.fleet.exports.held import HeldExports

MAX_WARNED = 3


class CollectorService:
    """Answers collectors.

    Args:
        held: What the nodes export.
        me: This node.
        policy: `policies/collect.policy`.
    """

    def __init__(self, held: "HeldExports", *, me: str, policy: Path) -> None:
        self._held = held
        self._me = me
        self._policy = policy

    def collect(self, kind: str, search: Search) -> CollectorResult:
        """Return what a collector gets; see `choose`.

        Args:
            kind: The type.
            search: What is asked for.

        Raises:
            InvalidInputError: The policy is refused, or stops the run.
            UnavailableError: What a node exports was never read.
            StateError: What is held cannot be read.
        """
        policy = read_collect_policy(self._policy)
        with closing(self._held.find(kind=kind, tag=search.tag())) as offers:
            return choose(offers, kind, search, me=self._me, policy=policy)

    def again(self, before: Sequence[CollectorRecord]) -> list[CollectorRecord]:
        """Return what the collectors of a run would get now, of what is held of other nodes.

        One that would stop the run, or had no answer then, has a `reason` and no digest.

        Args:
            before: The collectors, as the run's record has them.
        """
        return [self._again(one) for one in before]

    def _again(self, before: CollectorRecord) -> CollectorRecord:
        asked = CollectorRecord(type=before.type, filter=before.filter, at=before.at)
        try:
            return answered(asked, self.collect(asked.type, Search.parse(asked.filter)))
        except (InvalidInputError, StateError, UnavailableError) as error:
            return replace(asked, reason=one_line(str(error)))

    def warnings(self, choice: CollectorResult) -> list[str]:
        """Return what the author of a manifest should know of an answer, each in one line."""
        said = [
            f"{one.ref} of {one.node} is left out: {one.reason}"
            for one in choice.left_out[:MAX_WARNED]
        ]
        more = len(choice.left_out) - len(said) + choice.more_left_out
        if more:
            said.append(f"{more} more are left out")
        for one in list(self._held.refused().values())[:MAX_WARNED]:
            said.append(f"what {one.node} exports since its last run does not count: {one.reason}")
        return said


def read_collect_policy(path: Path) -> CollectPolicy:
    """Return what this node takes; where there is no file, servers alone.

    Raises:
        InvalidInputError: The file is refused, or others could write to it or its directory.
    """
    data = policy_bytes(path)
    return DEFAULT if data is None else _parsed(data, str(path))


@functools.lru_cache(maxsize=1)
def _parsed(data: bytes, where: str) -> CollectPolicy:
    """Return the policy in these bytes, which seldom are others than the last time."""
    return CollectPolicy.parse(data, where=where)
