"""A pytest session inside a test, to test what the project's own plugins do."""

import subprocess
import sys
from pathlib import Path

from tests.rigs.node import PATIENCE, REPOSITORY


def run_session(
    directory: Path, tests: str, *options: str, plugin: str, markers: tuple[str, ...]
) -> subprocess.CompletedProcess[str]:
    """Run a module of tests in its own process, with one plugin.

    Args:
        directory: An empty directory for the module.
        tests: The text of the module.
        options: Options of pytest.
        plugin: The plugin's module in `tests.rigs`.
        markers: The marks that the tests may have.
    """
    (directory / "test_it.py").write_text(tests)
    (directory / "pytest.ini").write_text("[pytest]\nmarkers = " + "\n  ".join(markers) + "\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", f"tests.rigs.{plugin}", *options, directory],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
