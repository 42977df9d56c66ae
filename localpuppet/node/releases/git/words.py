"""Translates git's messages about a server into errors with a cure.

A missing tag is an error of the input; an unknown host or a refused connection is one of the
network.
"""

import re
from collections.abc import Iterable

from localpuppet.base.errors import (
    IntegrityError,
    InvalidInputError,
    LocalpuppetError,
    UnavailableError,
)

_MISSING = re.compile(r"couldn't find remote ref refs/tags/(\S+?);?(?:\s|\Z)")
# What git adds to every failure, whatever it was.
_ALWAYS = re.compile(
    r";? ?(?:fatal: Could not read from remote repository\.|"
    r"Please make sure you have the correct access rights;? and the repository exists\.)"
)
_HINTS = (
    (
        r"could not resolve (?:host|proxy)|name or service not known|temporary failure in name",
        "cannot resolve the name: check the URL, DNS and the network",
    ),
    (
        r"failed to connect|connection (?:refused|timed out|reset)|no route to host|unreachable",
        "no connection: check the network, the firewall and the proxy",
    ),
    (
        r"authentication failed|permission denied|could not read (?:username|password)|403|401",
        "check 'ssh_key' and 'credentials' of the source",
    ),
    (r"host key verification failed", "put the server's key into known_hosts"),
    (r"certificate|ssl", "this node does not trust the server's certificate"),
    (
        r"not appear to be a git repository|repository .*not found|does not exist|404",
        "check the URL",
    ),
)


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
    return UnavailableError(
        f"cannot fetch {', '.join(tags)}: {_shown(error_text)}", where=where, hint=_hint(error_text)
    )


def ask_failure(url: str, error_text: str, *, name: str = "") -> LocalpuppetError:
    """Return the error of a failed `ls-remote`; see `fetch_failure`."""
    return UnavailableError(
        f"did not answer: {_shown(error_text)}", where=_where(url, name), hint=_hint(error_text)
    )


def _where(url: str, name: str) -> str:
    return f"source {name}, {url}" if name else url


def _shown(error_text: str) -> str:
    return _ALWAYS.sub("", error_text).strip("; ") or error_text


def _hint(error_text: str) -> str:
    for pattern, hint in _HINTS:
        if re.search(pattern, error_text, re.IGNORECASE):
            return hint
    return ""
