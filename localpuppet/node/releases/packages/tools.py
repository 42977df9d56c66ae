"""Runs dpkg and rpm to build and install packages, and packs a directory as one tar file.

The result depends only on the arguments: no configuration of the user, a fixed time, one thread.

The same tree gives the same bytes. `releases.forge.tar` reads packs with suspicion.
"""

import gzip
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time as clock
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.text import last_words, one_line
from localpuppet.base.machine.files import disk_errors, open_user_file, publish
from localpuppet.node.releases.forge.tar import MODES, TarRules
from localpuppet.node.releases.forge.tar import unpack as unpack_tar
from localpuppet.node.releases.limits import LIMITS, Limits
from localpuppet.node.releases.packages.directory import PREFIX

MAX_PACKAGE = 8 * 1024**3
# How apt brings a package that came to its repositories just now. It removes nothing for it.
# `install` waits for the lock itself; `update` fails at once while another one is on, and a machine
# has one at its boot and twice a day.
APT_NAME = "apt"
APT_LOCKED = b"Could not get lock"
APT_TRIES, APT_AGAIN = 30, 2.0  # seconds
APT: tuple[tuple[str, ...], ...] = (
    ("apt-get", "--quiet", "update"),
    (
        *("apt-get", "--quiet", "--yes", "--no-remove", "--no-install-recommends"),
        *("-o", "DPkg::Lock::Timeout=60", "install"),
    ),
)
_SYSTEM = "/usr/sbin:/usr/bin:/sbin:/bin"


class SystemPackageTools:
    """The package programs of this machine.

    Args:
        env: The environment to take PATH and TMPDIR from.
        timeout: Seconds for one command.
        sleep: Waits for some seconds.
    """

    def __init__(
        self,
        *,
        env: Mapping[str, str],
        timeout: float,
        sleep: Callable[[float], None] = clock.sleep,
    ) -> None:
        kept = {name: env[name] for name in ("TMPDIR",) if name in env}
        # dpkg wants ldconfig and start-stop-daemon, that are not on every user's PATH.
        path = f"{env.get('PATH', '')}:{_SYSTEM}".lstrip(":")
        self._env = {**kept, "PATH": path, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
        self._timeout = timeout
        self._sleep = sleep

    def build_deb(self, tree: Path, control: str, target: Path, *, time: int) -> None:
        """Build a Debian package of the files below `tree`.

        Args:
            tree: The files to install at `/`, with their final modes and times.
            control: The control file.
            target: The new file.
            time: The current time of the build, seconds since 1970.

        Raises:
            StateError: dpkg-deb is missing or failed.
        """
        directory = tree / "DEBIAN"
        with ExitStack() as cleanup, disk_errors(directory):
            cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix="localpuppet-deb-") as scratch:
                directory.mkdir()
                directory.chmod(0o755)
                (directory / "control").write_text(control, "utf-8")
                (directory / "control").chmod(0o644)
                for path in (directory / "control", directory, tree):
                    os.utime(path, (time, time))
                built = Path(scratch, "built.deb")
                # gzip: unlike xz, its bytes do not depend on the number of processors.
                compress = ["-Zgzip", "-z9", "--root-owner-group"]
                self._run("dpkg-deb", [*compress, "--build", str(tree), str(built)], time=time)
                publish(built, target, mode=0o644)

    def build_rpm(
        self, tree: Path, spec: str, macros: Mapping[str, str], target: Path, *, time: int
    ) -> None:
        """Build an RPM package of the files below `tree`; see `build_deb`.

        Args:
            tree: The files to install at `/`; the spec finds it in `LOCALPUPPET_TREE`.
            spec: The spec.
            macros: Macros that are defined for it.
            target: The new file.
            time: The current time of the build, seconds since 1970.

        Raises:
            InvalidInputError: rpmbuild would expand macros in the temporary directory's path.
            StateError: rpmbuild is missing or failed.
        """
        with tempfile.TemporaryDirectory(prefix="localpuppet-rpm-") as scratch:
            if "%" in scratch:  # rpmbuild runs what %(…) holds
                raise InvalidInputError(
                    "the path has a '%', which rpmbuild takes for a macro",
                    where="TMPDIR",
                    hint="set TMPDIR to a directory without one",
                )
            top = Path(scratch)
            with disk_errors(top):
                (top / "built.spec").write_text(spec, "utf-8")
            places = {
                "_topdir": scratch,
                "_tmppath": scratch,
                "_dbpath": f"{scratch}/db",
                "_rpmdir": scratch,
                "_rpmfilename": "built.rpm",
            }
            defines = [f"--define={name} {text}" for name, text in {**macros, **places}.items()]
            self._run(
                "rpmbuild",
                ["-bb", "--quiet", "--target=noarch", *defines, str(top / "built.spec")],
                time=time,
                # A home without .rpmmacros.
                env={"HOME": scratch, "LOCALPUPPET_TREE": str(tree)},
            )
            publish(top / "built.rpm", target, mode=0o644)

    def install(self, package: Path) -> None:
        """Install a package of a release on this machine; repeating it is harmless.

        Raises:
            InvalidInputError: The file is not regular, others could write it, or it is not a
                package of a release.
            StateError: dpkg or rpm is missing or failed.
        """
        # Absolute, so that no name can be taken for an option.
        path = os.path.abspath(package)  # noqa: PTH100 - Path.resolve() follows links
        with open_user_file(Path(path), limit=MAX_PACKAGE) as file:
            start = file.read(8)
        if start == b"!<arch>\n":
            ask, tool = ["dpkg-deb", "--field", path, "Package"], ["dpkg", "--install", path]
        elif start.startswith(b"\xed\xab\xee\xdb"):
            ask = ["rpm", "--query", "--package", "--nosignature", "--queryformat=%{NAME}", path]
            tool = ["rpm", "--upgrade", "--replacepkgs", path]
        else:
            raise InvalidInputError("is neither a .deb nor an .rpm", where=path)
        name = self._run(ask[0], ask[1:]).strip()
        if not name.startswith(PREFIX):
            raise InvalidInputError(
                f"is the package {one_line(name)[:80]!r}, not one of a release",
                where=path,
                hint=f"its name starts with {PREFIX}; install others with dpkg or rpm",
            )
        self._run(tool[0], tool[1:])

    def install_by_name(self, name: str, manager: str | Sequence[str]) -> None:
        """Have the machine's package manager install a package; see `install`."""
        command, last = tuple(manager), name
        if manager == APT_NAME:
            update, command = APT
            self._run(update[0], update[1:], tries=APT_TRIES)
            last = _only(name)
        self._run(command[0], [*command[1:], last])

    def _run(
        self,
        program: str,
        arguments: Sequence[str],
        *,
        time: int | None = None,
        env: Mapping[str, str] | None = None,
        tries: int = 1,
    ) -> str:
        epoch = {} if time is None else {"SOURCE_DATE_EPOCH": str(time)}
        path = shutil.which(program, path=self._env["PATH"])
        if path is None:
            package = {"rpmbuild": "rpm or rpm-build", "dpkg-deb": "dpkg"}.get(program, program)
            raise StateError(f"{program} is not installed", hint=f"install the package {package}")
        variables = {**self._env, **epoch, **(env or {})}
        done = self._ended(program, [path, *arguments], variables)
        for _ in range(tries - 1):
            if done.returncode == 0 or APT_LOCKED not in done.stderr:
                break
            self._sleep(APT_AGAIN)
            done = self._ended(program, [path, *arguments], variables)
        if done.returncode != 0:
            error_text = last_words(done.stderr, most=300)
            raise StateError(
                f"failed: {error_text or f'exit code {done.returncode}'}", where=program
            )
        return done.stdout.decode("utf-8", "replace")

    def _ended(
        self, program: str, command: Sequence[str], env: Mapping[str, str]
    ) -> "subprocess.CompletedProcess[bytes]":
        try:
            return subprocess.run(
                command,
                env=env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._timeout,
                check=False,
                umask=0o022,
            )
        except subprocess.TimeoutExpired as error:
            raise StateError(f"did not end within {self._timeout:g} s", where=program) from error


