"""Lists the refs of a Puppetfile's repositories; an unreachable one costs a line."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from localpuppet.base.errors import IntegrityError, UnavailableError
from localpuppet.node.releases.git.repository import Repository

AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryAnswer:
    """The refs of a repository, or why they are unknown.

    Attributes:
        refs: Full name of each ref, and HEAD, → the commit behind it, or `None`.
        problem: Why the refs are unknown.
    """

    refs: Mapping[str, str] | None
    problem: str = ""


def ask(
    urls: Sequence[str], repository: Repository, progress: Callable[[int, int], None]
) -> dict[str, RepositoryAnswer]:
    """Return the refs of repositories, listed several at a time.

    Args:
        urls: Their URLs.
        repository: Git.
        progress: Called with the numbers of finished and of all repositories.
    """
    from concurrent.futures import ThreadPoolExecutor

    def list_refs(url: str) -> RepositoryAnswer:
        try:
            return RepositoryAnswer(refs=repository.refs([url])[url])
        except (UnavailableError, IntegrityError) as error:
            return RepositoryAnswer(refs=None, problem=error.args[0])

    wanted = list(dict.fromkeys(urls))
    answers = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for url, answer in zip(wanted, pool.map(list_refs, wanted), strict=True):
            answers[url] = answer
            progress(len(answers), len(wanted))
    return answers
