"""localpuppet as it is installed: a wheel, and a virtual environment with nothing but a wheel."""

import fcntl
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.rigs.node import REPOSITORY, Done, completed

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
# Seconds, on a busy machine: for pip, which may download some megabytes, and for all tests.
PATIENCE = 600.0
LONG = 7200.0


def share_wheel(shared: Path) -> Path:
    """Return the wheel of this clone; the first process of a session builds it there."""
    directory = shared / "wheel"
    with (shared / "wheel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(directory.glob("*.whl")):
            _build_wheel(directory)
    return next(directory.glob("*.whl"))


def _build_wheel(directory: Path) -> None:
    source = directory / "source"
    shutil.copytree(
        REPOSITORY,
        source,
        ignore=shutil.ignore_patterns(".git", ".venv", "var", "build", "*.egg-info", ".*cache"),
    )
    completed(*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", directory, source)
    shutil.rmtree(source)


@dataclass(frozen=True)
class Installation:
    """A virtual environment into which pip has installed a wheel, with no extra for users."""

    directory: Path

    @classmethod
    def make(cls, directory: Path, wheel: Path) -> "Installation":
        """Make it, with what tests of base and node need."""
        completed(Path(sys.executable).resolve(), "-m", "venv", "--without-pip", directory)
        # Of Debian, and beside the interpreter of tests: see `scripts/setup`.
        (directory / "cloud-init").symlink_to(Path(sys.prefix) / "cloud-init")
        made = cls(directory)
        install = ("--python", made.python, "install", f"{wheel}[test-node]")
        completed(*PIP, *install, timeout=PATIENCE)
        return made

    @property
    def python(self) -> Path:
        """Return its interpreter."""
        return self.directory / "bin" / "python"

    def run(self, *arguments: str, root: Path) -> Done:
        """Run `localpuppet` as it is installed there, with nothing of this clone's environment."""
        command = [str(self.directory / "bin" / "localpuppet"), "--root", str(root), *arguments]
        bare = ("env", "-i", "PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8")
        return completed(*bare, *command, check=False, timeout=PATIENCE)

    def test(self, *words: str) -> Done:
        """Run tests of base and node."""
        options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2"]
        command = [str(self.python), *options, *words]
        return completed(*command, check=False, cwd=REPOSITORY, timeout=LONG)
