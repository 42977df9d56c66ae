"""The arguments of `status`: how a node is, what it would let its caller do, who speaks to it.

Owns: the value and its form. Refuses to know: what a node answers.
"""

from dataclasses import dataclass

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.values import Json
from localpuppet.fleet.requests.rollout import OfRollout, claimed
from localpuppet.fleet.trust.policy import DEPLOY, DEPLOYS, REQUESTS, TAKEOVER

# What a caller can ask about besides releases.
_RIGHTS = (*(action for action in REQUESTS if action != DEPLOY), "older", TAKEOVER, "values")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusRequest:
    """The arguments of `status`.

    Attributes:
        may: Actions and rights (`deploy:shop/tags/r7`, `values`); the node says which of them its
            policy denies the caller.
        rollout: The node says who speaks to it for this rollout; nodes of earlier versions refuse
            a request that names one.
    """

    may: tuple[str, ...] = ()
    rollout: OfRollout | None = None

    @classmethod
    def read(cls, fields: Fields) -> "StatusRequest":
        """Return the arguments.

        Raises:
            InvalidInputError: They are refused.
        """
        fields.only(("may", "rollout"))
        return cls(
            may=fields.parsed_list("may", _right, minimum=1, maximum=len(_RIGHTS))
            if "may" in fields
            else (),
            rollout=OfRollout.read_if_there(fields, step=False),
        )

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        may: dict[str, Json] = {"may": list(self.may)} if self.may else {}
        return {**may, **claimed(self.rollout)}


def _right(text: str) -> str:
    if text.startswith(DEPLOYS):
        release = ReleasePath.parse(text.removeprefix(DEPLOYS), where="")
        return f"{DEPLOYS}{release}"
    if text not in _RIGHTS:
        raise InvalidInputError(
            f"the action {text[:40]!r} is unknown", hint=f"one of {', '.join(_RIGHTS)}"
        )
    return text
