"""Runs the program `git` safely, writes trees of several mirrors, and fetches as everybody can.

git gets no configuration but localpuppet's, no hooks, no prompts, and only allowed transports;
time, output, memory and disk are limited.

Each tree is counted against the limits before any of it is written.

git follows no redirect and looks up no name here. Both happen before, with a check of each address,
so that neither leads to a server of the inner network.
"""

import os
import re
import signal
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from localpuppet.base import http
from localpuppet.base.errors import IntegrityError, StateError, UnavailableError
from localpuppet.base.formats.text import last_words, one_line
from localpuppet.base.machine.child import OwnGroup
from localpuppet.base.machine.isolation import Bounds, ProgramResult, run, start_session
from localpuppet.base.machine.own_program import shared_file
from localpuppet.node.releases.git.access import NO_ACCESS, GitAccess
from localpuppet.node.releases.git.git_names import GitUrl
from localpuppet.node.releases.limits import (
    GIT_LIMITS,
    MAX_REDIRECTS,
    Budget,
    GitLimits,
    size_problem,
)

CHUNK = 65536
_FULL = 64 * 1024  # fewer free bytes mean a full disk
_KEPT = ("PATH", "HOME", "SSH_AUTH_SOCK", "GIT_SSH_COMMAND", "LANG", "TMPDIR")
# What only a git that goes out needs: it may hold the password of a proxy.
_PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY")
# Packs stay packs: 66 loose objects a module cost more than the transfer. What cleans up mirrors
# is `gc`, not a background process of git's.
_CONFIG = (
    *("core.hooksPath=/dev/null", "core.symlinks=true", "core.autocrlf=false"),
    *("core.fsmonitor=false", "fetch.fsckObjects=true", "fetch.unpackLimit=1"),
    *("gc.auto=0", "maintenance.auto=false"),
)
_OPTIONS = [word for setting in _CONFIG for word in ("-c", setting)]
# Highest of all attributes: nothing in a tree can ask for a conversion of its bytes.
_ATTRIBUTES = "* -text -eol -ident -filter -working-tree-encoding -export-subst -diff -merge\n"


# Git's own cure is a line in a configuration that it does not read here.
_FOREIGN = re.compile(rb"detected dubious ownership in repository at '([^'\n]+)'")

# Of this machine, and not of the server: no room for bytes, or for files.
_NO_ROOM = re.compile(rb"^(?!remote: ).*(?:No space left on device|Disk quota exceeded)", re.M)


