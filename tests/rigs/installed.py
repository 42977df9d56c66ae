"""localpuppet as it is installed: a wheel, and a virtual environment with nothing but a wheel."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.rigs.node import REPOSITORY, Done

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
# Seconds, on a busy machine: for pip, which may download some megabytes, and for all tests.
PATIENCE = 600.0
LONG = 7200.0


def build_wheel(directory: Path) -> Path:
    """Build the wheel of this clone in a directory, and return it."""
    source = directory / "source"
    shutil.copytree(
        REPOSITORY,
        source,
        ignore=shutil.ignore_patterns(".git", ".venv", "var", "build", "*.egg-info", ".*cache"),
    )
    _run([*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", str(directory), str(source)])
    return next(directory.glob("localpuppet-*.whl"))


@dataclass(frozen=True)
class Installation:
    """A virtual environment into which pip has installed a wheel, with no extra for users."""

    directory: Path

    @classmethod
    def make(cls, directory: Path, wheel: Path) -> "Installation":
        """Make it, with what tests of base and node need."""
        _run([str(Path(sys.executable).resolve()), "-m", "venv", "--without-pip", str(directory)])
        # Of Debian, and beside the interpreter of tests: see `scripts/setup`.
        (directory / "cloud-init").symlink_to(Path(sys.prefix) / "cloud-init")
        made = cls(directory)
        _run([*PIP, "--python", str(made.python), "install", f"{wheel}[test-node]"])
        return made

    @property
    def python(self) -> Path:
        """Return its interpreter."""
        return self.directory / "bin" / "python"

    def run(self, *arguments: str, root: Path) -> Done:
        """Run `localpuppet` as it is installed there, with nothing of this clone's environment."""
        command = [str(self.directory / "bin" / "localpuppet"), "--root", str(root), *arguments]
        return _run(["env", "-i", "PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", *command], check=False)

    def test(self, *words: str) -> Done:
        """Run tests of base and node."""
        options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2"]
        command = [str(self.python), *options, *words]
        return _run(command, check=False, directory=REPOSITORY, timeout=LONG)


def _run(
    command: Sequence[str],
    *,
    check: bool = True,
    directory: Path = Path("/"),
    timeout: float = PATIENCE,
) -> Done:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
        timeout=timeout,
    )
    assert not check or done.returncode == 0, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)
