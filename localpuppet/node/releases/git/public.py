"""Public repositories, as everybody fetches them: without credentials, from public addresses.

git follows no redirect and looks up no name here. Both happen before, with a check of each address,
so that neither leads to a server of the inner network.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

from localpuppet.base import http
from localpuppet.base.errors import StateError, UnavailableError
from localpuppet.node.releases.git.access import GitAccess
from localpuppet.node.releases.git.names import GitUrl
from localpuppet.node.releases.git.program import GitProgram
from localpuppet.node.releases.limits import GitLimits

MAX_REDIRECTS = 5
# Git connects to given addresses since this version, and ignores them before.
_BINDS = 2, 37
# What git asks a server first.
_REFS = "/info/refs?service=git-upload-pack"


class PublicAccess(GitAccess):
    """How everybody reaches a repository: directly, without credentials or redirects.

    Attributes:
        addresses: The IP addresses of its host. git does not look up the name again, which may have
            another address by then.
    """

    addresses: tuple[str, ...]

    def options(self, url: str) -> list[str]:
        """Return git's command-line options for a URL."""
        host = urlsplit(url)
        listed = ",".join(f"[{text}]" if ":" in text else text for text in self.addresses)
        settings = (
            *("http.proxy=", "http.followRedirects=false", "http.emptyAuth=false"),
            *(
                "credential.helper=",
                f"http.curloptResolve={host.hostname}:{host.port or 443}:{listed}",
            ),
        )
        return [word for setting in settings for word in ("-c", setting)]

    def environment(self) -> dict[str, str]:
        """Return git's environment."""
        return {"GIT_ALLOW_PROTOCOL": "https"}


def public_git(
    *,
    env: Mapping[str, str],
    address: Callable[[str], str],
    timeout: float,
    patience: float,
    limits: GitLimits,
) -> GitProgram:
    """Return git for public repositories.

    Args:
        env: The environment for PATH and LANG.
        address: Returns the address of a repository, by its URL.
        timeout: Seconds for one git command.
        patience: Seconds for one answer of a server before.
        limits: The limits of each git process.

    Raises:
        StateError: This git is too old.
    """
    kept = {name: env[name] for name in ("PATH", "LANG") if name in env}
    git = GitProgram(
        # Without HOME, git's library would look for .netrc in the user's directory.
        env={**kept, "HOME": "/nonexistent"},
        allow_file=False,
        timeout=timeout,
        address=lambda url: _without_redirects(address(url), patience),
        access=lambda url: PublicAccess(addresses=_addresses(url, patience)),
        limits=limits,
    )
    if git.version() < _BINDS:
        raise StateError(
            f"git {_BINDS[0]}.{_BINDS[1]} or later is needed for modules that only an untrusted"
            " revision names",
            hint="update git, or pass '--trusted' for code that may do all that you can",
        )
    return git


def _without_redirects(url: str, seconds: float) -> GitUrl:
    """Return where redirects of a repository lead."""
    request = http.HttpRequest(url=url.rstrip("/") + _REFS, redirects=MAX_REDIRECTS)
    with (
        _public_errors(url),
        _client().open(request, http.Deadline(seconds)) as answer,
    ):
        return repository_at(answer.url, where=url)


def repository_at(address: str, *, where: str) -> GitUrl:
    """Return the repository to whose references redirects lead: a URL that a lock could name, too.

    Raises:
        HttpError: The address is no repository's.
        InvalidInputError: No lock can name the repository.
    """
    if not address.endswith(_REFS):
        raise http.HttpError("redirects to something else than a repository")
    return GitUrl.parse(address.removesuffix(_REFS), where=f"{where}: redirect")


def _addresses(url: str, seconds: float) -> tuple[str, ...]:
    with _public_errors(url):
        return tuple(_client().addresses(url, http.Deadline(seconds)))


def _client() -> http.HttpClient:
    return http.HttpClient(http.HttpRoute(public=True))


@contextmanager
def _public_errors(url: str) -> Iterator[None]:
    try:
        yield
    except http.HttpError as error:
        raise UnavailableError(
            f"cannot be fetched as public code: {error}",
            where=url,
            hint="name it in 'sources' of localpuppet.yaml if it is not public",
        ) from error
