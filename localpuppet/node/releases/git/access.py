"""How a site's repositories are reached: proxy, ssh key, known hosts, credentials.

    sources: {control: {git: URL, proxy: …, ssh_key: …, known_hosts: …, credentials: {file: …}}}

- No secret is on git's command line: a git helper reads the credentials file for one host, when
  that host asks.
- Settings of a source apply to its repository, and to repositories on its host that are not sources
  (the source with the longest common path wins): modules of a lock are as private as their release.
"""

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import at
from localpuppet.base.value import Value
from localpuppet.node.releases.git.names import GitUrl

_OPEN = ("/", ":")
_PROXY = r"https?://[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?/?\Z"
_HTTPS_HOST = r"(https://[^/]+)/"
_SSH_HOST = r"(?:ssh://)?(?:[^@/]+@)?([^:/]+)"
MAX_STEPS = 1024  # the longest URL, in characters
_BATCH = "ssh -oBatchMode=yes"


class GitAccess(Value):
    """How one repository is reached.

    Attributes:
        proxy: The proxy for https; empty for the one in the environment.
        ssh_key: The private key for ssh; `None` for ssh's own choice.
        known_hosts: The server's keys for ssh; `None` for ssh's own files.
        credentials: A file with `username=` and `password=`; or `None`.
    """

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
            where: The location of `raw`, for messages.
            root: The base of relative paths.

        Raises:
            InvalidInputError: The proxy is not a usable URL; the message does not repeat it.
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
    """Return replacement addresses by URLs and URL prefixes.

    Args:
        raw: `{FROM: TO}`, shape-checked. Both end in `/` or `:`, or both are whole URLs.
        allow_file: Whether `file://` URLs are allowed.

    Raises:
        InvalidInputError: An address is neither, or the two do not match.
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
    """Return how a repository is reached.

    Args:
        url: The address that the repository is fetched from.
        known: The access settings of the site's sources, by the addresses that they are fetched
            from.
    """
    if url in known:
        return known[url]
    near = [other for other in known if host_of(other) == host_of(url)]
    return known[_nearest(url, near)] if near else NO_ACCESS


def _nearest(url: str, others: Iterable[str]) -> str:
    def common(other: str) -> int:
        steps = zip(url.split("/"), other.split("/"), strict=False)
        return next((i for i, (left_step, two) in enumerate(steps) if left_step != two), MAX_STEPS)

    return max(sorted(others), key=common)


def host_of(url: str) -> str:
    """Return the host of a repository: `https://HOST` or `ssh HOST`; empty for a file."""
    match = re.match(_HTTPS_HOST, url)
    if match:
        return match[1].lower()
    if url.startswith("file:"):
        return ""
    ssh_host = re.match(_SSH_HOST, url)
    return f"ssh {ssh_host[1].lower()}" if ssh_host else url


def check_credentials(data: bytes, *, where: str) -> None:
    """Reject a credentials file that git's helper protocol would misread.

    Raises:
        InvalidInputError: The file is not two lines, `username=…` and `password=…`; the message
            repeats nothing.
    """
    lines = data.decode("utf-8", "replace").rstrip("\n").split("\n")
    names = sorted(line.partition("=")[0] for line in lines)
    if names != ["password", "username"] or not all(
        line.isprintable() and line.partition("=")[2] for line in lines
    ):
        raise InvalidInputError(
            "is not a file of credentials", where=where, hint="two lines: username=…, password=…"
        )
