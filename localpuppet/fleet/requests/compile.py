"""The arguments of `compile`: the release with which a node compiles its catalog."""

from dataclasses import dataclass

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.values import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
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

    @classmethod
    def read(cls, fields: Fields) -> "Compile":
        """Read the arguments from JSON fields.

        Raises:
            InvalidInputError: They are invalid.
        """
        fields.only(("release",))
        return cls(release=fields.parsed("release", ReleasePath.parse))

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {"release": str(self.release)}
