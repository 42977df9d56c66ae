"""Accept or reject the requests that a node receives.

- The order of checks: size, signature, form, caller, audience, lifetime, policy, and last the
  repetition check, which writes to disk.
- `receive` returns a request at most once, across restarts and processes.
"""

from pathlib import Path

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.ports import Clock
from localpuppet.base.value import Value
from localpuppet.fleet.requests import request as requests
from localpuppet.fleet.requests.request import Request
from localpuppet.fleet.trust import policy_file
from localpuppet.fleet.trust.policy_file import read_policy
from localpuppet.fleet.trust.seen import SeenIds
from localpuppet.fleet.trust.signing import MessageKind, Verifier

# Seconds for which ids are kept, longer than the lifetime of messages: a clock that is set back by
# less does not revive one.
KEEP = 3600


class RequestRefusal(Value):
    """A rejected request.

    Attributes:
        reason: Why, in one line, for the log.
        request: The request if its caller gets a reply: the caller signed it for this node, and it
            was not accepted before. A repeated message has its reply already, and a second one
            could overtake it.
        is_repeated: Whether the node accepted it before: the bus delivers what it still has when an
            agent starts, so this is no sign of an attack.
    """

    reason: str
    request: Request | None
    is_repeated: bool = False


class RequestAdmission(Value):
    """Checks the requests to this node.

    Attributes:
        me: This node.
        verifier: Verifies signatures.
        policy: The path of the policy file, read for each request; it may be missing.
        seen: The ids of accepted requests.
        clock: The node's clock.
    """

    me: NodeName
    verifier: Verifier
    policy: Path
    seen: SeenIds
    clock: Clock

    def refusal(self, caller: SignerName, action: str) -> str:
        """Return why the policy denies a caller an action; empty if it allows it.

        Raises:
            InvalidInputError: The policy is invalid.
        """
        return policy_file.refusal(self.policy, caller, action)

    def receive(self, token: bytes) -> Request | RequestRefusal:
        """Return an accepted request, or why it is rejected. Blocks for a disk write."""
        try:
            signed = self.verifier.verify(token, MessageKind.REQUEST)
            request = Request.parse(signed.payload)
            reason = requests.misdirection(request, signer=signed.signer, me=self.me)
            if reason:
                return RequestRefusal(reason=reason, request=None)
        except LocalpuppetError as error:
            return RequestRefusal(reason=one_line(str(error)), request=None)
        try:
            now = int(self.clock.now().timestamp())
            reason = requests.refusal(request, now=now, policy=read_policy(self.policy))
            if reason:
                return RequestRefusal(reason=reason, request=request)
            if self.seen.add(request.caller, request.jti, request.exp + KEEP):
                return request
        except LocalpuppetError as error:
            return RequestRefusal(reason=one_line(str(error)), request=request)
        reason = f"replay: {request.jti} was admitted already"
        return RequestRefusal(reason=reason, request=None, is_repeated=True)
