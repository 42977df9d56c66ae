"""What a tag of a repository is, once it was fetched and judged."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TagObject:
    """What `refs/tags/TAG` of a repository is.

    Attributes:
        id: What the ref holds: the id of a tag object, or of the commit of a lightweight tag.
        commit: The commit behind it.
        annotated: Whether there is a tag object.
        tree: The id of the commit's tree.
    """

    id: str
    commit: str
    annotated: bool
    tree: str
