"""What a run is told of the program that started it: a shell's words, wherever that lies."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_command_works_from_a_directory_with_a_space(tmp_path: Path) -> None:
    place = tmp_path / "our programs"
    place.mkdir()
    for name in ("localpuppet", "localpuppet.py"):
        (place / name).symlink_to(ROOT / name)
    code = "from localpuppet.wiring.puppet_environment import own_command; print(own_command())"
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=True
    ).stdout
    assert "our programs" in told
    done = subprocess.run(
        ["sh", "-c", f"{told.strip()} --version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
