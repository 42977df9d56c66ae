"""How a site's repositories are reached, and git's messages about servers with a cure.

    sources: {control: {git: URL, proxy: …, ssh_key: …, known_hosts: …, credentials: {file: …}}}

- No secret is on git's command line: a git helper reads the credentials file for one host, when
  that host asks.
- Settings of a source apply to its repository, and to repositories on its host that are not sources
  (the source with the longest common path wins): modules of a lock are as private as their release.

A missing tag is an error of the input; an unknown host or a refused connection is one of the
network. If a host is unreachable for many repositories, one error names it and them.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from localpuppet.base.errors import (
    IntegrityError,
    InvalidInputError,
    LocalpuppetError,
    UnavailableError,
    raise_unavailable,
)
from localpuppet.base.formats.text import shown_names
from localpuppet.base.formats.values import at
from localpuppet.base.value import Value
from localpuppet.node.releases.git.git_names import GitUrl
from localpuppet.node.releases.limits import MAX_URL

_OPEN = ("/", ":")
_PROXY = r"https?://[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?/?\Z"
_HTTPS_HOST = r"(https://[^/]+)/"
_SSH_HOST = r"(?:ssh://)?(?:[^@/]+@)?([^:/]+)"
_BATCH = "ssh -oBatchMode=yes"


class GitAccess(Value):
    """How one repository is reached; `credentials` is a file with `username=` and `password=`."""

    proxy: str = ""
    ssh_key: Path | None = None
    known_hosts: Path | None = None
    credentials: Path | None = None

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], *, where: str, root: Path) -> "GitAccess":
        """Return the access settings of a source; other keys are ignored.

        Args:
            raw: `{"proxy": url, "ssh_key": path, "known_hosts": path, "credentials": {"file":
                path}}`, shape-checked, each optional.
        """
        proxy = str(raw.get("proxy", ""))
        if proxy and not re.match(_PROXY, proxy):
            raise InvalidInputError(
                "is not an allowed URL",
                where=at(where, "proxy"),
                hint="http://HOST:PORT, without credentials",
            )
        files = {name: root / str(raw[name]) for name in ("ssh_key", "known_hosts") if name in raw}
        file = cast("Mapping[str, str]", raw.get("credentials", {})).get("file")
        return cls(
            proxy=proxy,
            ssh_key=files.get("ssh_key"),
            known_hosts=files.get("known_hosts"),
            credentials=root / file if file else None,
        )

    def options(self, url: str) -> list[str]:
        """Return git's command-line options for a URL, without secrets."""
        settings = [f"http.proxy={self.proxy}"] if self.proxy else []
        host = re.match(_HTTPS_HOST, url)
        if self.credentials is not None and host is not None:
            # An empty one first: no other helper is asked or receives what this one returned.
            helper = f'!f() {{ test "$1" != get || cat {shlex.quote(str(self.credentials))}; }}; f'
            settings += ["credential.helper=", f"credential.{host[1]}.helper={helper}"]
        return [word for setting in settings for word in ("-c", setting)]

    def environment(self) -> dict[str, str]:
        """Return git's environment: the ssh command, if a file is named for it."""
        words = []
        if self.ssh_key is not None:
            words += ["-oIdentitiesOnly=yes", "-i", str(self.ssh_key)]
        if self.known_hosts is not None:
            words += [f"-oUserKnownHostsFile={self.known_hosts}", "-oStrictHostKeyChecking=yes"]
        return {"GIT_SSH_COMMAND": f"{_BATCH} {shlex.join(words)}"} if words else {}


NO_ACCESS = GitAccess()


