"""The command of localpuppet in the environment of a run works in a shell, in any directory."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_command_works_from_a_directory_with_a_space(tmp_path: Path) -> None:
    place = tmp_path / "big programs"
    place.mkdir()
    for name in ("localpuppet", "localpuppet.py"):
        (place / name).symlink_to(ROOT / name)
    code = "from localpuppet.base.machine.own_program import own_command; print(own_command())"
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=True
    ).stdout
    assert "big programs" in told
    done = subprocess.run(
        ["sh", "-c", f"{told.strip()} --version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


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
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=foreign,
        env={"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("localpuppet, version")
