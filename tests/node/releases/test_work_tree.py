"""`localpuppet try`: applies an unreleased work tree with the modules of its lock."""

import json
import os
from pathlib import Path

import pytest

from tests.rigs.forge import Forge, klass, make, more_settings
from tests.rigs.module_forge import ModuleForge
from tests.rigs.node import Node

HIERA = "version: 5\ndefaults: {datadir: modules/hieradata/data, data_hash: yaml_data}\n"
NODE_INPUT = "app: foo/trunk\nclasses: [profile, ntp]\n"


@pytest.fixture
def tree(node: Node, forge: Forge, tmp_path: Path) -> Path:
    """A locked control repository with uncommitted changes."""
    modules = ModuleForge()
    modules.publish("acme/ntp", "1.0.0")
    node.settings(allow_file_urls=True, forge={"url": modules.write(tmp_path / "archives")})
    repo = forge.repo("control")
    repo.commit(
        {
            "manifest.yaml": "moduledir: modules\n"
            "modules:\n  ntp:\n    forge: acme/ntp\n    version: 1.0.0\n",
            "environment.conf": "modulepath = site-modules:modules\n",
            "site-modules/profile/manifests/init.pp": klass("profile", "committed"),
            "manifests/site.pp": "notify { 'own site manifest': }\n",
        }
    )
    make(node, "lock", str(repo.path), code=0)
    repo.write({"site-modules/profile/manifests/init.pp": klass("profile", "not committed")})
    node.write("input.yaml", NODE_INPUT)
    return repo.path


def test_uncommitted_code_is_applied_and_not_recorded_as_a_release(node: Node, tree: Path) -> None:
    before = sorted(path for path in tree.rglob("*") if ".git" not in path.parts)
    done = node.run("try", str(tree), code=0)
    for text in ("not committed", "ntp 1.0.0", "own site manifest"):
        assert text in done.out
    assert sorted(path for path in tree.rglob("*") if ".git" not in path.parts) == before
    status = node.status()
    assert status["work_tree"] == str(tree)
    assert status["release"] == "control (work tree)"
    assert f"{tree}, not a release" in node.run("status").out
    assert "control (work tree)" in node.run("history").out
    assert f"{tree}, not a release" in node.run("why").out
    assert f"{tree}, not a release" in node.run("report").out
    assert not (node.state / "applied.json").exists()
    metrics = (node.state / "metrics.prom").read_text()
    assert "localpuppet_last_run_work_tree 1" in metrics
    assert "localpuppet_last_success_timestamp_seconds" not in metrics
    (report,) = node.state.glob("runs/*/report.json")
    assert json.loads(report.read_text())["configuration_version"] == "work-tree"


def test_no_work_tree_takes_part_in_a_rollback(node: Node, forge: Forge, tree: Path) -> None:
    repo = forge.repo("shop")
    for tag in ("r1", "r2"):
        repo.commit({"manifest.yaml": "", "shop/manifests/init.pp": klass("shop", tag)}, tag)
    more_settings(node, sources={"shop": {"git": repo.url}})
    for tag in ("r1", "r2"):
        node.write("input.yaml", f"app: shop/tags/{tag}\nclasses: [shop]\n")
        node.run("apply", code=0)
    node.write("other.yaml", NODE_INPUT)
    node.run("try", str(tree), "--input", str(node.root / "other.yaml"), code=0)
    assert "rolled back from shop/tags/r2 to shop/tags/r1" in node.run("rollback").out
    rollback = (node.state / "rollback.json").read_text()
    node.run("try", str(tree), "--input", str(node.root / "other.yaml"), code=0)
    assert (node.state / "rollback.json").read_text() == rollback


def test_immutable_only_applies_a_work_tree_only_in_noop_mode(node: Node, tree: Path) -> None:
    more_settings(node, immutable_only=True)
    refused = node.run("try", str(tree), code=2)
    assert "a work tree can change, and 'immutable_only' is set" in refused.err
    shown = node.run("try", str(tree), "--noop", code=0)
    assert "compiling runs functions and facts of this work tree" in shown.err
    assert node.status()["noop"] is True
    assert "refused" in node.run("history").out


def test_without_an_input_the_site_manifest_is_applied(node: Node, tree: Path) -> None:
    (node.root / "input.yaml").unlink()
    done = node.run("try", str(tree), "--noop", code=0)
    assert "no class and no parameter is given" in done.err
    assert "own site manifest" in done.out


