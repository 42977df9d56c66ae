"""Debian's cloud-init with its source NoCloud, in the directories of a test.

scripts/setup unpacks the package and does not install it, so no service starts with the machine.
`boot` calls the same functions as cloud-init's stage `init`, until the user data is on disk.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.rigs.node import PATIENCE

PACKAGE = Path(sys.prefix, "cloud-init/usr/lib/python3/dist-packages")
_STAGE = """
from cloudinit import sources, stages
init = stages.Init(ds_deps=[sources.DEP_FILESYSTEM])
init.read_cfg()
init.initialize()
init.fetch(existing="check")
init.instancify()
init.update()
"""


@dataclass
class CloudInit:
    """The cloud-init of a machine.

    Attributes:
        root: The directory with all files of cloud-init.
    """

    root: Path

    @property
    def places(self) -> dict[str, str]:
        return {"run_dir": str(self.root / "run"), "cloud_dir": str(self.root / "lib")}

    def boot(self, user_data: bytes, *, instance_id: str = "i-0a1b2c3d") -> None:
        assert PACKAGE.is_dir(), f"{PACKAGE} is missing: scripts/setup test"
        seed = self.root / "lib/seed/nocloud"
        seed.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.root / "run", ignore_errors=True)  # a tmpfs on a real machine
        (self.root / "run").mkdir()
        (seed / "meta-data").write_text(f"instance-id: {instance_id}\n")
        (seed / "user-data").write_bytes(user_data)
        configuration = self.root / "cloud.cfg"
        configuration.write_text(
            f"""
datasource_list: [NoCloud]
datasource: {{NoCloud: {{fs_label: null}}}}
def_log_file: {self.root}/log
system_info:
  distro: debian
  paths: {{cloud_dir: {self.root}/lib, run_dir: {self.root}/run, templates_dir: {self.root}}}
"""
        )
        done = subprocess.run(
            [sys.executable, "-c", _STAGE],
            env={**os.environ, "CLOUD_CFG": str(configuration), "PYTHONPATH": str(PACKAGE)},
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
