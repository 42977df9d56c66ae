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
    """

    def __init__(
        self,
        *,
        env: Mapping[str, str],
        allow_file: bool,
        timeout: float,
        access: Callable[[str], GitAccess] = lambda _url: NO_ACCESS,
    ) -> None:
        self.timeout = timeout
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

        Args:
            url: The repository, which the arguments name, too.
            repository: The git directory.
            arguments: What to do.
            failure: From what git said to the error to raise.

        Raises:
            InvalidInputError: The file of its credentials is refused.
        """
        access = self._access(url)
        return self.run(
            repository,
            *access.options(url),
            *arguments,
            env={**self._proxies, **access.environment()},
            failure=failure,
        )

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
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run git to whatever end.

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
                    resource.prlimit(process.pid, resource.RLIMIT_DATA, _memory())
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


def _memory() -> tuple[int, int]:
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = MAX_MEMORY if most == resource.RLIM_INFINITY else min(most, MAX_MEMORY)
    return limit, limit


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
