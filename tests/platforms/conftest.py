"""A machine with a real systemd for each test, and packages of this clone."""

import fcntl
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.node import REPOSITORY, completed
from tests.rigs.systemd import Machine, acquaint

DEBIANS = {"debian12": "deb12", "debian13": "deb13", "debian14": "deb14"}
SYSTEM = os.environ.get("LOCALPUPPET_DEBIAN", "debian12")
# A session on another Debian runs only the tests of that Debian.
collect_ignore = ["test_other_debians.py"] if "LOCALPUPPET_DEBIAN" in os.environ else []


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The answers of Puppet to the first machine, for the machines after it."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def machine(kept: Path) -> Iterator[Machine]:
    """A booted machine with two nodes that trust each other and no agent."""
    made = Machine()
    try:
        made.boot()
        acquaint(made)
        made.restore_cache(kept)
        yield made
        made.keep_cache(kept)
    finally:
        made.close()


def build(directory: Path, *targets: str) -> None:
    """Build packages that cost little to pack and to install; what is in them is the same."""
    words = [word for name in targets for word in ("--target", name)]
    words += ["--arch", platform.machine()]
    cheap = {**os.environ, "DPKG_DEB_COMPRESSOR_TYPE": "none"}
    script = REPOSITORY / "scripts/build"
    completed(script, "packages", *words, str(directory), env=cheap, timeout=1800)


@pytest.fixture(scope="session")
def made(request: pytest.FixtureRequest, shared_directory: Path) -> Path:
    """Packages for the systems of the tests: one process of a session builds them for all."""
    if system := os.environ.get("LOCALPUPPET_DEBIAN"):
        targets = [system]
    else:
        targets = [*DEBIANS, "sles15"] if request.config.getoption("--long") else ["debian12"]
    packages, unfinished = shared_directory / "packages", shared_directory / "unfinished"
    with (shared_directory / "packages.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not packages.exists():
            build(unfinished, *targets)
            unfinished.rename(packages)
    return packages
