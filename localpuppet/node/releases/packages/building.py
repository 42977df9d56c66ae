"""Builds a package of a staged release: .deb, .rpm or release pack.

- The same release gives the same bytes on every machine and at every time.
- Every byte is hashed before it is packaged.
- A package runs no scripts, and installing it touches nothing below `modules/`.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localpuppet.base.errors import IntegrityError, InvalidInputError, LocalpuppetError
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.machine.files import publish, state_problem
from localpuppet.base.value import Value
from localpuppet.node.releases.git.repository import Repository
from localpuppet.node.releases.packages import directory as naming
from localpuppet.node.releases.packages import directory as packages
from localpuppet.node.releases.packages import tools as packs
from localpuppet.node.releases.packages.directory import PackageDescription
from localpuppet.node.releases.staged import StagedRelease
from localpuppet.node.releases.staging import ReleaseStaging
from localpuppet.node.releases.store import Store, tree_digest

if TYPE_CHECKING:
    from localpuppet.node.releases.packages.tools import SystemPackageTools

# Tar headers hold 11 octal digits; RPM and dpkg-deb stop earlier. A commit may claim anything.
MAX_TIME = 2**31 - 1


class BuiltPackage(Value):
    """A package that was built.

    Attributes:
        file: The package's file.
        sha256: The digest of the file.
        about: Its description.
    """

    file: Path
    sha256: str
    about: PackageDescription

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
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
    """Builds packages.

    Attributes:
        staging: The releases on this machine.
        store: Trees.
        repository: Git, for the time of a commit.
        tools: dpkg-deb and rpmbuild.
        directories: The directories of installed packages, which have the commit's time if git does
            not.
    """

    staging: ReleaseStaging
    store: Store
    repository: Repository
    tools: "SystemPackageTools"
    directories: Sequence[Path]

    def build(
        self, staged: StagedRelease, *, form: str, directory: Path, version: str | None
    ) -> BuiltPackage:
        """Build a package of a staged release.

        Args:
            staged: The release.
            form: `deb`, `rpm` or `tar`.
            directory: The directory for the file.
            version: The package's version; `None` for the one in the tag.

        Raises:
            InvalidInputError: The version or directory is invalid.
            IntegrityError: A tree in the store is damaged.
            UnavailableError: The commit's time is unknown.
            StateError: A program is missing or failed.
        """
        if version is not None:
            naming.parse_version(version)
        if not directory.is_dir():
            raise InvalidInputError("is not a directory", where=str(directory), hint="-o DIR")
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
        name = naming.package_name(staged.release)
        identity = hashlib.sha256(record).hexdigest()
        top = root / naming.PACKAGES / identity
        (top / "objects").mkdir(parents=True)
        (top / packages.RECORD).write_bytes(record)
        for sha256 in sorted(staged.digests):
            self._copy(sha256, top / "objects" / sha256)
        composed = top / "releases" / staged.composition
        composed.mkdir(parents=True)
        for link, target in self.staging.links(staged).items():
            (composed / link).parent.mkdir(parents=True, exist_ok=True)
            (composed / link).symlink_to(target)
        _copy_licences(staged, top / "objects", root / naming.DOCUMENTATION / name)
        (top / packages.SUMS).write_bytes(_sums(top))
        return PackageDescription(
            release=staged.release,
            name=name,
            version=version or naming.package_version(staged.pin.tag),
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
        target = directory / naming.file_name(about, form)
        if form == "deb":
            self.tools.build_deb(root, naming.control(about), target, time=time)
        elif form == "rpm":
            spec = naming.spec(about)
            self.tools.build_rpm(root, spec, naming.RPM_MACROS, target, time=time)
        else:
            pack = root.parent / target.name
            packs.write(root / about.directory, pack, time=time)
            publish(pack, target, mode=0o644)
        with target.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return BuiltPackage(file=target, sha256=sha256, about=about)


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
        licences = [path for path in _files(tree) if naming.is_licence(path.name)]
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
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest().encode()
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