def _only(name: str) -> str:
    """Return a package name that apt-get reads only as an exact name.

    apt-get reads an unknown name as a regular expression, and `+` or `-` at its end as an action.
    """
    exact = re.sub(r"[.+]", r"[\g<0>]", name)
    return f"^{exact}$"


_RULES = TarRules(
    top=re.compile(rb"[0-9a-f]{64}\Z"),
    hint="a pack is made by 'localpuppet release package --format tar'",
)


def write(directory: Path, target: Path, *, time: int) -> None:
    """Write a package's directory as a pack.

    Args:
        directory: Its name is the pack's only name at the top.
        target: The new file.
        time: The time of every member, seconds since 1970.
    """
    with (
        disk_errors(target),
        target.open("xb") as file,
        gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=9, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", encoding="utf-8", errors="surrogateescape") as tar,
    ):
        for path in [directory, *sorted(directory.rglob("*"), key=os.fsencode)]:
            _write_member(tar, path, str(path.relative_to(directory.parent)), time)


def _write_member(tar: tarfile.TarFile, path: Path, name: str, time: int) -> None:
    member = tarfile.TarInfo(name)
    member.mtime = time
    member.uname = member.gname = "root"
    if path.is_symlink():
        member.type, member.mode = tarfile.SYMTYPE, 0o777
        member.linkname = os.readlink(path)  # noqa: PTH115 - Path would tidy the target up
    elif path.is_dir():
        member.type, member.mode = tarfile.DIRTYPE, MODES["directory"]
    else:
        status = path.stat()
        member.size = status.st_size
        member.mode = MODES["executable" if status.st_mode & 0o100 else "file"]
    # One header where it can hold the name; GNU's format has no limit, and a header more.
    tar.format = tarfile.USTAR_FORMAT
    try:
        member.tobuf(tar.format, "utf-8", "surrogateescape")
    except ValueError:
        tar.format = tarfile.GNU_FORMAT
    if not member.isreg():
        tar.addfile(member)
        return
    with path.open("rb") as content:
        tar.addfile(member, content)


def unpack(pack: Path, target: Path, *, limits: Limits = LIMITS) -> Path:
    """Unpack a pack into an empty directory; return the package's directory below it.

    Only the form is verified: see `releases.packages.directory.load`.

    Args:
        pack: The file.
        target: An empty directory.
        limits: The size limits.

    Raises:
        InvalidInputError: The file cannot be read, is not a regular file, or others could write it.
        IntegrityError: The file is not a pack, is damaged or too large, or has a forbidden member.
    """
    return unpack_tar(pack, target, rules=_RULES, limits=limits)
