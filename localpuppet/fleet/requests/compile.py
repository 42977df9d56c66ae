"""The arguments of `compile`: the release with which a node compiles its catalog."""

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.records import Message


class Compile(Message):
    """The arguments of `compile`.

    Attributes:
        release: The candidate, a tag.
    """

    release: ReleasePath

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
