"""What fetched tags go through before their trees count: moved? whole? stored."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.errors import IntegrityError
from localpuppet.machine.files import remove_tree
from localpuppet.releases.git.tag_object import TagObject
from localpuppet.releases.lock import Pin
from localpuppet.releases.store import Store

if TYPE_CHECKING:
    from localpuppet.releases.git.repository import Repository


def refuse_moved(pin: Pin, found: TagObject, *, where: str) -> None:
    """Raise the alarm when a tag is not what it was when it was pinned.

    Raises:
        IntegrityError: It moved; the message has both commits.
    """
    if (found.id, found.commit) != (pin.tag_object, pin.commit):
        raise IntegrityError(
            f"the tag {pin.tag} has moved: it was {pin.commit[:12]}"
            f" (tag object {pin.tag_object[:12]}), the repository now says {found.commit[:12]}"
            f" ({found.id[:12]})",
            where=where,
            hint="find out who moved it and why; --accept-moved takes it as it is now",
        )


def write_trees(
    batches: Iterable[Sequence[tuple[str, str, str]]], *, repository: "Repository", store: Store
) -> dict[str, str]:
    """Bring trees from git into the store, all of them or none.

    Args:
        batches: URL, tree id and a name for messages, of tags that were fetched; some at a time,
            so that others may still be on their way.
        repository: Git.
        store: The store.

    Returns:
        Name → digest.

    Raises:
        IntegrityError: A tree holds what must not be in one.
        StateError: The disk refused; the store has nothing new then.
    """
    staging = store.staging()
    try:
        with closing(_written(batches, repository=repository, staging=staging)) as trees:
            return store.add(trees)
    finally:
        remove_tree(staging)


def _written(
    batches: Iterable[Sequence[tuple[str, str, str]]], *, repository: "Repository", staging: Path
) -> Generator[tuple[str, Path], None, None]:
    names: list[str] = []
    for batch in batches:
        first = len(names)
        names += [name for _, _, name in batch]
        numbered = [(url, tree, str(i)) for i, (url, tree, _) in enumerate(batch, first)]
        with closing(repository.write(numbered, staging)) as written:
            for number in written:
                yield names[int(number)], staging / number
