"""The command of localpuppet in the environment of a run works in a shell, in any directory."""

import shutil
import sys
from pathlib import Path

from tests.rigs.node import completed

ROOT = Path(__file__).parents[3]


def test_the_command_works_from_a_directory_with_a_space(tmp_path: Path) -> None:
    place = tmp_path / "big programs"
    place.mkdir()
    for name in ("localpuppet", "localpuppet.py"):
        (place / name).symlink_to(ROOT / name)
    code = "from localpuppet.base.machine.own_program import own_command; print(own_command())"
    told = completed(sys.executable, "-c", code, cwd=place).out
    assert "big programs" in told
    completed("sh", "-c", f"{told.strip()} --version", cwd=tmp_path)


def test_an_installed_program_imports_nothing_from_the_working_directory(tmp_path: Path) -> None:
    """Root calls it where others may write: in /tmp, in a home."""
    installed, foreign = tmp_path / "installed", tmp_path / "foreign"
    shutil.copytree(ROOT / "localpuppet", installed / "localpuppet")
    foreign.mkdir()
    for module in ("click", "json", "localpuppet"):
        (foreign / f"{module}.py").write_text("raise SystemExit('code of another user')\n")
    code = (
        "import subprocess, sys; from localpuppet.base.machine.own_program import own_words;"
        "sys.exit(subprocess.run([*own_words(), '--version']).returncode)"
    )
    env = {"PYTHONPATH": str(installed)}
    done = completed(sys.executable, "-P", "-c", code, cwd=foreign, env=env)
    assert done.err == ""
    assert done.out.startswith("localpuppet, version")
