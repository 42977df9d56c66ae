"""The systems that packages are built for, and what those need: targets.toml.

As a program: refuse options that name none, before anything is downloaded.
"""

import argparse
import os
import platform
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
# By the name that Linux gives an architecture, what Debian calls it.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# The oldest glibc that the wheels are for: EL 8 has it.
WHEELS_FOR = "manylinux_2_28"


class BuildError(Exception):
    """A package or an option is wrong: the message says what."""


@dataclass(frozen=True, slots=True)
class Payload:
    """The Python files of one package or several."""

    python: str
    architecture: str
    own_sqlite: bool

    @property
    def name(self) -> str:
        """What a directory is called that has this payload."""
        sqlite = "-sqlite" if self.own_sqlite else ""
        return f"python{self.python}-{self.architecture}{sqlite}"


@dataclass(frozen=True, slots=True)
class Target:
    """A system in one architecture."""

    name: str
    title: str
    format: str
    release: str
    needs: tuple[str, ...]
    glibc: tuple[int, ...]
    payload: Payload


def run(*command: str | Path, more: Mapping[str, str]) -> None:
    """Run a program, with more variables.

    Raises:
      BuildError: it failed, with its words
    """
    done = subprocess.run(
        command,
        env={**os.environ, **more},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BuildError(f"{Path(command[0]).name}: {done.stderr.strip()}")


def numbers(version: str) -> tuple[int, ...]:
    """Return a version as numbers, which compare."""
    return tuple(int(part) for part in version.split("."))


def oldest_sqlite() -> tuple[int, ...]:
    """Return the oldest version of SQLite that localpuppet works with."""
    from localpuppet.base.machine.sqlite import OLDEST

    return OLDEST


def here() -> str:
    """Return the name of this system's target."""
    system = platform.freedesktop_os_release()
    # A Debian that is no release yet has no number.
    version = system.get("VERSION_ID") or {"forky": "14"}.get(
        system.get("VERSION_CODENAME", ""), ""
    )
    return f"{system['ID']}{version}"


def read(names: Sequence[str], architectures: Sequence[str]) -> list[Target]:
    """Return the named targets, or all, in the named architectures, or all.

    Raises:
      BuildError: targets.toml has no such name, or not in these architectures
    """
    table = tomllib.loads((HERE / "targets.toml").read_text())
    for name in set(names) - table.keys():
        raise BuildError(f"{name} is no target (these are: {', '.join(table)})")
    for architecture in set(architectures) - ARCHITECTURES.keys():
        raise BuildError(
            f"{architecture} is no architecture of packages (use {' or '.join(ARCHITECTURES)})"
        )
    targets = [
        Target(
            name=name,
            title=entry["title"],
            format=entry["format"],
            release=entry["release"],
            needs=tuple(entry["needs"]),
            glibc=numbers(entry["glibc"]),
            payload=Payload(
                entry["python"], architecture, numbers(entry["sqlite"]) < oldest_sqlite()
            ),
        )
        for name, entry in table.items()
        if not names or name in names
        for architecture in entry.get("architectures", ARCHITECTURES)
        if not architectures or architecture in architectures
    ]
    if not targets:
        raise BuildError(f"{', '.join(names)} is not built for {', '.join(architectures)}")
    return targets


def chooser() -> argparse.ArgumentParser:
    """Return a parser of the options that choose targets."""
    parser = argparse.ArgumentParser(prog="scripts/build packages")
    parser.add_argument("--here", action="store_true")
    parser.add_argument("--target", action="append", default=[], metavar="NAME")
    parser.add_argument("--arch", action="append", default=[], metavar="x86_64|aarch64")
    return parser


def chosen(options: argparse.Namespace) -> list[Target]:
    """Return the targets that the options name.

    Raises:
      BuildError: there are none
    """
    if options.here:
        return read([here()], [platform.machine()])
    return read(options.target, options.arch)


if __name__ == "__main__":
    try:
        chosen(chooser().parse_args())
    except BuildError as error:
        sys.exit(f"scripts/build: error: {error}")
