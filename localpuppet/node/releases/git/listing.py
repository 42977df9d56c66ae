"""Reads `git ls-tree` to count trees before they are written: size, depth and kinds.

The listing is read record by record, so that an endless one costs no memory.
"""

from collections.abc import Iterable, Mapping

from localpuppet.base.errors import IntegrityError
from localpuppet.node.releases.limits import Budget, size_problem


def weigh(records: Iterable[bytes], budget: Budget, urls: Mapping[str, str]) -> None:
    """Count trees against a budget.

    Args:
        records: `MODE KIND ID SIZE<tab>NAME/PATH`, directories included.
        budget: What may be written.
        urls: Repository by the name at the top of a path.

    Raises:
        IntegrityError: A tree holds a submodule, or exceeds the budget.
    """
    for record in records:
        about, _, name = record.partition(b"\t")
        mode, _, _, size = about.split()
        top, _, path = name.partition(b"/")
        if not path:
            continue  # the directory that is to be made for the tree
        shown = path[:120].decode("utf-8", "backslashreplace")
        where = f"{urls.get(top.decode(), '')}: {shown!r}"
        if mode == b"160000":
            raise IntegrityError(
                "a tree holds a submodule (gitlink, mode 160000)",
                where=where,
                hint="name it in the manifest and take it out with 'git rm --cached', or vendor it",
            )
        problem = size_problem(path)
        if problem:
            raise IntegrityError(problem, where=where)
        budget.take(int(size) if size.isdigit() else 0, where=where)
