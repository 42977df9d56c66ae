"""Builds packages of staged releases (.deb, .rpm, release pack), and installs them.

- The result depends only on the arguments (no configuration of the user, a fixed time, one thread):
  the same release gives the same bytes on every machine and at every time.
- Every byte is hashed before it is packaged.
- A package runs no scripts, and installing it touches nothing below `modules/`.
- A pack is read by `releases.tar`, which does not trust it.
"""

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time as clock
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localpuppet.base.errors import IntegrityError, InvalidInputError, LocalpuppetError, StateError
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import last_words, one_line
from localpuppet.base.machine.files import disk_errors, open_user_file, publish, state_problem
from localpuppet.base.value import Value
from localpuppet.node.releases.limits import LIMITS, MAX_PACKAGE, Limits
from localpuppet.node.releases.packages import directory as packages
from localpuppet.node.releases.packages.directory import PREFIX, PackageDescription
from localpuppet.node.releases.release_records import StagedRelease
from localpuppet.node.releases.staging import ReleaseStaging
from localpuppet.node.releases.store import Store, sha256_of, tree_digest
from localpuppet.node.releases.tar import MODES, TarRules
from localpuppet.node.releases.tar import unpack as unpack_tar

if TYPE_CHECKING:
    from localpuppet.node.releases.git.mirrors import Git


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
    """The package programs of this machine, with PATH and TMPDIR of `env`."""

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
        """Build a Debian package of the files below `tree`, with their final modes and times."""
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
        """Build an RPM package of files, which the spec finds in `LOCALPUPPET_TREE`."""
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
        """Install a package of a release on this machine; repeating it is harmless."""
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
        if (path := shutil.which(program, path=self._env["PATH"])) is None:
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
    """Write a package's directory as a pack, whose members all have one time."""
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
    """
    return unpack_tar(pack, target, rules=_RULES, limits=limits)


# Tar headers hold 11 octal digits; RPM and dpkg-deb stop earlier. A commit may claim anything.
MAX_TIME = 2**31 - 1


class BuiltPackage(Value):
    file: Path
    sha256: str
    about: PackageDescription

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "release": self.about.release,
            "package": str(self.file),
            "sha256": self.sha256,
            "name": self.about.name,
            "version": self.about.version,
            "id": self.about.id,
            "commit": self.about.commit,
        }


class Packager(Value):
    """Builds packages; installed ones have the commit's time if git does not."""

    staging: ReleaseStaging
    store: Store
    repository: "Git"
    tools: "SystemPackageTools"
    directories: Sequence[Path]

    def build(
        self, staged: StagedRelease, *, form: str, directory: Path, version: str | None
    ) -> BuiltPackage:
        """Build a package, `deb`, `rpm` or `tar`, of a staged release, by default of its version.

        Raises:
            IntegrityError: A tree in the store is damaged.
            UnavailableError: The commit's time is unknown.
        """
        if version is not None:
            packages.parse_version(version)
        if not directory.is_dir():
            raise InvalidInputError(
                "is not a directory",
                where=str(directory),
                hint="create it, or pass another one: -o DIR",
            )
        time = min(self._time(staged), MAX_TIME)
        record = json.dumps({**staged.to_dict(), "time": time}, indent=2, sort_keys=True) + "\n"
        try:
            with tempfile.TemporaryDirectory(prefix="localpuppet-package-") as scratch:
                root = Path(scratch, "root")
                about = self._lay_out(staged, record.encode(), root, version)
                _settle(root, time)
                return self._write(form, root, about, directory, time)
        except OSError as error:
            place = error.filename if isinstance(error.filename, str) else directory
            raise state_problem(error, Path(place)) from error

    def _time(self, staged: StagedRelease) -> int:
        """Return the time of the release's commit, from git or from its package."""
        try:
            package = packages.find(self.directories, staged.release)
        except LocalpuppetError:
            package = None  # a broken package of anything must not stop who has git
        if package is not None:
            record = loads(package.data)
            time = record.get("time")
            if record.get("pin") == asdict(staged.pin) and isinstance(time, int):
                return time
        self.repository.fetch([(staged.pin.url, staged.pin.tag)], refresh=False)
        return self.repository.commit_time(staged.pin.url, staged.pin.commit)

    def _lay_out(
        self, staged: StagedRelease, record: bytes, root: Path, version: str | None
    ) -> PackageDescription:
        """Create the tree that a package installs; return its description."""
        name = packages.package_name(staged.release)
        identity = hashlib.sha256(record).hexdigest()
        top = root / packages.PACKAGES / identity
        (top / "objects").mkdir(parents=True)
        (top / packages.RECORD).write_bytes(record)
        for sha256 in sorted(staged.digests):
            self._copy(sha256, top / "objects" / sha256)
        composed = top / "releases" / staged.composition
        composed.mkdir(parents=True)
        for link, target in self.staging.compositions.links(staged).items():
            (composed / link).parent.mkdir(parents=True, exist_ok=True)
            (composed / link).symlink_to(target)
        _copy_licences(staged, top / "objects", root / packages.DOCUMENTATION / name)
        (top / packages.SUMS).write_bytes(_sums(top))
        return PackageDescription(
            release=staged.release,
            name=name,
            version=version or packages.package_version(staged.pin.tag),
            id=identity,
            url=staged.pin.url,
            commit=staged.pin.commit,
            trees=len(staged.modules) + len(staged.sources),
            size=sum(path.stat().st_size for path in _files(root)),
        )

    def _copy(self, sha256: str, target: Path) -> None:
        packages.copy_tree(self.store.path(sha256), target, link=False)
        digest = tree_digest(target, where=sha256)
        if digest != sha256:
            raise IntegrityError(
                f"has the digest {digest[:16]}…",
                where=str(self.store.path(sha256)),
                hint="'localpuppet release verify' shows details, 'localpuppet stage' repairs it",
            )

    def _write(
        self, form: str, root: Path, about: PackageDescription, directory: Path, time: int
    ) -> BuiltPackage:
        target = directory / packages.file_name(about, form)
        if form == "deb":
            self.tools.build_deb(root, packages.control(about), target, time=time)
        elif form == "rpm":
            spec = packages.spec(about)
            self.tools.build_rpm(root, spec, packages.RPM_MACROS, target, time=time)
        else:
            pack = root.parent / target.name
            write(root / about.directory, pack, time=time)
            publish(pack, target, mode=0o644)
        return BuiltPackage(file=target, sha256=sha256_of(target), about=about)


