"""Isolates and bounds a program that runs code of strangers: it reaches only the code itself.

- The program has no network, sees only its own processes, and only the files of Ruby, Puppet and
  the code, read-only. It gets no variables of the job, no new privileges and no capabilities.
- As root it is another user. It is always in a user namespace that allows no further one.
- System calls that reach around namespaces and limits are denied (`share/isolated_start.py`).
- A cgroup limits memory and processes in total, if this process may create one. The program's
  resource limits apply in any case, and a compiler counts what its compiles use.
- If the kernel does not allow this, nothing is run.
"""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.machine.child import Cgroup, OutputPipe, OwnGroup
from localpuppet.base.machine.own_program import shared_file
from localpuppet.base.machine.processes import find_programs, limited, mortal
from localpuppet.base.value import Value

USER = GROUP = "65534"  # of the user without rights
# What Ruby and the shell need. Secrets are in other files of /etc.
SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt/puppetlabs", "/var/lib/gems"),
    *("/etc/alternatives", "/etc/group", "/etc/ld.so.cache", "/etc/localtime"),
    *("/etc/nsswitch.conf", "/etc/os-release", "/etc/passwd"),
    *("/dev/null", "/dev/full", "/dev/random", "/dev/urandom"),
)
# Places of programs that an administrator built: shown only if they contain Ruby.
LOCAL = (Path("/usr/local"), Path("/usr/src"))
# A path that the other user may be unable to read, and one that is covered.
_READABLE, _HIDDEN = "+", "-"
_NAMESPACES = ("--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child")
# Ends its namespace of processes with the program; the program can neither end nor change it.
_FIRST = ("/bin/sh", "-c", '"$@"; exit "$?"', "sh")
# The namespace lasts as long as the program, which has no right to change its limits.
_ONLY_USERS = 'echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"'
_CURES = {
    True: "give the container CAP_SYS_ADMIN and no seccomp filter",
    False: "allow user namespaces ('sysctl user.max_user_namespaces' above 0, and no chroot),"
    " run it as root",
}


class Bounds(Value):
    """The limits of a program.

    Attributes:
        seconds: Time until it is killed.
        output: Bytes of standard output; it is killed when there are more.
        errors: Bytes of standard error to keep: the beginning.
        memory: Bytes of memory, for it and for each program that it starts.
        file: Bytes of the largest file that one of these writes; `None` for no limit.
    """

    seconds: float
    output: int
    errors: int
    memory: int
    file: int | None = None


class ProgramResult(Value):
    """The result of a program: its code is -N for signal N; `out` ends at the limit."""

    code: int
    out: bytes
    err: bytes
    flooded: bool
    in_time: bool


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    bounds: Bounds,
    stdin: bytes = b"",
) -> ProgramResult:
    """Run a program within its bounds and return its result.

    Raises:
        FileNotFoundError: The program does not exist.
        StateError: prlimit is not installed.
    """
    path = env.get("PATH", os.defpath)
    program = shutil.which(argv[0], path=path)
    if program is None:
        raise FileNotFoundError(argv[0])
    limits = {
        "data": _limit(resource.RLIMIT_DATA, bounds.memory),
        "fsize": _limit(resource.RLIMIT_FSIZE, bounds.file),
    }
    command = limited([program, *argv[1:]], limits=limits, path=path)
    out, err = OutputPipe(bounds.output), OutputPipe(bounds.errors)
    try:
        with (
            _readable(stdin) as given,
            start_session(
                command, env=env, cwd=cwd, stdin=given.fileno(), out=out.fd, err=err.fd
            ) as process,
        ):
            in_time = _listen(process.pid, out, err, time.monotonic() + bounds.seconds)
        return ProgramResult(
            code=process.returncode,
            out=out.data,
            err=err.data,
            flooded=out.flooded,
            in_time=in_time,
        )
    finally:
        out.close()
        err.close()