def read_rewrite(raw: Mapping[str, str], *, allow_file: bool) -> Mapping[str, str]:
    """Return replacement addresses by URLs and URL prefixes: `{FROM: TO}`, shape-checked.

    Both end in `/` or `:`, or both are whole URLs.
    """
    for start, to in raw.items():
        if start.endswith(_OPEN) != to.endswith(_OPEN):
            raise InvalidInputError(
                "both sides must end in '/' or ':', or both must be whole URLs", where="rewrite"
            )
        for text, file in ((start, True), (to, allow_file)):
            rest = "x" if text.endswith(_OPEN) else ""
            GitUrl.parse(text + rest, where="rewrite", allow_file=file)
    return dict(raw)


def rewrite_url(url: str, rewrite: Mapping[str, str]) -> str:
    """Return the address that a repository is fetched from; the longest matching FROM wins."""
    fitting = [
        start
        for start in rewrite
        if url == start or (start.endswith(_OPEN) and url.startswith(start))
    ]
    start = max(fitting, key=len, default="")
    return rewrite[start] + url[len(start) :] if fitting else url


def access_for(url: str, known: Mapping[str, GitAccess]) -> GitAccess:
    """Return how a repository is reached."""
    if url in known:
        return known[url]
    near = [other for other in known if host_of(other) == host_of(url)]
    return known[_nearest(url, near)] if near else NO_ACCESS


def _nearest(url: str, others: Iterable[str]) -> str:
    def common(other: str) -> int:
        steps = zip(url.split("/"), other.split("/"), strict=False)
        return next((i for i, (left_step, two) in enumerate(steps) if left_step != two), MAX_URL)

    return max(sorted(others), key=common)


def host_of(url: str) -> str:
    """Return the host of a repository: `https://HOST` or `ssh HOST`; empty for a file."""
    if match := re.match(_HTTPS_HOST, url):
        return match[1].lower()
    if url.startswith("file:"):
        return ""
    ssh_host = re.match(_SSH_HOST, url)
    return f"ssh {ssh_host[1].lower()}" if ssh_host else url


def check_credentials(data: bytes, *, where: str) -> None:
    """Reject a credentials file that git's helper protocol would misread; repeat nothing of it."""
    lines = data.decode("utf-8", "replace").rstrip("\n").split("\n")
    names = sorted(line.partition("=")[0] for line in lines)
    if names != ["password", "username"] or not all(
        line.isprintable() and line.partition("=")[2] for line in lines
    ):
        raise InvalidInputError(
            "is not a file of credentials", where=where, hint="two lines: username=…, password=…"
        )


# The number of repositories of a host that one error names together, at least.
MANY = 2
_MISSING = r"couldn't find remote ref refs/tags/(\S+?);?(?:\s|\Z)"
# What git adds to every failure, whatever it was.
_ALWAYS = (
    r";? ?(?:fatal: Could not read from remote repository\.|"
    r"Please make sure you have the correct access rights;? and the repository exists\.)"
)
# git names the repository in front of the reason.
_ACCESS = r"fatal: unable to access '[^']*': "
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
    """A repository cannot be fetched, because its host is unreachable or not trusted."""

    url = ""
    reason = ""


def fetch_failure(
    url: str, tags: Iterable[str], error_text: str, *, name: str = ""
) -> LocalpuppetError:
    """Return the error of a fetch that failed, for a named or unnamed source."""
    where = _where(url, name)
    if "fsck" in error_text:
        return IntegrityError(f"git rejects an object of the repository: {error_text}", where=where)
    if missing := re.search(_MISSING, error_text):
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
    """Raise one error that names each unreachable host and each other repository once."""
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
    reason = re.sub(_ALWAYS, "", error_text).strip("; ") or error_text
    text, where = f"{what}: {reason}", _where(url, name)
    for pattern, hint, concerns_host in _CAUSES:
        if re.search(pattern, error_text, re.IGNORECASE):
            if not concerns_host:
                return UnavailableError(text, where=where, hint=hint)
            error = UnreachableHostError(text, where=where, hint=hint)
            error.url, error.reason = url, re.sub(_ACCESS, "", reason)
            return error
    return UnavailableError(text, where=where)


def _where(url: str, name: str) -> str:
    return f"source {name}, {url}" if name else url
