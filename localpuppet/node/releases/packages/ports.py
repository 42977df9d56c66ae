"""The port to the programs that build and install packages of releases."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class PackageTools(Protocol):
    """The programs that build and install packages."""

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
        ...

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
            StateError: rpmbuild is missing or failed.
        """
        ...

    def install(self, package: Path) -> None:
        """Install a package of a release on this machine; repeating it is harmless.

        Raises:
            InvalidInputError: The file is not regular, others could write it, or it is not a
                package of a release.
            StateError: dpkg or rpm is missing or failed.
        """
        ...
