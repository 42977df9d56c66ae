"""Translates git's messages about a server into errors with a cure.

A missing tag is an error of the input; an unknown host or a refused connection is one of the
network. If a host is unreachable for many repositories, one error names it and them.
"""

import re
from collections.abc import Iterable, Sequence

from localpuppet.base.errors import (
    IntegrityError,
    InvalidInputError,
    LocalpuppetError,
    UnavailableError,
    raise_unavailable,
)
from localpuppet.base.formats.text import shown_names
from localpuppet.node.releases.git.access import host_of

# The number of repositories of a host that one error names together, at least.
MANY = 2
_MISSING = re.compile(r"couldn't find remote ref refs/tags/(\S+?);?(?:\s|\Z)")
# What git adds to every failure, whatever it was.
_ALWAYS = re.compile(
    r";? ?(?:fatal: Could not read from remote repository\.|"
    r"Please make sure you have the correct access rights;? and the repository exists\.)"
)
# git names the repository in front of the reason.
_ACCESS = re.compile(r"fatal: unable to access '[^']*': ")
# Pattern, cure, and whether the cause concerns all repositories of the host.
SHA256_OBJECTS = "its objects have SHA-256 names, and localpuppet pins SHA-1 names only"
_CAUSES = (
    (r"mismatched algorithms|unknown object format|object-format", SHA256_OBJECTS, False),
    (
        r"could not resolve (?:host|proxy)|name or service not known|temporary failure in name",
        "cannot resolve the name: check the URL, DNS and the network",
        True,
    ),
    (
        r"failed to connect|connection (?:refused|timed out|reset)|no route to host|unreachable",
        "no connection: check the network, the firewall and the proxy",
        True,
    ),
    (
        r"authentication failed|permission denied|could not read (?:username|password)|403|401",
        "check 'ssh_key' and 'credentials' of the source",
        False,
    ),
    (r"host key verification failed", "put the server's key into known_hosts", True),
    (r"certificate|ssl", "this node does not trust the server's certificate", True),
    (
        r"not appear to be a git repository|repository .*not found|does not exist|404",
        "check the URL",
        False,
    ),
)


class UnreachableHostError(UnavailableError):
    """A repository cannot be fetched, because its host is unreachable or not trusted.

    Args:
        what: What is wrong.
        where: The repository and its source.
        hint: The cure.
        url: The repository.
        reason: What git reported about the host.
    """

    def __init__(
        self, what: str, *, where: str = "", hint: str = "", url: str = "", reason: str = ""
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.url = url
        self.reason = reason


def fetch_failure(
    url: str, tags: Iterable[str], error_text: str, *, name: str = ""
) -> LocalpuppetError:
    """Return the error of a fetch that failed.

    Args:
        url: The repository.
        tags: The requested tags.
        error_text: The message of git, as one line.
        name: The name of the repository's source, if it has one.
    """
    where = _where(url, name)
    if "fsck" in error_text:
        return IntegrityError(f"git rejects an object of the repository: {error_text}", where=where)
    missing = _MISSING.search(error_text)
    if missing:
        return InvalidInputError(
            f"has no tag {missing.group(1)}",
            where=where,
            hint=f"list its tags: git ls-remote --tags {url}",
        )
    return _failure(f"cannot fetch {', '.join(tags)}", url, error_text, name=name)


def ask_failure(url: str, error_text: str, *, name: str = "") -> LocalpuppetError:
    """Return the error of a failed `ls-remote`; see `fetch_failure`."""
    return _failure("did not answer", url, error_text, name=name)


def raise_failures(errors: Iterable[UnavailableError]) -> None:
    """Raise one error that names each unreachable host and each other repository once.

    Raises:
        UnavailableError: There is an error.
    """
    groups: dict[object, list[UnavailableError]] = {}
    for error in errors:
        same = (
            (host_of(error.url), error.hint) if isinstance(error, UnreachableHostError) else error
        )
        groups.setdefault(same, []).append(error)
    raise_unavailable([_fold(group) for group in groups.values()])


def _fold(errors: Sequence[UnavailableError]) -> UnavailableError:
    """Return one error for all repositories of a host."""
    unreachable = [error for error in errors if isinstance(error, UnreachableHostError)]
    if len(unreachable) < MANY:
        return errors[0]
    first = unreachable[0]
    urls = shown_names([error.url for error in unreachable])
    return UnavailableError(
        f"cannot fetch {len(unreachable)} repositories: {first.reason}: {urls}",
        where=host_of(first.url),
        hint=first.hint,
    )


def _failure(what: str, url: str, error_text: str, *, name: str) -> UnavailableError:
    reason = _ALWAYS.sub("", error_text).strip("; ") or error_text
    text, where = f"{what}: {reason}", _where(url, name)
    for pattern, hint, concerns_host in _CAUSES:
        if re.search(pattern, error_text, re.IGNORECASE):
            if not concerns_host:
                return UnavailableError(text, where=where, hint=hint)
            reason = _ACCESS.sub("", reason)
            return UnreachableHostError(text, where=where, hint=hint, url=url, reason=reason)
    return UnavailableError(text, where=where)


def _where(url: str, name: str) -> str:
    return f"source {name}, {url}" if name else url
