"""What OpenVox 9 removed, and json 3, with which its first candidate reads no metadata."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.rigs.node import Node, completed

METADATA = """\
{"name": "acme-foo", "version": "1.0.0", "author": "acme", "license": "Apache-2.0",
 "summary": "-", "source": "-",
 "dependencies": [{"name": "openvox", "version_requirement": ">= 8"}]}
"""


@pytest.fixture(autouse=True)
def openvox9(puppet_probe: str) -> None:
    """Leave these tests out where Puppet is another one."""
    if not completed("puppet", "--version").out.startswith("9."):
        pytest.skip("this Debian has no OpenVox 9")


@pytest.fixture
def json3(tmp_path: Path) -> Path:
    """A directory of gems with Debian's json 3, unpacked and not installed."""
    subprocess.run(
        ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", "ruby-json"],
        cwd=tmp_path,
        check=True,
    )
    (package,) = tmp_path.glob("ruby-json_3*.deb")
    subprocess.run(["dpkg-deb", "--extract", package, tmp_path / "json"], check=True)
    (gems,) = tmp_path.glob("json/usr/lib/*/rubygems-integration/*")
    return gems


def test_a_run_needs_no_setting_that_was_removed(node: Node) -> None:
    removed = "[main]\npluginsync = true\ndata_binding_terminus = hiera\n"
    node.write("puppet/conf/puppet.conf", removed)
    node.settings(puppet={"reports": ["store"]})
    node.app("notify { 'hello': }")
    assert "Notice: hello" in node.run("apply").out
    assert node.status()["outcome"] == "changed"
    assert list((node.root / "puppet/var").rglob("reports/*/*.yaml"))


def test_check_names_json_3_and_the_cure(node: Node, json3: Path) -> None:
    node.app("notify { 'hello': }")
    node.write("modules/app/trunk/app/metadata.json", METADATA)
    gems = completed("ruby", "-e", "print Gem.path.join(':')").out
    warned = node.run("check", GEM_PATH=f"{json3}:{gems}").err
    assert re.search(r"metadata\.json of modules with Ruby's json-3.*\(install a newer", warned)
