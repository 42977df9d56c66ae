"""The arguments of `status`: ask for a node's state, the caller's rights, and a rollout."""

from dataclasses import dataclass, field

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.json_form import JsonForm, parsed_list
from localpuppet.base.formats.names import ReleasePath
from localpuppet.fleet.requests.rollout import ROLLOUT, RolloutReference
from localpuppet.fleet.trust.policy import DEPLOY, DEPLOYS, REQUESTS, TAKEOVER

# The rights that a caller can ask about besides releases.
_RIGHTS = (*(action for action in REQUESTS if action != DEPLOY), "older", TAKEOVER, "values")


def _right(text: str) -> str:
    if text.startswith(DEPLOYS):
        release = ReleasePath.parse(text.removeprefix(DEPLOYS), where="")
        return f"{DEPLOYS}{release}"
    if text not in _RIGHTS:
        raise InvalidInputError(
            f"the action {text[:40]!r} is unknown", hint=f"one of {', '.join(_RIGHTS)}"
        )
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusRequest(JsonForm):
    """The arguments of `status`.

    Attributes:
        may: Actions and rights (`deploy:shop/tags/r7`, `values`); the node returns those that its
            policy denies the caller.
        rollout: The node returns the controller of this rollout.
    """

    may: tuple[str, ...] = field(
        default=(), metadata=parsed_list(_right, minimum=1, maximum=len(_RIGHTS))
    )
    rollout: RolloutReference | None = field(default=None, metadata=ROLLOUT)
