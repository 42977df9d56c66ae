"""Admission of requests on the node that is asked.

Owns: the order in which a node looks at a request: size, signature, form, caller, audience,
life, policy, and last whether it was seen before, which writes. Refuses to know: how the bytes
came here and what is done with a request.

Invariant: `receive` returns a request at most once, over restarts and in all processes.
"""

from dataclasses import dataclass
from pathlib import Path

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.requests import request as requests
from localpuppet.fleet.requests.request import Request
from localpuppet.fleet.trust import policy_file
from localpuppet.fleet.trust.policy_file import read_policy
from localpuppet.fleet.trust.seen import Seen
from localpuppet.fleet.trust.signing import MessageKind, Verifier

# Ids are kept longer than their messages live: a clock that is set back by less than that
# brings none of them back to life.
KEEP = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A request that is not done.

    Attributes:
        reason: Why, one line; for the log.
        request: What was asked, if its caller is to be told: it is signed by that caller, for
            this node, and not admitted already. A message that comes twice has its answer; a
            second one could overtake it.
    """

    reason: str
    request: Request | None


class RequestAdmission:
    """Where the requests to this node are looked at.

    Args:
        me: This node.
        verifier: Tells whose signatures hold.
        policy: The policy file, read for each request; it need not exist.
        seen: The ids that were admitted.
        clock: The node's clock.
    """

    def __init__(
        self, *, me: NodeName, verifier: Verifier, policy: Path, seen: Seen, clock: Clock
    ) -> None:
        self._me = me
        self._verifier = verifier
        self._policy = policy
        self._seen = seen
        self._clock = clock

    def refusal(self, caller: SignerName, action: str) -> str:
        """Return why the policy denies a caller an action; empty where it allows it.

        Raises:
            InvalidInputError: The policy is refused.
        """
        return policy_file.refusal(self._policy, caller, action)

    def receive(self, token: bytes) -> Request | Refusal:
        """Return a request that is to be done now, or why it is not. Blocks for a disk write."""
        try:
            signed = self._verifier.verify(token, MessageKind.REQUEST)
            request = Request.parse(signed.payload)
            reason = requests.misdirection(request, signer=signed.signer, me=self._me)
            if reason:
                return Refusal(reason=reason, request=None)
        except LocalpuppetError as error:
            return Refusal(reason=one_line(str(error)), request=None)
        try:
            now = int(self._clock.now().timestamp())
            reason = requests.refusal(request, now=now, policy=read_policy(self._policy))
            if reason:
                return Refusal(reason=reason, request=request)
            if self._seen.add(request.caller, request.jti, request.exp + KEEP):
                return request
        except LocalpuppetError as error:
            return Refusal(reason=one_line(str(error)), request=request)
        return Refusal(reason=f"replay: {request.jti} was admitted already", request=None)
