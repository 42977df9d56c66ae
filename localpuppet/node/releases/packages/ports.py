"""The port to the programs that build and install packages of releases."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol


class PackageTools(Protocol):
    """The programs that build and install packages."""

    def build_deb(self, tree: Path, control: str, target: Path, *, time: int) -> None:
        """Build a Debian package of the files below `tree`.

        Args:
            tree: What is installed at `/`; modes and times as they are to be.
            control: The control file.
            target: The file to make.
            time: Seconds since 1970 that stand for "now".

        Raises:
            StateError: dpkg-deb is not there, or failed.
        """
        ...

    def build_rpm(
        self, tree: Path, spec: str, macros: Mapping[str, str], target: Path, *, time: int
    ) -> None:
        """Build an RPM package of the files below `tree`; see `build_deb`.

        Args:
            tree: What is installed at `/`; the spec finds it in `LOCALPUPPET_TREE`.
            spec: The spec.
            macros: Macros that are defined for it.
            target: The file to make.
            time: Seconds since 1970 that stand for "now".

        Raises:
            StateError: rpmbuild is not there, or failed.
        """
        ...

    def install(self, package: Path) -> None:
        """Install a package of a release on this machine; again is fine.

        Raises:
            InvalidInputError: The file is not a regular one, others could write it, or it is not a
                package of a release.
            StateError: dpkg or rpm is not there, or failed.
        """
        ...

    def install_by_name(self, name: str, manager: str | Sequence[str]) -> None:
        """Have the machine's package manager install a package from its repositories.

        Args:
            name: The package's name.
            manager: `apt`, or the words of a command to which the name is added.

        Raises:
            StateError: The package manager is not there, or failed.
        """
        ...
