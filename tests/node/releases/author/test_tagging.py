"""release tag: checks, makes, signs and pushes a tag, or leaves no tag."""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.rigs.forge import IDENTITY, Forge, Repo, more_settings
from tests.rigs.node import Done, Node

# The identity comes from the user's own configuration file.
USER = {"GIT_CONFIG_NOSYSTEM": "1"}


@dataclass
class Maker:
    """A person who makes releases of `web`, with a clone, a home, and a bare repository."""

    site: Node
    web: Repo
    origin: Repo
    home: Path

    def tag(self, *arguments: str, of: Path | None = None, code: int | None = None) -> Done:
        words = ("release", "tag", str(of or self.web.path), *arguments)
        return self.site.run(*words, code=code, HOME=str(self.home), **USER)

    def stages(self, **web: object) -> None:
        """Let the site get `web` from origin."""
        dist = {"git": f"file://{self.web.path.with_name('dist')}"}
        more_settings(self.site, sources={"web": {"git": self.origin.url, **web}, "dist": dist})


@pytest.fixture
def maker(site: Node, forge: Forge, tmp_path: Path) -> Maker:
    web, bare, home = forge.repo("web"), forge.path / "origin.git", tmp_path / "home"
    web.git("clone", "-q", "--bare", str(web.path), str(bare))
    web.git("remote", "add", "origin", f"file://{bare}")
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\nname = Maker\nemail = maker@example.net\n")
    return Maker(site, web, Repo(bare), home)


def test_a_release_is_tagged_pushed_and_can_be_staged(maker: Maker) -> None:
    value = maker.tag("r2", "--json", code=0).json
    assert (value["tag"], value["signed"], value["pushed"]) == ("r2", False, True)
    body = maker.origin.git("cat-file", "tag", "refs/tags/r2")
    assert f"object {value['commit']}" in body
    assert "tagger Maker <maker@example.net>" in body
    assert body.endswith("\n\nrelease r2")
    maker.stages()
    maker.site.run("stage", "web/tags/r2", code=0)
    assert "the tag r2 exists already" in maker.tag("r2", code=2).err
    maker.web.git("tag", "-d", "r2")
    assert "origin has the tag r2 already" in maker.tag("r2", code=2).err


def test_without_push_origin_gets_no_tag(maker: Maker) -> None:
    done = maker.tag("r2", "--no-push", "-m", "for the fair", code=0)
    assert "tagged r2 at " in done.out
    assert "annotated, not pushed" in done.out
    assert "for the fair" in maker.web.git("cat-file", "tag", "r2")
    assert maker.origin.git("tag") == "r1"


def test_a_node_that_requires_signatures_stages_a_signed_tag(maker: Maker) -> None:
    key, config = maker.home / "key", maker.home / ".gitconfig"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "maker", "-f", key], check=True
    )
    unnamed = maker.tag("r2", "--sign", code=2)
    assert "no source has the URL of origin (--source NAME)" in unnamed.err
    unready = maker.tag("r2", "--sign", "--source", "web", code=2)
    assert "cannot make the tag r2" in unready.err
    assert "user.signingkey" in unready.err
    before = config.read_text()
    config.write_text(f"{before}signingkey = {maker.home}/lost\n[gpg]\nformat = ssh\n")
    keyless = maker.tag("r2", "--sign", "--source", "web", code=2)
    # git 2.39 prints nothing, exits with 0 and makes an unsigned tag; 2.47 prints an error.
    assert re.search("git made no signature|Couldn't load public key", keyless.err)
    assert maker.web.git("tag") == "r1"
    config.write_text(f"{before}signingkey = {key}\n[gpg]\nformat = ssh\n")
    done = maker.tag("r2", "--sign", "--source", "web", "--json", code=0)
    body = maker.origin.git("cat-file", "tag", "r2")
    assert "\n\nrelease r2\n\nLocalpuppet-Source: web\n-----BEGIN SSH" in body
    assert done.json["signed"] is True
    signers = maker.site.write("signers", f"maker {key.with_suffix('.pub').read_text()}")
    maker.stages(require_signed=True, signers=str(signers))
    maker.site.run("stage", "web/tags/r2", code=0)
    maker.site.run("stage", "web/tags/r1", code=3)


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        ("echo >> web/manifests/init.pp", "the work tree is not clean: web/manifests/init.pp (com"),
        ("touch new other", "the work tree is not clean: new and 1 more"),
        ("git rm -q --cached manifest.lock; git commit -qm x", "manifest.lock is not committed"),
        (
            "git rm -q --cached manifest.lock; echo '*.lock' > .gitignore; git add .gitignore;"
            " git commit -qm x",
            "git ignores manifest.lock, which the release needs (git add -f manifest.lock",
        ),
        (
            "echo '*.pp' > .gitignore; git add .gitignore; git commit -qm x;"
            " echo 'class web::x { }' > web/manifests/x.pp",
            "git ignores web/manifests/x.pp",
        ),
        (
            "echo 'class web {' > web/manifests/init.pp; git commit -qam x",
            "web/manifests/init.pp: Puppet cannot parse it",
        ),
        ("git rm -q manifest.*; git commit -qm x", "there is no manifest.yaml (create it with"),
        (
            "git rm -q manifest.*; touch Puppetfile; git add .; git commit -qm x",
            "there is no manifest.yaml (make it from the Puppetfile: 'localpuppet release import')",
        ),
        (
            "git config tag.gpgSign true; git config gpg.format ssh",
            "tag.gpgSign makes git sign: set user.signingkey",
        ),
        ("git remote remove origin", "there is no remote 'origin' to push to"),
    ],
)
def test_a_work_tree_that_is_not_ready_is_not_tagged(
    maker: Maker, spoil: str, problem: str
) -> None:
    env = {**os.environ, **IDENTITY}
    subprocess.run(["/bin/sh", "-ec", spoil], cwd=maker.web.path, env=env, check=True)
    refused = maker.tag("r2", code=2)
    assert problem in refused.err
    assert len(refused.err.splitlines()) == 1
    assert maker.web.git("tag") == maker.origin.git("tag") == "r1"


