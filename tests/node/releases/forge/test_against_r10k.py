"""r10k and localpuppet install the same files from the test's server of the Forge's API."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from localpuppet.node.releases.store import digest, entries
from tests.rigs.forge import Forge, make
from tests.rigs.module_forge import ModuleForge, serve
from tests.rigs.node import Node
from tests.rigs.tls import Authority

PUPPETFILE = """\
mod 'puppetlabs/stdlib', '9.4.1'
mod 'acme-ntp', :latest
mod 'apt', :git => '{apt}', :branch => 'main'
"""


@pytest.mark.skipif(not shutil.which("r10k"), reason="this Debian does not have r10k")
def test_the_same_puppetfile_gives_the_same_bytes(node: Node, forge: Forge, tmp_path: Path) -> None:
    modules = ModuleForge()
    for slug, version in (
        ("puppetlabs/stdlib", "9.4.1"),
        ("puppetlabs/stdlib", "9.5.0"),
        ("acme/ntp", "1.0.0"),
        ("acme/ntp", "1.1.0"),
    ):
        modules.publish(slug, version)
    forge.repo("apt").commit({"manifests/init.pp": "class apt {}\n", "files/run": "#!/bin/sh\n"})
    url = forge.repo("apt").url
    text = PUPPETFILE.format(apt=url)
    with serve(modules, None) as plain:
        by_r10k = _r10k(tmp_path / "r10k", text, plain)
    with serve(modules, Authority(tmp_path)) as server:
        node.settings(
            allow_file_urls=True,
            sources={"web": {"git": forge.repo("web").url}},
            forge={"url": server, "ca": str(tmp_path / "ca.pem")},
        )
        manifest = (
            "modules:\n  stdlib: {forge: puppetlabs/stdlib, version: 9.4.1}\n"
            "  ntp: {forge: acme/ntp, version: latest}\n"
            f"  apt: {{git: '{url}', branch: main}}\n"
        )
        forge.repo("web").write({"manifest.yaml": manifest})
        make(node, "lock", str(forge.repo("web").path), code=0)
        forge.repo("web").commit({}, "r1")
        node.run("stage", "web/tags/r1", code=0)
    staged_modules = node.root / "modules/web/tags/r1"
    for name in ("stdlib", "ntp", "apt"):
        shutil.rmtree(by_r10k / name / ".git", ignore_errors=True)
        (by_r10k / name / ".r10k-HEAD").unlink(missing_ok=True)
        assert _digest(by_r10k / name) == _digest((staged_modules / name).resolve())


def _digest(tree: Path) -> str:
    return digest(entries(tree, where=tree.name))


def _r10k(directory: Path, text: str, url: str) -> Path:
    directory.mkdir()
    (directory / "Puppetfile").write_text(text)
    (directory / "r10k.yaml").write_text(f"cachedir: {directory}/cache\nforge:\n  baseurl: {url}\n")
    done = subprocess.run(
        ["r10k", "puppetfile", "install", "-v", "--config", str(directory / "r10k.yaml")],
        cwd=directory,
        env={**os.environ, "HOME": str(directory), "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return directory / "modules"
