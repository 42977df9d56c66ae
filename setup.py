"""Build the package; everything that is not a build step is in pyproject.toml."""

import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
# Files that have fixed places at the top of the repository, and that the package needs, too.
SHARED = ("enc/enc.sh", "manifests/default.pp")


class BuildPy(build_py):  # type: ignore[misc]  # setuptools is not typed
    """Copies files from the top of the repository into the package."""

    def run(self) -> None:
        """Build as usual after removing the previous build, then copy."""
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if self.editable_mode:
            return
        for name in SHARED:
            target = Path(self.build_lib) / "localpuppet" / "base" / "share" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(HERE / name, target)
        modules = (
            Path(self.build_lib) / "localpuppet" / "base" / "share" / "modules" / "localpuppet"
        )
        shutil.copytree(HERE / "modules" / "localpuppet", modules, dirs_exist_ok=True)


# Read, not imported: `import localpuppet` would find the node script localpuppet.py first.
INIT = (HERE / "localpuppet" / "__init__.py").read_text("utf-8")
VERSION = re.search(r'^__version__ = "(.+)"$', INIT, re.MULTILINE)
if VERSION is None:
    raise SystemExit("localpuppet/__init__.py has no __version__")

setup(version=VERSION.group(1), cmdclass={"build_py": BuildPy})
