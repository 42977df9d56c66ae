"""Releases that came as files: packages and unpacked packs, their names and descriptions.

- `web/tags/r1` becomes a name and a version that Debian and RPM accept.
- Two releases never share a name, so that they install side by side.
- Nothing depends on the machine or the time.

A package's directory is named by the SHA-256 of its `release.json`, which has the digests of the
trees below `objects/`: the name verifies every byte.

    ID/release.json       the record of the release (as in staged/), and the time of its commit
    ID/objects/SHA256/    its trees: the release's own, its modules, its collections
    ID/releases/SHA256/   the composed release, links as in the state directory
    ID/SHA256SUMS         every file, for sha256sum -c
"""

import errno
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from localpuppet.base.errors import IntegrityError, InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.machine.files import disk_errors, read_user_file
from localpuppet.base.value import Value
from localpuppet.node.releases.limits import MAX_PACKAGE_NAME

PREFIX = "localpuppet-release-"
PACKAGES = "usr/share/localpuppet/packages"
DOCUMENTATION = "usr/share/doc"

# What both take: Debian knows no '_', RPM no '-', and both sort '~' before everything.
_VERSION = re.compile(r"[0-9][A-Za-z0-9.+~]{0,59}\Z")
_NOT_IN_NAMES = re.compile(r"[^a-z0-9.+-]")
_LICENCE = re.compile(r"(?:un)?(?:licen[cs]e|copying|copyright|notice)s?(?:[._-].*)?\Z", re.I)


class PackageDescription(Value):
    """The description of a package; its directory's name is the SHA-256 of its `release.json`.

    `trees` counts modules and collections beside the release's own; `size` is the installed one.
    """

    release: ReleasePath
    name: str
    version: str
    id: str
    url: str
    commit: str
    trees: int
    size: int

    @property
    def directory(self) -> str:
        """The directory of its files, relative to `/`."""
        return f"{PACKAGES}/{self.id}"

    @property
    def documentation(self) -> str:
        """The directory of its licences, relative to `/`."""
        return f"{DOCUMENTATION}/{self.name}"

    @property
    def summary(self) -> str:
        return f"Puppet release {self.release}"

    @property
    def text(self) -> tuple[str, ...]:
        """The long description: what it is, and what installing it does not do."""
        return (
            f"Commit {self.commit}",
            f"of {self.url},",
            f"with {self.trees} locked modules and collections.",
            "Installing it does not activate it:",
            f"'localpuppet stage {self.release}' does, and verifies it first.",
        )


def package_name(app: ReleasePath) -> str:
    """Return the name of the package of a release, `localpuppet-release-web-r1`.

    Debian's rule (lower-case letters, digits, `+ - .`) is the stricter one. If it maps two releases
    to one name, eight digits of the SHA-256 of the release's own name are appended: if a character
    was replaced, or the tag has a `-`.
    """
    source, tag = app.source, app.rpartition("/")[2]
    plain = f"{source}-{tag}"
    name = _NOT_IN_NAMES.sub("-", plain.lower())[:MAX_PACKAGE_NAME]
    if name != plain or "-" in tag:
        name = f"{name}-{hashlib.sha256(app.encode()).hexdigest()[:8]}"
    return PREFIX + name


def file_name(about: PackageDescription, form: str) -> str:
    """Return the file name of a package, by the conventions of its format."""
    if form == "deb":
        return f"{about.name}_{about.version}_all.deb"
    if form == "rpm":
        return f"{about.name}-{about.version}-1.noarch.rpm"
    return f"{about.name}-{about.version}.tar.gz"


def package_version(tag: str) -> str:
    """Return the version in a tag: `1` for `r1`, `1.2~rc1` for `v1.2-rc1`, `0+blue` for `blue`."""
    start = re.search(r"[0-9]", tag)
    text = tag[start.start() :] if start else f"0+{tag}"
    text = re.sub(r"[-_](?=[A-Za-z])", "~", text)
    return re.sub(r"[^A-Za-z0-9.+~]", ".", text)[:60]