def _files(root: Path) -> Iterator[Path]:
    """Yield every ordinary file below `root`, in the order of its bytes."""
    for path in sorted(root.rglob("*"), key=os.fsencode):
        if path.is_file() and not path.is_symlink():
            yield path


def _copy_licences(staged: StagedRelease, objects: Path, target: Path) -> None:
    """Copy licences to the documentation directory; they stay in their trees as well."""
    trees = {str(staged.release): staged.pin.tree_sha256, **staged.sources}
    trees |= {f"{staged.release}/{name}": sha256 for name, sha256 in staged.modules.items()}
    target.mkdir(parents=True)
    lines = [
        f"{staged.release} is commit {staged.pin.commit}",
        f"of {staged.pin.url} (tag {staged.pin.tag}).",
        "",
    ]
    for name, sha256 in sorted(trees.items()):
        tree = objects / sha256
        licences = [path for path in _files(tree) if packages.is_licence(path.name)]
        lines.append(f"{name}: {len(licences) or 'no'} licence files in its tree")
        for path in licences:
            copy = target / "licenses" / name / path.relative_to(tree)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    (target / "copyright").write_text("\n".join(lines) + "\n", "utf-8")


def _sums(top: Path) -> bytes:
    """Return the input of `sha256sum -c` for every file below `top`."""
    lines = []
    for path in _files(top):
        sha256 = sha256_of(path).encode()
        name = os.fsencode(path.relative_to(top))
        # As sha256sum writes it.
        mark = b"\\" if b"\\" in name else b""
        lines.append(mark + sha256 + b"  " + name.replace(b"\\", b"\\\\") + b"\n")
    return b"".join(lines)


def _settle(root: Path, time: int) -> None:
    """Set fixed modes and times below `root`."""
    for path in [*root.rglob("*"), root]:
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if path.is_dir() else 0o555 if executable else 0o444)
        os.utime(path, (time, time), follow_symlinks=False)