@pytest.mark.parametrize("name", ["-r2", "a..b", "a/b", "v 1", "0" * 40, "r2.lock"])
def test_an_invalid_release_name_is_refused(maker: Maker, name: str) -> None:
    maker.tag("--", name, code=2)
    assert maker.web.git("tag") == "r1"


def test_a_failed_push_leaves_no_tag(maker: Maker) -> None:
    hook = maker.origin.path / "hooks" / "update"
    hook.write_text("#!/bin/sh\necho 'no tags on Fridays' >&2\nexit 1\n")
    hook.chmod(0o755)
    failed = maker.tag("r2", code=69)
    assert "cannot push the tag r2 to origin" in failed.err
    assert "no tags on Fridays" in failed.err
    assert maker.web.git("tag") == "r1"
    hook.unlink()
    maker.tag("r2", code=0)


def test_an_unreachable_origin_is_reported(maker: Maker) -> None:
    maker.origin.path.rename(maker.origin.path.with_name("away.git"))
    assert "cannot ask origin" in maker.tag("r2", code=69).err
    assert maker.web.git("tag") == "r1"


def test_the_error_shows_why_git_does_not_read_a_work_tree_of_another_user(maker: Maker) -> None:
    subprocess.run(["chown", "-R", "daemon", maker.web.path / ".git"], check=True)
    done = maker.tag("r2", code=2)
    assert "detected dubious ownership" in done.err
    assert "git config --global --add safe.directory" in done.err


def test_all_files_of_a_foreign_clone_are_named_at_once(maker: Maker) -> None:
    web = maker.web.path
    for name in ("manifest.yaml", "manifest.lock", "web"):
        os.chown(web / name, 1, 1)
    done = maker.site.run("release", "check", str(web))
    assert (done.code, done.out) == (2, "")
    assert "and root would run it: manifest.lock, manifest.yaml, web (chown -R root" in done.err
    os.chown(web, 1, 1)
    done = maker.site.run("try", "--noop", str(web))
    assert "and root would run it: the directory itself, manifest.lock, " in done.err


def test_a_repository_with_sha_256_names_is_refused_with_its_cause(
    maker: Maker, forge: Forge
) -> None:
    sha256 = forge.path / "sha256"
    subprocess.run(["git", "init", "-q", "--object-format=sha256", sha256], check=True)
    repo = Repo(sha256)
    repo.commit({"manifest.yaml": "moduledir: modules\n", "x/manifests/init.pp": "class x { }\n"})
    repo.git("tag", "v1")
    assert "its objects have SHA-256 names" in maker.tag("r1", of=sha256, code=2).err
    other = forge.repo("other")
    text = f"moduledir: modules\nmodules:\n  x: {{git: 'file://{sha256}', tag: v1}}\n"
    other.write({"manifest.yaml": text})
    done = maker.site.run("release", "lock", str(other.path))
    assert "its objects have SHA-256 names" in done.err


def test_a_directory_below_the_top_of_a_work_tree_is_refused(maker: Maker, forge: Forge) -> None:
    for place in (maker.web.path / "web", maker.origin.path, forge.path, forge.path / "none"):
        assert "work tree" in maker.tag("r2", of=place, code=2).err
