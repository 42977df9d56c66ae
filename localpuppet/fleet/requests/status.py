"""The arguments of `status`: ask for a node's state, the caller's rights, and a rollout."""

from dataclasses import dataclass

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.values import Json
from localpuppet.fleet.requests.rollout import RolloutReference, claimed
from localpuppet.fleet.trust.policy import DEPLOY, DEPLOYS, REQUESTS, TAKEOVER

# The rights that a caller can ask about besides releases.
_RIGHTS = (*(action for action in REQUESTS if action != DEPLOY), "older", TAKEOVER, "values")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusRequest:
    """The arguments of `status`.

    Attributes:
        may: Actions and rights (`deploy:shop/tags/r7`, `values`); the node returns those that its
            policy denies the caller.
        rollout: The node returns the controller of this rollout.
    """

    may: tuple[str, ...] = ()
    rollout: RolloutReference | None = None

    @classmethod
    def read(cls, fields: Fields) -> "StatusRequest":
        """Read the arguments from JSON fields.

        Raises:
            InvalidInputError: They are invalid.
        """
        fields.only(("may", "rollout"))
        return cls(
            may=fields.parsed_list("may", _right, minimum=1, maximum=len(_RIGHTS))
            if "may" in fields
            else (),
            rollout=RolloutReference.read_if_there(fields, step=False),
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
