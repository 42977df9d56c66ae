"""Asks the repositories of a Puppetfile what their refs are; one that is silent costs a line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from localpuppet.errors import IntegrityError, UnavailableError
from localpuppet.releases.git.repository import Repository

AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a repository said.

    Attributes:
        refs: Full name of each ref, and HEAD, → the commit behind it; `None` without an answer.
        problem: Why there is none.
    """

    refs: Mapping[str, str] | None
    problem: str = ""


def ask(urls: Sequence[str], repository: Repository) -> dict[str, Answer]:
    """Return what repositories say, several at a time.

    Args:
        urls: Their URLs.
        repository: Git.
    """
    from concurrent.futures import ThreadPoolExecutor

    def one(url: str) -> Answer:
        try:
            return Answer(refs=repository.refs([url])[url])
        except (UnavailableError, IntegrityError) as error:
            return Answer(refs=None, problem=error.args[0])

    wanted = list(dict.fromkeys(urls))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(wanted, pool.map(one, wanted), strict=True))