class GitProgram:
    """Runs git; the environment is for PATH, HOME and the ssh agent."""

    def __init__(
        self,
        *,
        env: Mapping[str, str],
        allow_file: bool,
        timeout: float,
        address: Callable[[str], str] = str,
        access: Callable[[str], GitAccess] = lambda _url: NO_ACCESS,
        limits: GitLimits = GIT_LIMITS,
    ) -> None:
        self.timeout = timeout
        self.limits = limits
        self._address = address
        self._access = access
        self._proxies = {name: env[name] for name in _PROXIES if name in env}
        self.env = {name: env[name] for name in _KEPT if name in env} | {
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": str(shared_file("gitconfig")),
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": "https:ssh:file" if allow_file else "https:ssh",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "LC_ALL": "C",
        }
        self.env.setdefault("GIT_SSH_COMMAND", "ssh -oBatchMode=yes")

    def ask(
        self,
        url: str,
        repository: Path,
        *arguments: str,
        failure: Callable[[str], Exception] | None = None,
    ) -> bytes:
        """Run git with the access settings of a repository; see `run`.

        No file that git writes exceeds its limit, or this fetch's share of the free disk space.
        """
        address = self._address(url)
        access = self._access(address)
        most = self.limits.fetched
        largest = self._room(repository) if repository.is_dir() else most
        done = self.start(
            repository,
            *access.options(address),
            *(address if argument == url else argument for argument in arguments),
            env={**self._proxies, **access.environment()},
            largest=largest,
        )
        if done.code == 0:
            return done.out
        if _is_full(repository, largest):
            raise IntegrityError(
                f"sent more than {largest} bytes: at most {most} for one fetch, and what the"
                " disk has to spare",
                where=url,
                hint="check the repository's URL; 'min_free_mib' sets the space that a fetch"
                " leaves free",
            )
        return self._output(done, repository, arguments, failure)

    def _room(self, repository: Path) -> int:
        """Return the largest file that a fetch may write, in bytes."""
        disk = os.statvfs(repository)
        free = self.limits.min_free
        spare = disk.f_bavail * disk.f_frsize - free
        if spare <= 0:
            raise StateError(f"fewer than {free // 1048576} MiB are free", where=str(repository))
        return min(self.limits.fetched, spare // self.limits.parallel)

    def run(
        self,
        repository: Path,
        *arguments: str,
        cwd: Path | None = None,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        failure: Callable[[str], Exception] | None = None,
    ) -> bytes:
        """Run git in a directory, by default `/`, require success, and return its output.

        Raises:
            IntegrityError: git failed, and `failure` is `None`.
        """
        done = self.start(repository, *arguments, cwd=cwd, stdin=stdin, env=env)
        return self._output(done, repository, arguments, failure)

    def _output(
        self,
        done: ProgramResult,
        repository: Path,
        arguments: Sequence[str],
        failure: Callable[[str], Exception] | None,
    ) -> bytes:
        if done.code == 0:
            return done.out
        if foreign := _FOREIGN.search(done.err):
            raise UnavailableError(
                "the repository belongs to another user, so git does not read it",
                where=one_line(foreign[1].decode("utf-8", "replace")),
                hint="run this as its owner, give it to this user with 'chown -R', or let a source"
                " fetch it as its owner from ssh://OWNER@localhost/PATH",
            )
        error_text = last_words(done.err, most=300)
        if _NO_ROOM.search(done.err) or (failure is None and _is_disk_full(repository)):
            raise StateError(
                f"the disk is full: {error_text}",
                where=str(repository),
                hint="free some space and run the command again",
            )
        if failure is not None:
            raise failure(error_text)
        raise IntegrityError(f"git {_verb(arguments)} failed: {error_text}", where=str(repository))

    def version(self) -> tuple[int, int]:
        """Return the version of git: `(2, 39)`."""
        match = re.search(rb"(\d+)\.(\d+)", self.run(Path(os.devnull), "version"))
        return (int(match[1]), int(match[2])) if match else (0, 0)

    def objects(
        self, repository: Path, names: Sequence[str]
    ) -> list[tuple[str, str, bytes] | None]:
        """Return id, kind and bytes of objects; `None` for a missing object."""
        asked = "".join(f"{name}\n" for name in names).encode()
        output = self.run(repository, "cat-file", "--batch", stdin=asked)
        objects: list[tuple[str, str, bytes] | None] = []
        position = 0
        while position < len(output):
            end = output.index(b"\n", position)
            fields = output[position:end].decode().split(" ")
            position = end + 1
            if len(fields) != 3 or not fields[2].isdigit():
                objects.append(None)  # "NAME missing"
                continue
            size = int(fields[2])
            objects.append((fields[0], fields[1], output[position : position + size]))
            position += size + 1
        if len(objects) != len(names):
            raise IntegrityError("git cat-file sent an incomplete answer", where=str(repository))
        return objects

    def records(self, repository: Path, *arguments: str) -> Generator[bytes, None, None]:
        """Run git and yield its output, split at NUL; closing the generator ends git."""
        import subprocess
        import threading

        late = threading.Event()
        try:
            with start_session(
                ["git", f"--git-dir={repository}", *_OPTIONS, *arguments],
                env=self.env,
                cwd=Path("/"),
                stdin=subprocess.DEVNULL,
                out=subprocess.PIPE,
                err=subprocess.DEVNULL,
            ) as process:
                if process.stdout is None:
                    raise ValueError("git printed nothing")
                group = OwnGroup(process.pid)

                def end() -> None:
                    late.set()
                    group.signal(signal.SIGKILL)

                timer = threading.Timer(self.timeout, end)
                timer.start()
                try:
                    rest = b""
                    while data := process.stdout.read(CHUNK):
                        *whole, rest = (rest + data).split(b"\0")
                        yield from whole
                    group.poll(block=True)
                finally:
                    timer.cancel()
        except FileNotFoundError as error:
            raise StateError("git is not installed", hint="apt-get install git") from error
        if late.is_set():
            raise UnavailableError(
                f"git {arguments[0]} did not end within {self.timeout:g} s", where=str(repository)
            )
        if process.returncode != 0:
            raise IntegrityError(
                f"git {arguments[0]} failed: exit {process.returncode}", where=str(repository)
            )

    def start(
        self,
        repository: Path,
        *arguments: str,
        cwd: Path | None = None,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        largest: int | None = None,
    ) -> ProgramResult:
        """Run git, and return its result whether or not it succeeds; see `run`.

        `largest` are the bytes of the largest file that git and its children may write.
        """
        bounds = Bounds(
            seconds=self.timeout,
            output=self.limits.output,
            errors=self.limits.errors,
            memory=self.limits.memory,
            file=largest,
        )
        try:
            done = run(
                ["git", f"--git-dir={repository}", *_OPTIONS, *arguments],
                env={**self.env, **(env or {})},
                cwd=cwd or Path("/"),
                bounds=bounds,
                stdin=stdin,
            )
        except FileNotFoundError as error:
            raise StateError("git is not installed", hint="apt-get install git") from error
        if done.flooded:
            raise IntegrityError(
                f"git {arguments[0]} printed more than {bounds.output} bytes", where=str(repository)
            )
        if not done.in_time:
            raise UnavailableError(
                f"git {arguments[0]} did not end within {self.timeout:g} s", where=str(repository)
            )
        return done


def _is_disk_full(directory: Path) -> bool:
    """Return whether a disk has no room; git does not always report the reason."""
    if not directory.exists():
        return False
    disk = os.statvfs(directory)
    return disk.f_blocks > 0 and disk.f_bavail * disk.f_frsize < _FULL


def _verb(arguments: Sequence[str]) -> str:
    """Return the command of git, which options may precede."""
    words = iter(arguments)
    for word in words:
        if word == "-c":
            next(words, None)
        elif not word.startswith("-"):
            return word
    return arguments[0]


def _is_full(repository: Path, largest: int) -> bool:
    """Return whether git stopped because a received pack became too large.

    The kernel kills the writing process, and git does not report the reason.
    """
    parts = (repository / "objects/pack").glob("tmp_*")
    return any(part.stat().st_size >= largest for part in parts)


HEAD = b"ref: refs/heads/main\n"


def make_bare(directory: Path, *, alternates: Sequence[Path]) -> None:
    """Create an empty bare repository in an empty directory, without a `git init` process.

    It shares the objects of the repositories `alternates`.
    """
    for name in ("info", "objects/info", "objects/pack", "refs/heads", "refs/tags"):
        (directory / name).mkdir(parents=True)
    (directory / "info/attributes").write_text(_ATTRIBUTES)
    (directory / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = true\n")
    if alternates:
        lines = "".join(f"{other}/objects\n" for other in alternates)
        (directory / "objects/info/alternates").write_text(lines)
    (directory / "HEAD").write_bytes(HEAD)


def weigh(records: Iterable[bytes], budget: Budget, urls: Mapping[str, str]) -> None:
    """Count trees against a budget, by records `MODE KIND ID SIZE<tab>NAME/PATH`."""
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
        if problem := size_problem(path):
            raise IntegrityError(problem, where=where)
        budget.take(int(size) if size.isdigit() else 0, where=where)


def check_out(
    program: GitProgram,
    repository: Path,
    trees: Sequence[tuple[str, str, str]],
    directory: Path,
    budget: Budget,
) -> None:
    """Write trees out to an empty directory.

    `repository` is a scratch git directory that has the objects of all trees.

    Raises:
        IntegrityError: A tree holds a submodule, exceeds a limit, or objects are missing.
    """
    listing = "".join(f"040000 tree {tree}\t{target}\0" for _, tree, target in trees)
    top = program.run(repository, "mktree", "-z", stdin=listing.encode()).decode().strip()
    listed = program.records(repository, "ls-tree", "-r", "-t", "-l", "-z", "--full-tree", top)
    with closing(listed):
        weigh(listed, budget, {target: url for url, _, target in trees})
    program.run(
        repository,
        *["-c", "core.bare=false", f"--work-tree={directory}"],
        *["read-tree", "-u", "--reset", top],
        cwd=directory,
    )


# Git connects to given addresses since this version, and ignores them before.
_BINDS = 2, 37
# What git asks a server first.
_REFS = "/info/refs?service=git-upload-pack"


class PublicAccess(GitAccess):
    """How everybody reaches a repository: directly, without credentials or redirects.

    git does not look up its host again, which may have other addresses by then.
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
    with _public_errors(url), _client().open(request, http.Deadline(seconds)) as answer:
        return repository_at(answer.url, where=url)


def repository_at(address: str, *, where: str) -> GitUrl:
    """Return the repository to which redirects lead: a URL that a lock could name, too."""
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
