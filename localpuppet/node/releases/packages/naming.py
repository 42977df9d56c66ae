"""Names and describes the package of a release: name, version, control file, spec.

- `web/tags/r1` becomes a name and a version that Debian and RPM accept.
- Two releases never share a name, so that they install side by side.
- Nothing depends on the machine or the time.
"""

import hashlib
import re
from collections.abc import Callable, Mapping

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.value import Value

PREFIX = "localpuppet-release-"
PACKAGES = "usr/share/localpuppet/packages"
DOCUMENTATION = "usr/share/doc"
MAX_NAME = 120

# What both take: Debian knows no '_', RPM no '-', and both sort '~' before everything.
_VERSION = re.compile(r"[0-9][A-Za-z0-9.+~]{0,59}\Z")
_NOT_IN_NAMES = re.compile(r"[^a-z0-9.+-]")
_LICENCE = re.compile(r"(?:un)?(?:licen[cs]e|copying|copyright|notice)s?(?:[._-].*)?\Z", re.I)


class PackageDescription(Value):
    """The description of a package.

    Attributes:
        release: The release.
        name: The package's name.
        version: Its version.
        id: The name of its directory: the SHA-256 of its `release.json`.
        url: The repository of the release.
        commit: Its commit there.
        trees: How many modules and collections it carries beside the release's own.
        size: Installed size in bytes.
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
        """A description in one line."""
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
    name = _NOT_IN_NAMES.sub("-", plain.lower())[:MAX_NAME]
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
    """Return a version that a user chose.

    Raises:
        InvalidInputError: Debian or RPM would reject it.
    """
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