def parse_version(text: str) -> str:
    """Return a version that a user chose; `InvalidInputError` if Debian or RPM would reject it."""
    if not _VERSION.match(text):
        raise InvalidInputError(
            f"{text[:60]!r} is not a version for a package",
            where="--version",
            hint="a digit, then ASCII letters, digits and . + ~, at most 60 characters",
        )
    return text


def is_licence(name: str) -> bool:
    """Return whether a file of that name is a licence or a notice that goes with one."""
    return bool(_LICENCE.match(name))


def control(about: PackageDescription) -> str:
    """Return Debian's control file: no dependencies, no scripts."""
    return "".join(
        f"{line}\n"
        for line in (
            f"Package: {about.name}",
            f"Version: {about.version}",
            "Architecture: all",
            "Maintainer: localpuppet <root@localhost>",
            f"Installed-Size: {-(-about.size // 1024)}",
            "Section: admin",
            "Priority: optional",
            f"Description: {about.summary}",
            *(f" {line}" for line in about.text),
        )
    )


def spec(about: PackageDescription) -> str:
    """Return RPM's spec: no generated dependencies, no scripts.

    The tree is in the directory that `LOCALPUPPET_TREE` names, so that the spec has no path of the
    building machine.
    """
    quoted: Callable[[str], str] = lambda text: text.replace("%", "%%")  # noqa: E731
    return "".join(
        f"{line}\n"
        for line in (
            f"Name: {about.name}",
            f"Version: {about.version}",
            "Release: 1",
            f"Summary: {quoted(about.summary)}",
            "License: see the files in the documentation directory",
            "BuildArch: noarch",
            "AutoReqProv: no",
            "%description",
            *map(quoted, about.text),
            "%install",
            'cp -a "$LOCALPUPPET_TREE/." "$RPM_BUILD_ROOT/"',
            "%files",
            "%defattr(-,root,root,-)",
            "%dir /usr/share/localpuppet",
            f"%dir /{PACKAGES}",
            f"/{about.directory}",
            f"/{about.documentation}",
        )
    )


# How rpmbuild is kept from adding a time, a host, a build id or its own idea of the files.
RPM_MACROS: Mapping[str, str] = {
    "use_source_date_epoch_as_buildtime": "1",
    "clamp_mtime_to_source_date_epoch": "1",
    "source_date_epoch_from_changelog": "0",
    "build_mtime_policy": "clamp_to_source_date_epoch",
    "_buildhost": "localhost",
    "_binary_payload": "w9.gzdio",
    "_build_id_links": "none",
    "debug_package": "%{nil}",
    "__os_install_post": "%{nil}",
    "__arch_install_post": "%{nil}",
    "_binaries_in_noarch_packages_terminate_build": "0",
    "_invalid_encoding_terminates_build": "0",
    "_unpackaged_files_terminate_build": "1",
    "packager": "%{nil}",
    "vendor": "%{nil}",
    "distribution": "%{nil}",
}


RECORD = "release.json"
SUMS = "SHA256SUMS"
_ID = re.compile(r"[0-9a-f]{64}\Z")
_SEALED = {0o444, 0o555}
# If the file system or the kernel's protection of links refuses a link, the bytes are copied.
_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS}


class Package(Value):
    """A package's directory, with the bytes of its `release.json`.

    Trees of a `temporary` copy can be moved. `where` is the directory or the pack, for messages.
    """

    directory: Path
    data: bytes
    release: object
    temporary: bool
    where: str

    @property
    def file(self) -> str:
        """The name of its record in messages."""
        return f"{self.where}{': ' if self.temporary else '/'}{RECORD}"

    def take(self, sha256: str, target: Path) -> None:
        """Make the tree `sha256` available as `target`, unverified.

        The tree is moved from a temporary copy, hard-linked if the file system allows it, and
        copied otherwise.
        """
        tree = self.directory / "objects" / sha256
        if tree.is_symlink() or not tree.is_dir():
            raise IntegrityError(f"does not hold the tree {sha256[:16]}…", where=self.where)
        with disk_errors(target):
            if self.temporary:
                tree.rename(target)
            else:
                copy_tree(tree, target, link=True)


