"""The arguments of `compile`: the release with which a node compiles its catalog."""

from dataclasses import dataclass, field

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.json_form import JsonForm, parsed
from localpuppet.base.formats.names import ReleasePath


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile(JsonForm):
    """The arguments of `compile`.

    Attributes:
        release: The candidate, a tag.
    """

    release: ReleasePath = field(metadata=parsed(ReleasePath.parse))

    def __post_init__(self) -> None:
        """Check the arguments before they are on the bus.

        Raises:
            InvalidInputError: The release is not a tag.
        """
        if not self.release.is_tag:
            raise InvalidInputError(
                f"{self.release} is not a tag, and only tags are compared",
                where="release",
                hint="name SOURCE/tags/TAG",
            )
