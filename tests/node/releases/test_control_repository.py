"""A control repository can be a release: environment.conf, site modules and site manifest."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.rigs.forge import Forge, klass, make, more_settings
from tests.rigs.module_forge import ModuleForge
from tests.rigs.node import Node
from tests.rigs.packages import Scratch, build

CONF = """\
# a typical file
modulepath = site-modules:modules:$basemodulepath
manifest = manifests/site.pp
environment_timeout = 0
config_version = 'scripts/config_version.sh $environmentpath $environment'
"""


@pytest.fixture
def control(node: Node, forge: Forge, tmp_path: Path) -> Path:
    """A control repository, and a node with it as source `control`."""
    modules = ModuleForge()
    needs = {"name": "puppetlabs/stdlib", "version_requirement": ">= 9.0.0"}
    openvox = [{"name": "openvox", "version_requirement": ">= 99.0.0 < 100.0.0"}]
    modules.publish("acme/ntp", "1.0.0", dependencies=[needs], requirements=openvox)
    repo = forge.repo("control")
    node.settings(
        allow_file_urls=True,
        sources={"control": {"git": repo.url}},
        forge={"url": modules.write(tmp_path / "archives")},
    )
    repo.commit(
        {
            "Puppetfile": "# time\nmod 'acme/ntp', '1.0.0'\n",
            "environment.conf": CONF,
            "site-modules/profile/manifests/init.pp": klass("profile", "from site-modules"),
            "manifests/site.pp": "notify { 'own site manifest': }\n",
            "data/common.yaml": "--- {}\n",
            "scripts/config_version.sh": "#!/bin/sh\n",
        }
    )
    return repo.path


def test_a_puppetfile_is_locked_and_applied(node: Node, forge: Forge, control: Path) -> None:
    make(node, "import", str(control / "Puppetfile"), "-o", str(control / "manifest.yaml"), code=0)
    text = (control / "manifest.yaml").read_text()
    assert text.startswith('moduledir: "modules"\nmodules:\n  # time\n  ntp:\n')
    make(node, "lock", str(control), code=0)
    checked = make(node, "check", str(control), "--json", code=0)
    *warnings, other = checked.json["warnings"]
    installed = rf"(OpenVox|Puppet) {re.escape(checked.json['puppet'])}"
    assert re.match(
        rf"ntp: .* openvox >= 99.0.0 < 100.0.0, and this machine has {installed}", other
    )
    assert warnings == [
        "environment.conf: environment_timeout is not needed: each run reads the release again",
        "environment.conf: config_version is not run: the release's name is the version",
        "environment.conf: $basemodulepath is not used: a release has all its modules"
        " (to add modules of the node, set 'basemodulepath:' in localpuppet.yaml)",
        "data: not used: there is no hiera.yaml beside it",
        "ntp: metadata.json requires puppetlabs/stdlib >= 9.0.0, which the release lacks"
        " (add it to 'modules:' in manifest.yaml, then run 'localpuppet release lock')",
    ]
    assert "unchanged since the lock was written" in make(node, "check", str(control)).out
    forge.repo("control").commit({}, "r1")
    node.write("input.yaml", "app: control/tags/r1\nclasses: [profile, ntp]\n")
    applied = node.run("apply", code=0)
    for message in ("from site-modules", "ntp 1.0.0", "own site manifest", "'/bin/echo control/ta"):
        assert message in applied.out
    (report,) = node.state.glob("runs/*/report.json")
    assert json.loads(report.read_text())["configuration_version"] == "control/tags/r1"
    assert "control/tags/r1/site-modules:" in node.run("check").out.replace(", ", ":")
    node.run("release", "verify", "--all", code=0)


def test_paths_outside_the_release_are_not_used(node: Node, forge: Forge, control: Path) -> None:
    conf = "modulepath = ../other:/etc/puppet/modules:site-modules:gone\nmanifest = /etc/site.pp\n"
    (control / "environment.conf").write_text(conf)
    (control / "manifest.yaml").write_text("moduledir: modules\n")
    make(node, "lock", str(control), code=0)
    warnings = make(node, "check", str(control), "--json").json["warnings"]
    assert warnings == [
        "environment.conf: modulepath: '../other' leaves the release",
        "environment.conf: modulepath: '/etc/puppet/modules' leaves the release",
        "environment.conf: manifest: '/etc/site.pp' leaves the release",
        "environment.conf: modulepath: there is no directory gone (remove it)",
        "environment.conf: modulepath: does not have moduledir, modules (add it)",
        "modulepath: there is no directory modules",
        "data: not used: there is no hiera.yaml beside it",
        "Puppetfile:2: ntp is not in the manifest (run 'localpuppet release import')",
    ]


def test_modules_of_a_basemodulepath_come_last(node: Node, forge: Forge, control: Path) -> None:
    more_settings(node, basemodulepath=["base"])
    node.write("base/vendored/manifests/init.pp", klass("vendored", "from the node"))
    node.write("base/profile/manifests/init.pp", klass("profile", "hidden"))
    (control / "manifest.yaml").write_text("moduledir: modules\n")
    make(node, "lock", str(control), code=0)
    warnings = make(node, "check", str(control), "--json").json["warnings"]
    assert not any("basemodulepath" in warning for warning in warnings)
    forge.repo("control").commit({}, "r1")
    node.write("input.yaml", "app: control/tags/r1\nclasses: [profile, vendored]\n")
    applied = node.run("apply", code=0)
    assert "from the node" in applied.out
    assert "from site-modules" in applied.out
    assert str(node.root / "base") in node.run("why", "--json").json["request"]["modulepath"]
    assert "basemodulepath" not in node.run("check").err
    forge.repo("control").commit({"environment.conf": "modulepath = modules\n"}, "r2")
    node.write("input.yaml", "app: control/tags/r2\n")
    node.run("stage", code=0)
    assert "basemodulepath: control/tags/r2 does not use it (remove" in node.run("check").err
    node.write("input.yaml", "app: control/tags/r1\nclasses: [vendor]\n")
    assert "the release has no class 'vendor'" in node.run("apply").err


def test_a_node_applies_a_control_repository_from_a_pack_or_a_package(
    node: Node, forge: Forge, control: Path, bare: Node, scratch: Scratch
) -> None:
    make(node, "import", str(control / "Puppetfile"), "-o", str(control / "manifest.yaml"))
    make(node, "lock", str(control), code=0)
    forge.repo("control").commit({"modules/own/manifests/init.pp": klass("own", "own one")}, "r1")
    node.write("input.yaml", "app: control/tags/r1\nclasses: [profile, ntp, own]\n")
    node.run("stage", code=0)
    pack = build(node, "tar", node.root / "out")
    scratch.install(build(node, "deb", node.root / "out"))
    shutil.rmtree(forge.path)
    bare.write("input.yaml", (node.root / "input.yaml").read_text())
    bare.run("stage", code=0)
    modulepath = bare.run("check", "--json").json["modulepath"]
    assert [Path(path).name for path in modulepath] == ["site-modules", "modules"]
    names = sorted(path.name for path in Path(modulepath[1]).iterdir())
    assert names == ["ntp", "own"]
    shutil.rmtree(bare.state)
    shutil.rmtree(bare.root / "modules/control")
    scratch.remove("localpuppet-release-control-r1", "deb")
    bare.run("stage", "--pack", str(pack), code=0)
    bare.run("release", "verify", "--all", code=0)
    assert sorted(path.name for path in Path(modulepath[1]).iterdir()) == names