def load(directory: Path, *, pack: Path | None = None) -> Package:
    """Return the package in a directory.

    Raises:
        IntegrityError: Its record is damaged, or does not match the directory's name.
    """
    file = directory / RECORD
    where = str(directory) if pack is None else str(pack)
    named = str(file) if pack is None else f"{pack}: {RECORD}"
    try:
        data = read_user_file(file)
    except InvalidInputError as error:
        raise InvalidInputError(error.what, where=named, hint=error.hint) from error
    if hashlib.sha256(data).hexdigest() != directory.name:
        raise IntegrityError(
            "was changed: its digest differs from its directory's name",
            where=named,
            hint="install the package again; find out who changed it",
        )
    try:
        record = loads(data)
    except ValueError as error:
        raise IntegrityError("is damaged: not JSON", where=named) from error
    if not isinstance(record, dict):
        raise IntegrityError("is damaged: not a mapping", where=named)
    return Package(
        directory=directory,
        data=data,
        release=record.get("release"),
        temporary=pack is not None,
        where=where,
    )


def find(directories: Sequence[Path], app: ReleasePath) -> Package | None:
    """Return the installed package of a release, or `None`.

    Raises:
        IntegrityError: The only package was changed, or one directory has two of it.
    """
    problem: LocalpuppetError | None = None
    for directory in directories:
        packages = []
        for path in sorted(directory.iterdir()) if directory.is_dir() else []:
            if not _ID.match(path.name):
                continue
            try:
                package = load(path)
            except LocalpuppetError as error:
                problem = problem or error
                continue
            if package.release == app:
                packages.append(package)
        if len(packages) > 1:
            raise IntegrityError(
                f"{packages[0].directory.name[:12]}… and {packages[1].directory.name[:12]}…"
                f" both claim to be {app}",
                where=str(directory),
                hint="remove the wrong package",
            )
        if packages:
            return packages[0]
    if problem is not None:
        raise problem
    return None


def find_pack(directories: Sequence[Path], app: ReleasePath) -> Path | None:
    """Return the file of a release pack, by its name, or `None`; a directory has one of it."""
    # A version has no `-`; a name that could be taken for a longer one ends in a digest.
    name = re.compile(rf"{re.escape(package_name(app))}-[^-]+\.tar(?:\.gz)?\Z")
    for directory in directories:
        files = sorted(directory.glob(f"{PREFIX}*.tar*")) if directory.is_dir() else []
        packs = [path for path in files if name.match(path.name)]
        if len(packs) > 1:
            raise IntegrityError(
                f"{packs[0].name} and {packs[1].name} are both packs of {app}",
                where=str(directory),
                hint="remove the wrong pack",
            )
        if packs:
            return packs[0]
    return None


def copy_tree(source: Path, target: Path, *, link: bool) -> None:
    """Copy a tree; files get the modes that they have in the store.

    With `link` it has hard links where they are allowed and the modes fit.
    """
    linking = link
    pending = [(str(source), str(target))]
    while pending:
        old, new = pending.pop()
        Path(new).mkdir()
        with os.scandir(old) as entries:
            for entry in entries:
                path = f"{new}/{entry.name}"
                status = entry.stat(follow_symlinks=False)
                mode = status.st_mode
                if stat.S_ISDIR(mode):
                    pending.append((entry.path, path))
                elif stat.S_ISLNK(mode):
                    # Not read through Path, that would tidy the target up.
                    Path(path).symlink_to(os.readlink(entry.path))  # noqa: PTH115
                elif stat.S_ISREG(mode):
                    # The store sets modes: it must neither fail on a linked file nor change it.
                    sealed = status.st_uid == os.geteuid() and stat.S_IMODE(mode) in _SEALED
                    linking = linking and (not sealed or _linked(entry.path, path))
                    if not (linking and sealed):
                        shutil.copyfile(entry.path, path, follow_symlinks=False)
                        Path(path).chmod(0o555 if mode & stat.S_IXUSR else 0o444)
                else:
                    raise IntegrityError(
                        "something that is not a file, link or directory", where=entry.path
                    )


def _linked(old: str, new: str) -> bool:
    try:
        os.link(old, new, follow_symlinks=False)
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    return True