def test_a_module_of_another_work_tree_is_applied(node: Node, forge: Forge, tree: Path) -> None:
    door = forge.repo("ntp")
    door.write({"manifests/init.pp": klass("ntp", "from next door")})
    make(node, "lock", str(tree), "--path", f"ntp={door.path}", code=0)
    done = node.run("try", str(tree), "--noop", code=0)
    assert "from next door" in done.out
    checked = make(node, "check", str(tree), code=2)
    assert "paths.ntp: is a work tree of the machine that locked it" in checked.err
    make(node, "lock", str(tree), code=0)
    assert "paths" not in (tree / "manifest.lock").read_text()


def test_an_error_names_why_a_work_tree_cannot_be_applied(node: Node, tree: Path) -> None:
    (tree / "manifest.lock").unlink()
    assert "there is no manifest.lock" in node.run("try", str(tree)).err
    (tree / "manifest.yaml").unlink()
    assert "create it with the line 'moduledir: modules'" in node.run("try", str(tree)).err
    (tree / "Puppetfile").write_text("mod 'acme/ntp', '1.0.0'\n")
    assert (
        "make it from the Puppetfile: 'localpuppet release import'"
        in node.run("try", str(tree)).err
    )
    locking = node.run("release", "lock", str(tree)).err
    assert f"{tree}: there is no manifest.yaml (make it from the Puppetfile: 'localp" in locking
    tree.chmod(0o1777)
    shared = node.run("try", str(tree)).err
    assert "chmod" not in shared
    assert "(others share this directory: use one that only root can write, such as" in shared
    tree.chmod(0o755)
    odd = tree.rename(tree.parent / "a:b")
    assert "Puppet cannot use this path" in node.run("try", str(odd)).err


def test_trunk_is_applied_with_the_modules_of_its_lock(node: Node, tree: Path) -> None:
    (node.root / "modules" / "control").mkdir()
    tree.rename(node.root / "modules" / "control" / "trunk")
    node.write("input.yaml", NODE_INPUT.replace("foo/trunk", "control/trunk"))
    refused = node.run("check", code=2)
    assert "modules.ntp: is not on this node ('localpuppet stage' fetches it)" in refused.err
    staged = node.run("stage")
    assert staged.out == "staged 1 module of the lock of control/trunk, which is used as it is\n"
    done = node.run("apply", code=0)
    assert "ntp 1.0.0" in done.out
    assert "not committed" in done.out


def test_gc_keeps_the_modules_of_a_recently_applied_work_tree(node: Node, tree: Path) -> None:
    node.run("try", str(tree), "--noop", code=0)
    (links,) = (node.state / "links").iterdir()
    assert len(links.name) == 16, "the path is in messages of Puppet"
    assert node.run("release", "gc", "--json").json["trees"] == []
    os.utime(links, (0, 0))
    assert len(node.run("release", "gc", "--json").json["trees"]) == 1
    assert not links.exists()
    assert node.run("try", str(tree), "--noop").code == 0, "the modules are fetched again"


def test_hiera_reads_data_of_a_locked_module_everywhere(
    node: Node, forge: Forge, tree: Path
) -> None:
    """r10k users keep their data in a repository that the Puppetfile names."""
    repo, data = forge.repo("control"), forge.repo("hieradata")
    data.commit({"data/common.yaml": "message: from a module\n"}, "d1")
    locked = f"  hieradata: {{git: '{data.url}', tag: d1}}\n"
    repo.write(
        {
            "manifest.yaml": (tree / "manifest.yaml").read_text() + locked,
            "hiera.yaml": HIERA,
            "modules/own/manifests/init.pp": klass("own", "own"),
            "manifests/site.pp": "notify { lookup('message', default_value => 'no data'): }\n",
        }
    )
    make(node, "lock", str(tree), code=0)
    checked = make(node, "check", str(tree), code=0)
    assert "hiera.yaml" not in checked.err
    repo.commit({}, "r1")
    more_settings(node, sources={"control": {"git": repo.url}})
    trunk = node.root / "modules" / "control" / "trunk"
    trunk.parent.mkdir(exist_ok=True)
    repo.git("worktree", "add", "-q", "--detach", str(trunk))
    assert node.run("try", str(tree)).out.count("Notice: from a module") == 1
    for app in ("tags/r1", "branches/main", "trunk"):
        node.write("input.yaml", f"app: control/{app}\nclasses: [profile, ntp, own]\n")
        done = node.run("apply")
        assert done.out.count("Notice: from a module") == 1, f"{app}: {done.err}"
    (trunk / "added").touch()
    assert "Notice: from a module" in node.run("apply").out, "trunk is used as it is"
