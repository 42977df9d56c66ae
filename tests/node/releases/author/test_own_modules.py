"""Files that git ignores in a control repository, such as r10k's modules, are in no release."""

from pathlib import Path

import pytest

from localpuppet.node.releases.author.tagging import own_modules
from localpuppet.node.releases.git.work_tree import Ignored
from tests.rigs.forge import Forge, Repo, klass, make
from tests.rigs.module_forge import ModuleForge
from tests.rigs.node import Node

BROKEN = "class {"


@pytest.fixture
def control(node: Node, forge: Forge, tmp_path: Path) -> Repo:
    """A control repository with modules of `r10k puppetfile install`."""
    modules = ModuleForge()
    modules.publish("acme/ntp", "1.0.0")
    node.settings(allow_file_urls=True, forge={"url": modules.write(tmp_path / "archives")})
    repo = forge.repo("control")
    repo.write(
        {
            "manifest.yaml": "moduledir: modules\n"
            "modules:\n  ntp:\n    forge: acme/ntp\n    version: 1.0.0\n",
            "environment.conf": "modulepath = site-modules:modules\n",
            "site-modules/profile/manifests/init.pp": klass("profile", "committed"),
            "modules/own/manifests/init.pp": klass("own", "committed"),
            ".gitignore": "/modules/*\n!/modules/own\n/.r10k\n*.local\n",
        }
    )
    make(node, "lock", str(repo.path), code=0)
    repo.commit({})
    repo.git("config", "user.name", "Release")
    repo.git("config", "user.email", "release@example.net")
    repo.write(
        {
            "modules/ntp/manifests/init.pp": BROKEN,
            "modules/left/manifests/init.pp": BROKEN,
            "modules/left/hiera.yaml": "version: 5\n",
            "modules/left/data/common.yaml": "a: [\n",
        }
    )
    return repo


def test_modules_of_r10k_are_left_out_with_a_warning(node: Node, control: Repo) -> None:
    checked = make(node, "check", str(control.path), "--json", code=0)
    assert checked.json["classes"] == ["ntp", "own", "profile"]
    warning = "modules/left, modules/ntp: left out, as git ignores it: no node has it"
    assert warning in checked.json["warnings"]
    make(node, "tag", str(control.path), "r1", "--no-push", code=0)
    control.write({".gitignore": "/modules/left\n"})
    refused = make(node, "check", str(control.path), code=2)
    assert "the release has a directory 'modules/ntp', and its manifest a module" in refused.err
    assert "let git ignore what r10k installs" in refused.err


def test_an_ignored_file_that_puppet_would_read_prevents_a_tag(node: Node, control: Repo) -> None:
    control.write({"site-modules/profile/lib/facter/seen.local": ""})
    checked = make(node, "check", str(control.path), code=0)
    warning = "site-modules/profile/lib/facter/seen.local: git ignores it: Puppet reads it here"
    assert warning in checked.err
    refused = make(node, "tag", str(control.path), "r1", "--no-push", code=2)
    assert "git ignores site-modules/profile/lib/facter/seen.local, which Puppet" in refused.err


def test_try_warns_about_modules_that_no_release_has(node: Node, control: Repo) -> None:
    control.write({"modules/left/manifests/init.pp": klass("left", "in this clone only")})
    node.write("input.yaml", "app: foo/trunk\nclasses: [left, ntp]\n")
    tried = node.run("try", str(control.path), "--noop", code=0)
    assert "in this clone only" in tried.out
    assert "ntp 1.0.0" in tried.out
    (warning,) = [line for line in tried.err.splitlines() if "in no release" in line]
    assert warning.startswith(
        "# warning: modules/left counts here and in no release: git ignores it"
    )


def test_backup_files_of_editors_are_not_reported(tmp_path: Path) -> None:
    (tmp_path / "site/web").mkdir(parents=True)
    files = ("lib/a.rb", "lib/.a.rb.swp", "lib/a.rb~", "spec/fixtures", "files/key")
    ignored = Ignored(paths=frozenset(f"site/web/{file}" for file in files))
    found = own_modules(tmp_path, ["site"], ignored)
    assert found.modules == [tmp_path / "site/web"]
    assert found.unseen == ("site/web/files/key", "site/web/lib/a.rb")
    many = Ignored(paths=frozenset({"site"}))
    assert own_modules(tmp_path, ["site"], many).left_out == ("site",)
