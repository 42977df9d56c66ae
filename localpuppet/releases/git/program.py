"""The program `git`: how it is started, whatever it is to do.

Owns: its safety: no configuration but ours, no hooks, no prompts, only the transports that are
allowed; and how much of it we hold, since a server says what git says and remembers. Refuses to
know: mirrors and tags.
"""

import os
import resource
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from localpuppet.errors import IntegrityError, StateError, UnavailableError
from localpuppet.formats.text import last_words
from localpuppet.machine.output_pipe import OutputPipe
from localpuppet.releases.git.access import NO_ACCESS, GitAccess
from localpuppet.releases.limits import LIMITS
from localpuppet.share.files import shared_file

if TYPE_CHECKING:
    import subprocess

CHUNK = 65536
# What is read of what git prints: tags and commits of a thousand modules are a tenth of it.
MAX_SAID = 64 * 1024 * 1024
# What is kept of its errors, among them whatever a server wants to be shown.
MAX_ERRORS = 64 * 1024
# The memory of git itself and of each program it starts: a list of refs need not have an end.
MAX_MEMORY = 2 * 1024 * 1024 * 1024
# The largest file that a fetch may write: a pack that unfolds to what no release may be is none.
# What a server sends is one pack, and beside it an index of a tenth.
MAX_FETCHED = LIMITS.unpacked
_KEPT = ("PATH", "HOME", "SSH_AUTH_SOCK", "GIT_SSH_COMMAND", "LANG", "TMPDIR")
# What only a git that goes out needs: it may hold the password of a proxy.
_PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY")
# Packs stay packs: 66 loose objects a module cost more than the transfer. What cleans up mirrors
# is `gc`, not a background process of git's.
_CONFIG = (
    "core.hooksPath=/dev/null",
    "core.symlinks=true",
    "core.autocrlf=false",
    "core.fsmonitor=false",
    "fetch.fsckObjects=true",
    "fetch.unpackLimit=1",
    "gc.auto=0",
    "maintenance.auto=false",
)
_OPTIONS = [word for setting in _CONFIG for word in ("-c", setting)]
# Highest of all attributes: nothing in a tree can ask for a conversion of its bytes.
_ATTRIBUTES = "* -text -eol -ident -filter -working-tree-encoding -export-subst -diff -merge\n"