@contextmanager
def start_session(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    stdin: int,
    out: int,
    err: int,
    passed: Sequence[int] = (),
) -> "Iterator[subprocess.Popen[bytes]]":
    """Run a program in a new session; at the end, kill what is left of its process group.

    A killed program leaves its children behind: a git that waits for its transport leaves the
    transport. Without a terminal, the program cannot prompt a person.

    Args:
        stdin: The descriptor of its standard input, or `subprocess.DEVNULL`.
        out: The descriptor of its standard output, or `subprocess.PIPE`.
        err: The descriptor of its standard error, or `subprocess.DEVNULL`.
        passed: Further descriptors, which keep their numbers.

    Raises:
        FileNotFoundError: The program does not exist.
    """
    import subprocess  # imported only when a program starts

    with subprocess.Popen(
        argv,
        env=env,
        cwd=cwd,
        stdin=stdin,
        stdout=out,
        stderr=err,
        pass_fds=passed,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            # Before the leader is reaped: until then, its number is the group's.
            OwnGroup(process.pid).signal(signal.SIGKILL)


def _limit(what: int, wanted: int | None) -> int:
    """Return the wanted limit, or the current one if that is lower; -1 for no limit."""
    _, most = resource.getrlimit(what)
    limits = [limit for limit in (most, wanted) if limit not in (None, resource.RLIM_INFINITY)]
    return min(limits, default=resource.RLIM_INFINITY)


def _readable(data: bytes) -> "IO[bytes]":
    """Return a file from which a program reads `data`."""
    if not data:
        return Path(os.devnull).open("rb")
    file = os.fdopen(os.memfd_create("stdin", os.MFD_CLOEXEC), "w+b")
    file.write(data)
    file.seek(0)
    return file


def _listen(pid: int, out: OutputPipe, err: OutputPipe, deadline: float) -> bool:
    """Read a program's output until it ends or exceeds a limit; return whether it was in time."""
    from selectors import EVENT_READ, DefaultSelector

    end = os.pidfd_open(pid)
    try:
        with DefaultSelector() as waiting:
            waiting.register(end, EVENT_READ)
            for pipe in (out, err):
                pipe.started()
                waiting.register(pipe, EVENT_READ, pipe)
            while waiting.get_map() and not out.flooded:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                for key, _ in waiting.select(left):
                    if key.data is not None:
                        key.data.read()
                    if key.data is None or key.data.ended:
                        waiting.unregister(key.fileobj)
        return True
    finally:
        os.close(end)


_PROBE = Bounds(seconds=30, output=4096, errors=4096, memory=1024**3)


class CodeIsolation(Value):
    """Isolates a program.

    Attributes:
        memory: Bytes of memory of everything that it starts, where a cgroup can be created.
        programs: The number of processes and threads, likewise.
        hidden: Directories that it must not see, even if they are inside of one that it sees.
        trusted: Whether the code is trusted: then it is not isolated.
        system: What Ruby and the shell need.
    """

    path: str
    memory: int
    programs: int
    otherwise: str
    hidden: tuple[Path, ...] = ()
    trusted: bool = False
    system: tuple[str, ...] = SYSTEM

    @contextmanager
    def command(
        self,
        argv: Sequence[str],
        visible: Iterable[Path],
        root: Path,
        *,
        ruby: Iterable[Path] = (),
        limits: Mapping[str, int] | None = None,
        watched: bool = False,
    ) -> Iterator[list[str]]:
        """Yield the command that runs `argv` isolated; it has ended when the block ends.

        Args:
            visible: Directories and files that it may read.
            root: An empty directory, over which its files are mounted.
            ruby: Directories of Ruby and its libraries, which it may read, too.
            limits: Its resource limits, as in prlimit(1).
            watched: Whether a first process ends what is left when the program ends; otherwise the
                program itself is the first process.

        Raises:
            StateError: A program for it is missing.
        """
        if self.trusted:
            yield mortal(argv, path=self.path)
            return
        wanted = {"memory": self.memory, "pids": self.programs}
        groups = Cgroup.limited(wanted)
        try:
            procs = [str(group.processes) for group in groups]
            start = [sys.executable, "-I", "-S", str(shared_file("isolated_start.py")), *procs]
            first = list(_FIRST) if watched else []
            code = [*first, *self._unprivileged(limited(argv, limits=limits or {}, path=self.path))]
            rooted = [*self._rooted([Path(argv[0]), *ruby], list(visible), root), *code]
            yield mortal([*start, "--", *rooted], path=self.path)
        finally:
            for group in groups:
                group.kill()
                group.remove()

    def _rooted(self, ruby: Sequence[Path], visible: Sequence[Path], root: Path) -> list[str]:
        """Return the start of a command that runs in namespaces, with the named files only."""
        (unshare,) = find_programs("unshare", path=self.path, package="util-linux")
        find_programs("mount", "umount", "findmnt", path=self.path, package="mount")
        # As isolate.sh finds it. From Debian 14 on it is not in util-linux, which is essential.
        sbin = f"{self.path}:/usr/sbin:/sbin"
        find_programs("pivot_root", path=sbin, package="util-linux-extra")
        is_root = os.geteuid() == 0
        mark = _READABLE if is_root else ""
        programs, code = (
            sorted({f"{mark}{text}" for each in group for text in _ways(each)})
            for group in (ruby, visible)
        )
        hidden = {f"{_HIDDEN}{path}" for path in self._hidden(ruby, visible)}
        # A directory comes before what is in it.
        paths = [*self.system, *programs, *sorted(hidden), *code]
        users = () if is_root else ("--map-root-user",)
        script = str(shared_file("isolate.sh"))
        return [unshare, *_NAMESPACES, *users, "--", "/bin/sh", script, str(root), *paths, "--"]

    def _hidden(self, ruby: Sequence[Path], visible: Sequence[Path]) -> set[Path]:
        """Return what is covered: the highest directories around hidden ones, without Ruby's."""
        needed, seen = [each.resolve() for each in ruby], [each.resolve() for each in visible]
        system = {*(Path(each).resolve() for each in self.system), *needed}
        covered = set()
        for path in (*LOCAL, *(each.resolve() for each in self.hidden)):
            ways = [way for way in (path, *path.parents) if not system.isdisjoint(way.parents)]
            free = [way for way in ways if not any(each.is_relative_to(way) for each in needed)]
            covered.update(free[-1:])
        return {way for way in covered if not any(way.is_relative_to(each) for each in seen)}

    def _unprivileged(self, argv: Sequence[str]) -> list[str]:
        """Return a command that runs `argv` without rights, in its own user namespace."""
        setpriv, unshare = find_programs("setpriv", "unshare", path=self.path, package="util-linux")
        user = [f"--reuid={USER}", f"--regid={GROUP}", "--clear-groups"]
        # Some kernels let only CAP_SYS_ADMIN create a user namespace.
        creator = [*user, "--inh-caps=+sys_admin", "--ambient-caps=+sys_admin"]
        drop = ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]
        return [
            *((setpriv, *creator, "--") if os.geteuid() == 0 else ()),
            *(unshare, "--user", "--map-current-user", "--keep-caps", "--"),
            *("/bin/sh", "-c", _ONLY_USERS, "sh"),
            *(setpriv, *drop, "--securebits=+noroot,+noroot_locked", "--", *argv),
        ]

    def refuse_outside(self, visible: Iterable[Path], inside: Iterable[Path]) -> None:
        """Reject code for the program that is elsewhere than expected, such as a link's target.

        Args:
            visible: Directories and files that it may read.
            inside: Directories and files that have all of them.

        Raises:
            InvalidInputError: One of them is elsewhere.
        """
        tops = [path.resolve() for path in inside]
        for path in () if self.trusted else visible:
            if not any(path.resolve().is_relative_to(top) for top in tops):
                raise InvalidInputError(
                    "is neither in the release nor in the store",
                    where=str(path),
                    hint=self.otherwise,
                )

    def check(self, root: Path) -> None:
        """Check that a command can be isolated.

        Raises:
            StateError: It cannot; the message has the cure.
        """
        if self.trusted:
            return
        true = shutil.which("true", path=self.path) or "/bin/true"
        with self.command([true], (), root) as command:
            done = run(command, env={"PATH": self.path}, cwd=Path("/"), bounds=_PROBE)
        if done.code != 0:
            lines = done.err.decode("utf-8", "replace").strip().splitlines()
            reason = lines[0] if lines else f"it exited {done.code}"
            cure = f"{_CURES[os.geteuid() == 0]}, or {self.otherwise}"
            raise StateError(f"cannot isolate Ruby: {reason}", hint=cure)


def _ways(path: Path) -> list[str]:
    """Return a path, the links on the way to it, and what they lead to."""
    real = path.resolve()
    links = [str(each) for each in (*reversed(path.parents), path) if each.is_symlink()]
    return [*links, str(real)] if links else [str(path)]
