"""What a list is asked for, as it stands in the URL.

Owns: the names of the parameters, what each may say, and the URL of a neighbour: the next page,
another order. Refuses to know: rows.

Invariant: what a URL says is either understood whole or refused; nothing is passed over.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from localpuppet.errors import InvalidInputError
from localpuppet.web.kinds import Kind
from localpuppet.web.row import STATES

ORDERS = ("node", "state", "outcome", "ended", "release")
# What a node can be listed for, beside how its last run ended.
CONCERNS = (*STATES, "late")
PAGE = 100
MAX_PAGE = 100_000
MAX_WORDS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which nodes a page shows, and in which order.

    Attributes:
        q: An expression of `localpuppet query`; empty for all nodes.
        name: A part of the node's name.
        outcome: How the last run ended; `None` for whatever.
        is_: One of `CONCERNS`; empty for whatever.
        sort: One of `ORDERS`.
        down: Whether the last comes first.
        page: Counted from 1.
    """

    q: str = ""
    name: str = ""
    outcome: Kind | None = None
    is_: str = ""
    sort: str = "node"
    down: bool = False
    page: int = 1

    @classmethod
    def parse(cls, parameters: Mapping[str, str]) -> "Asked":
        """Return what a URL asks for.

        Args:
            parameters: Those of the URL; an empty one is as none.

        Raises:
            InvalidInputError: One is not known, or says what it cannot.
        """
        said = {key: value.strip() for key, value in parameters.items() if value.strip()}
        unknown = sorted(said.keys() - {"q", "name", "outcome", "is", "sort", "page"})
        if unknown:
            raise InvalidInputError("is not a parameter of this page", where=unknown[0][:40])
        if max(map(len, said.values()), default=0) > MAX_WORDS:
            raise InvalidInputError(f"has more than {MAX_WORDS} characters", where="URL")
        order = said.get("sort", "node")
        page = said.get("page", "1")
        if not (page.isascii() and page.isdigit() and 1 <= int(page) <= MAX_PAGE):
            raise InvalidInputError("is not a number of a page", where="page")
        outcome = said.get("outcome")
        return cls(
            q=said.get("q", ""),
            name=said.get("name", "").lower(),
            outcome=None if outcome is None else Kind(_one(outcome, tuple(Kind), "outcome")),
            is_=_one(said.get("is", ""), ("", *CONCERNS), "is"),
            sort=_one(order.removeprefix("-"), ORDERS, "sort"),
            down=order.startswith("-"),
            page=int(page),
        )

    def with_(self, **changes: Any) -> "Asked":  # noqa: ANN401 - fields of ours
        """Return this with other fields, from the first page unless one is named."""
        return replace(self, **{"page": 1, **changes})

    def by(self, order: str) -> "Asked":
        """Return this in another order; the other way round where it is in that already."""
        return self.with_(sort=order, down=self.sort == order and not self.down)

    @property
    def query(self) -> str:
        """Return the part of the URL from the `?` on; empty where all is as usual."""
        said = {
            "q": self.q,
            "name": self.name,
            "outcome": self.outcome or "",
            "is": self.is_,
            "sort": f"{'-' if self.down else ''}{self.sort}",
            "page": str(self.page),
        }
        usual = {"sort": "node", "page": "1"}
        words = {key: word for key, word in said.items() if word and word != usual.get(key)}
        return f"?{urlencode(words)}" if words else ""


def _one(word: str, allowed: tuple[str, ...], where: str) -> str:
    if word not in allowed:
        names = ", ".join(one for one in allowed if one)
        raise InvalidInputError(f"is not one of {names}", where=where)
    return word