class GitProgram:
    """Starts git.

    Args:
        env: The environment to take PATH, HOME and the ssh agent from.
        allow_file: Whether `file://` URLs may be fetched.
        timeout: Seconds for one git command.
        access: Returns how a repository is reached.
        min_free: Bytes that a fetch must leave free on the disk.
        parallel: How many fetches there may be at a time.
    """

    def __init__(
        self,
        *,
        env: Mapping[str, str],
        allow_file: bool,
        timeout: float,
        access: Callable[[str], GitAccess] = lambda _url: NO_ACCESS,
        min_free: int = 0,
        parallel: int = 4,
    ) -> None:
        self.timeout = timeout
        self._min_free = min_free
        self.parallel = parallel
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
        """Run git with what reaching a repository takes; see `run`.

        No file that git writes is larger than `MAX_FETCHED`, or than this fetch's part of what the
        disk has to spare.

        Args:
            url: The repository, which the arguments name, too.
            repository: The git directory.
            arguments: What to do.
            failure: From what git said to the error to raise.

        Raises:
            InvalidInputError: The file of its credentials is refused.
            IntegrityError: The server sent more than may be written.
            StateError: The disk is full.
        """
        access = self._access(url)
        largest = self._room(repository) if repository.is_dir() else MAX_FETCHED
        done = self.start(
            repository,
            *access.options(url),
            *arguments,
            env={**self._proxies, **access.environment()},
            largest=largest,
        )
        if done.returncode == 0:
            return done.stdout
        if _is_full(repository, largest):
            raise IntegrityError(
                f"sent more than {largest} bytes: at most {MAX_FETCHED} for one fetch, and what the"
                " disk has to spare",
                where=url,
                hint="is it the right repository? min_free_mib says what a fetch leaves free",
            )
        return self._output(done, repository, arguments, failure)

    def _room(self, repository: Path) -> int:
        """Return how large a file a fetch may write."""
        disk = os.statvfs(repository)
        spare = disk.f_bavail * disk.f_frsize - self._min_free
        if spare <= 0:
            raise StateError(
                f"fewer than {self._min_free // 1048576} MiB are free", where=str(repository)
            )
        return min(MAX_FETCHED, spare // self.parallel)

    def run(
        self,
        repository: Path,
        *arguments: str,
        cwd: Path | None = None,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        failure: Callable[[str], Exception] | None = None,
    ) -> bytes:
        """Run git to a good end and return what it printed.

        Args:
            repository: The git directory.
            arguments: What to do.
            cwd: Where; the root of the file system by default.
            stdin: What it is to read.
            env: What it finds in its environment besides.
            failure: From what git said to the error to raise.

        Raises:
            IntegrityError: It failed, and there is no `failure`.
            UnavailableError: It did not end in time.
            StateError: It is not installed.
        """
        done = self.start(repository, *arguments, cwd=cwd, stdin=stdin, env=env)
        return self._output(done, repository, arguments, failure)

    def _output(
        self,
        done: "subprocess.CompletedProcess[bytes]",
        repository: Path,
        arguments: Sequence[str],
        failure: Callable[[str], Exception] | None,
    ) -> bytes:
        if done.returncode == 0:
            return done.stdout
        said = last_words(done.stderr, most=300)
        if failure is not None:
            raise failure(said)
        raise IntegrityError(f"git {arguments[0]} failed: {said}", where=str(repository))

    def objects(
        self, repository: Path, names: Sequence[str]
    ) -> list[tuple[str, str, bytes] | None]:
        """Return id, kind and bytes of objects; `None` for one that is not there.

        Args:
            repository: The git directory.
            names: Ids, and what git can peel from them.

        Raises:
            IntegrityError: git failed.
            UnavailableError: It did not end in time.
            StateError: It is not installed.
        """
        asked = "".join(f"{name}\n" for name in names).encode()
        said = self.run(repository, "cat-file", "--batch", stdin=asked)
        found: list[tuple[str, str, bytes] | None] = []
        position = 0
        while position < len(said):
            end = said.index(b"\n", position)
            fields = said[position:end].decode().split(" ")
            position = end + 1
            if len(fields) != 3 or not fields[2].isdigit():
                found.append(None)  # "NAME missing"
                continue
            size = int(fields[2])
            found.append((fields[0], fields[1], said[position : position + size]))
            position += size + 1
        if len(found) != len(names):
            raise IntegrityError("git cat-file answered half", where=str(repository))
        return found

    def records(self, repository: Path, *arguments: str) -> Generator[bytes, None, None]:
        """Run git and yield what it prints, split at NUL; it is ended when the generator is.

        Raises:
            IntegrityError: It failed.
            UnavailableError: It did not end in time.
            StateError: It is not installed.
        """
        import subprocess
        import threading

        try:
            process = subprocess.Popen(
                ["git", f"--git-dir={repository}", *_OPTIONS, *arguments],  # noqa: S607
                env=self.env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except FileNotFoundError as error:
            raise StateError("git is not installed", hint="apt-get install git") from error
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(self.timeout, end)
        timer.start()
        try:
            with process:
                if process.stdout is None:
                    raise ValueError("git has no output")
                rest = b""
                while data := process.stdout.read(CHUNK):
                    *whole, rest = (rest + data).split(b"\0")
                    yield from whole
                code = process.wait()
        finally:
            timer.cancel()
            process.kill()
        if late.is_set():
            raise UnavailableError(
                f"git {arguments[0]} did not end within {self.timeout:g} s", where=str(repository)
            )
        if code != 0:
            raise IntegrityError(f"git {arguments[0]} failed: exit {code}", where=str(repository))

    def start(
        self,
        repository: Path,
        *arguments: str,
        cwd: Path | None = None,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        largest: int = resource.RLIM_INFINITY,
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run git to whatever end.

        Args:
            repository: The git directory.
            arguments: What to do.
            cwd: Where; the root of the file system by default.
            stdin: What it is to read.
            env: What it finds in its environment besides.
            largest: Bytes of the largest file that it, or what it starts, may write.

        Raises:
            IntegrityError: It printed more than `MAX_SAID` bytes.
            UnavailableError: It did not end in time.
            StateError: It is not installed.
        """
        import subprocess  # not paid for where git is not started

        argv = ["git", f"--git-dir={repository}", *_OPTIONS, *arguments]
        out, err = OutputPipe(MAX_SAID), OutputPipe(MAX_ERRORS)
        try:
            with _readable(stdin) as given:
                process = subprocess.Popen(
                    argv,
                    env={**self.env, **(env or {})},
                    cwd=cwd or "/",
                    stdin=given,
                    stdout=out.fd,
                    stderr=err.fd,
                )
            with process:
                try:
                    for what, most in (
                        (resource.RLIMIT_DATA, MAX_MEMORY),
                        (resource.RLIMIT_FSIZE, largest),
                    ):
                        resource.prlimit(process.pid, what, _limit(what, most))
                    in_time = _listen(process, out, err, time.monotonic() + self.timeout)
                finally:
                    process.kill()  # nothing, where it has ended
        except FileNotFoundError as error:
            raise StateError("git is not installed", hint="apt-get install git") from error
        finally:
            out.close()
            err.close()
        if out.flooded:
            raise IntegrityError(
                f"git {arguments[0]} printed more than {MAX_SAID} bytes", where=str(repository)
            )
        if not in_time:
            raise UnavailableError(
                f"git {arguments[0]} did not end within {self.timeout:g} s", where=str(repository)
            )
        return subprocess.CompletedProcess(argv, process.returncode, out.data, err.data)


def _limit(what: int, wanted: int) -> tuple[int, int]:
    """Return a limit of ours, or a lower one that is there already."""
    _, most = resource.getrlimit(what)
    limits = [limit for limit in (most, wanted) if limit != resource.RLIM_INFINITY]
    limit = min(limits, default=resource.RLIM_INFINITY)
    return limit, limit


def _is_full(repository: Path, largest: int) -> bool:
    """Return whether git was stopped because a pack that it received became too large.

    The kernel ends the program that writes it, and git itself does not say why.
    """
    parts = (repository / "objects/pack").glob("tmp_*")
    return any(part.stat().st_size >= largest for part in parts)


def _readable(data: bytes) -> "IO[bytes]":
    """Return a file that a program reads some bytes from."""
    if not data:
        return Path(os.devnull).open("rb")
    file = os.fdopen(os.memfd_create("stdin", os.MFD_CLOEXEC), "w+b")
    file.write(data)
    file.seek(0)
    return file


def _listen(
    process: "subprocess.Popen[bytes]", out: OutputPipe, err: OutputPipe, deadline: float
) -> bool:
    """Take what a program says until it has ended or says too much; return whether in time."""
    import subprocess
    from selectors import EVENT_READ, DefaultSelector

    with DefaultSelector() as waiting:
        for pipe in (out, err):
            pipe.started()
            waiting.register(pipe, EVENT_READ, pipe)
        while waiting.get_map() and not out.flooded:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            for key, _ in waiting.select(left):
                key.data.read()
                if key.data.ended:
                    waiting.unregister(key.fileobj)
    if out.flooded:
        return True
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def make_bare(directory: Path, *, alternates: Sequence[Path]) -> None:
    """Make an empty bare repository in an empty directory, as `git init` does in a process.

    Args:
        directory: Where.
        alternates: Repositories whose objects it has, too.
    """
    for name in ("info", "objects/info", "objects/pack", "refs/heads", "refs/tags"):
        (directory / name).mkdir(parents=True)
    (directory / "info/attributes").write_text(_ATTRIBUTES)
    (directory / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = true\n")
    if alternates:
        lines = "".join(f"{other}/objects\n" for other in alternates)
        (directory / "objects/info/alternates").write_text(lines)
    (directory / "HEAD").write_text("ref: refs/heads/main\n")
