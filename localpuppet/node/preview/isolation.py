"""Isolates the compiler: the code of a pull request must not reach more than the code itself.

- The compiler has no network, sees only its own processes, and only the files of Ruby, Puppet and
  the release, read-only. It gets no variables of the job, no new privileges and no capabilities.
- As root it is another user; otherwise a user namespace keeps it from everything of the job's user.
- If the kernel does not allow this, nothing is compiled.
"""

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from localpuppet.base.errors import StateError
from localpuppet.base.machine.bounded_program import Bounds, run
from localpuppet.base.machine.confinement import find_programs, mortal
from localpuppet.base.share.files import shared_file

USER = GROUP = "65534"  # of the user without rights
# What Ruby and the shell need. Secrets are in other files of /etc.
SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt/puppetlabs", "/var/lib/gems"),
    *(
        "/etc/alternatives",
        "/etc/group",
        "/etc/ld.so.cache",
        "/etc/localtime",
        "/etc/nsswitch.conf",
    ),
    *("/etc/os-release", "/etc/passwd"),
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"),
)
# A path that the other user may be unable to read.
_READABLE = "+"
_NAMESPACES = ("--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child")
_CURES = {
    True: "give the container CAP_SYS_ADMIN and no seccomp filter, or pass '--trusted' for code"
    " that you trust",
    False: "allow user namespaces ('sysctl user.max_user_namespaces' above 0, and no chroot),"
    " run it as root, or pass '--trusted' for code that you trust",
}
_PROBE = Bounds(seconds=30, output=4096, errors=4096, memory=1024**3)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerIsolation:
    """Isolates a compiler.

    Attributes:
        path: The PATH for programs.
        trusted: Whether the code is trusted: then it is not isolated.
    """

    path: str
    trusted: bool = False

    def command(self, argv: Sequence[str], visible: Iterable[Path], root: Path) -> list[str]:
        """Return the command that runs `argv` isolated.

        Args:
            argv: Absolute program and arguments.
            visible: Directories and files that it may read.
            root: An empty directory, over which its files are mounted.

        Raises:
            StateError: A program for it is missing.
        """
        if self.trusted:
            return mortal(argv, path=self.path)
        unshare, setpriv = find_programs("unshare", "setpriv", path=self.path, package="util-linux")
        find_programs("mount", "umount", "findmnt", path=self.path, package="mount")
        namespaces = [*_NAMESPACES]
        drop = ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        if os.geteuid() == 0:
            drop += [f"--reuid={USER}", f"--regid={GROUP}", "--clear-groups"]
        else:
            namespaces.append("--map-root-user")
            drop.append("--securebits=+noroot,+noroot_locked")
        mark = _READABLE if os.geteuid() == 0 else ""
        code = [f"{mark}{text}" for each in visible for text in _ways(each)]
        paths = [*SYSTEM, *sorted(set(code))]  # a directory comes before what is in it
        script = str(shared_file("preview/isolate.sh"))
        return mortal(
            [
                *(unshare, *namespaces, "--", "/bin/sh", script, str(root), *paths, "--"),
                *(setpriv, *drop, "--", *argv),
            ],
            path=self.path,
        )

    def check(self, root: Path) -> None:
        """Check that a command can be isolated.

        Args:
            root: An empty directory.

        Raises:
            StateError: It cannot; the message has the cure.
        """
        if self.trusted:
            return
        true = shutil.which("true", path=self.path) or "/bin/true"
        done = run(
            self.command([true], (), root), env={"PATH": self.path}, cwd=Path("/"), bounds=_PROBE
        )
        if done.code != 0:
            lines = done.err.decode("utf-8", "replace").strip().splitlines()
            reason = lines[-1] if lines else f"it exited {done.code}"
            cure = _CURES[os.geteuid() == 0]
            raise StateError(f"cannot isolate the compiler: {reason}", hint=cure)


def _ways(path: Path) -> list[str]:
    """Return a path, the links on the way to it, and what they lead to."""
    real = path.resolve()
    links = [str(each) for each in (*reversed(path.parents), path) if each.is_symlink()]
    return [*links, str(real)] if links else [str(path)]
