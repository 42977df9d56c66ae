"""release tag: checks, makes, signs and pushes a tag, or leaves no tag."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.rigs.forge import IDENTITY, Forge, Repo
from tests.rigs.node import Done, Node

# The identity comes from the user's own configuration file.
USER = {"GIT_CONFIG_NOSYSTEM": "1"}


@pytest.fixture
def origin(site: Node, forge: Forge) -> Repo:
    """A bare repository to which `web` pushes."""
    web = forge.repo("web")
    bare = forge.path / "origin.git"
    web.git("clone", "-q", "--bare", str(web.path), str(bare))
    web.git("remote", "add", "origin", f"file://{bare}")
    return Repo(bare)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home of a person who makes releases."""
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\nname = Maker\nemail = maker@example.net\n")
    return home


def tag(site: Node, forge: Forge, home: Path, *arguments: str, code: int | None = None) -> Done:
    web = str(forge.repo("web").path)
    return site.run("release", "tag", web, *arguments, code=code, HOME=str(home), **USER)


def test_a_release_is_tagged_pushed_and_can_be_staged(
    site: Node, forge: Forge, origin: Repo, home: Path
) -> None:
    done = tag(site, forge, home, "r2", "--json", code=0)
    value = done.json
    assert (value["tag"], value["signed"], value["pushed"]) == ("r2", False, True)
    body = origin.git("cat-file", "tag", "refs/tags/r2")
    assert f"object {value['commit']}" in body
    assert "tagger Maker <maker@example.net>" in body
    assert body.endswith("\n\nrelease r2")
    site.settings(
        allow_file_urls=True,
        sources={"web": {"git": origin.url}, "dist": {"git": forge.repo("dist").url}},
    )
    site.run("stage", "web/tags/r2", code=0)
    again = tag(site, forge, home, "r2", code=2)
    assert "the tag r2 exists already" in again.err
    forge.repo("web").git("tag", "-d", "r2")
    again = tag(site, forge, home, "r2", code=2)
    assert "origin has the tag r2 already" in again.err


def test_without_push_origin_gets_no_tag(
    site: Node, forge: Forge, origin: Repo, home: Path
) -> None:
    done = tag(site, forge, home, "r2", "--no-push", "-m", "for the fair", code=0)
    assert "tagged r2 at " in done.out
    assert "annotated, not pushed" in done.out
    assert "for the fair" in forge.repo("web").git("cat-file", "tag", "r2")
    assert origin.git("tag") == "r1"


def test_a_node_that_requires_signatures_stages_a_signed_tag(
    site: Node, forge: Forge, origin: Repo, home: Path
) -> None:
    key = home / "key"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "maker", "-f", key], check=True
    )
    unnamed = tag(site, forge, home, "r2", "--sign", code=2)
    assert "no source has the URL of origin (--source NAME)" in unnamed.err
    unready = tag(site, forge, home, "r2", "--sign", "--source", "web", code=2)
    assert "cannot make the tag r2" in unready.err
    assert "user.signingkey" in unready.err
    lost = home / ".gitconfig"
    before = lost.read_text()
    lost.write_text(f"{before}signingkey = {home}/lost\n[gpg]\nformat = ssh\n")
    keyless = tag(site, forge, home, "r2", "--sign", "--source", "web")
    # git 2.39 prints nothing, exits with 0 and makes an unsigned tag; 2.47 prints an error.
    assert keyless.code == 2
    assert re.search("git made no signature|Couldn't load public key", keyless.err)
    lost.write_text(before)
    assert forge.repo("web").git("tag") == "r1"
    with (home / ".gitconfig").open("a") as config:
        config.write(f"signingkey = {key}\n[gpg]\nformat = ssh\n")
    done = tag(site, forge, home, "r2", "--sign", "--source", "web", "--json", code=0)
    body = origin.git("cat-file", "tag", "r2")
    assert "\n\nrelease r2\n\nLocalpuppet-Source: web\n-----BEGIN SSH" in body
    assert done.json["signed"] is True
    signers = site.write("signers", f"maker {(home / 'key.pub').read_text()}")
    signed = {"git": origin.url, "require_signed": True, "signers": str(signers)}
    site.settings(
        allow_file_urls=True,
        sources={"web": signed, "dist": {"git": forge.repo("dist").url}},
    )
    site.run("stage", "web/tags/r2", code=0)
    site.run("stage", "web/tags/r1", code=3)


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
    site: Node, forge: Forge, origin: Repo, home: Path, spoil: str, problem: str
) -> None:
    web = forge.repo("web")
    env = {**os.environ, **IDENTITY}
    subprocess.run(["/bin/sh", "-ec", spoil], cwd=web.path, env=env, check=True)
    refused = tag(site, forge, home, "r2", code=2)
    assert problem in refused.err
    assert len(refused.err.splitlines()) == 1
    assert web.git("tag") == "r1"
    assert origin.git("tag") == "r1"


@pytest.mark.parametrize("name", ["-r2", "a..b", "a/b", "v 1", "0" * 40, "r2.lock"])
def test_an_invalid_release_name_is_refused(
    site: Node, forge: Forge, home: Path, name: str
) -> None:
    tag(site, forge, home, "--", name, code=2)
    assert forge.repo("web").git("tag") == "r1"


def test_a_failed_push_leaves_no_tag(site: Node, forge: Forge, origin: Repo, home: Path) -> None:
    hook = origin.path / "hooks" / "update"
    hook.write_text("#!/bin/sh\necho 'no tags on Fridays' >&2\nexit 1\n")
    hook.chmod(0o755)
    failed = tag(site, forge, home, "r2", code=69)
    assert "cannot push the tag r2 to origin" in failed.err
    assert "no tags on Fridays" in failed.err
    assert forge.repo("web").git("tag") == "r1"
    hook.unlink()
    tag(site, forge, home, "r2", code=0)


def test_an_unreachable_origin_is_reported(
    site: Node, forge: Forge, origin: Repo, home: Path
) -> None:
    origin.path.rename(origin.path.with_name("away.git"))
    failed = tag(site, forge, home, "r2", code=69)
    assert "cannot ask origin" in failed.err
    assert forge.repo("web").git("tag") == "r1"


def test_the_error_shows_why_git_does_not_read_a_work_tree_of_another_user(
    site: Node, forge: Forge, home: Path
) -> None:
    web = forge.repo("web")
    subprocess.run(["chown", "-R", "daemon", web.path / ".git"], check=True)
    done = tag(site, forge, home, "r2", code=2)
    assert "detected dubious ownership" in done.err
    assert "git config --global --add safe.directory" in done.err


def test_all_files_of_a_foreign_clone_are_named_at_once(
    site: Node, forge: Forge, home: Path
) -> None:
    web = forge.repo("web").path
    for name in ("manifest.yaml", "manifest.lock", "web"):
        os.chown(web / name, 1, 1)
    done = site.run("release", "check", str(web))
    assert (done.code, done.out) == (2, "")
    assert "and root would run it: manifest.lock, manifest.yaml, web (chown -R root" in done.err
    os.chown(web, 1, 1)
    done = site.run("try", "--noop", str(web))
    assert "and root would run it: the directory itself, manifest.lock, " in done.err


def test_a_repository_with_sha_256_names_is_refused_with_its_cause(
    site: Node, forge: Forge, home: Path
) -> None:
    sha256 = forge.path / "sha256"
    subprocess.run(["git", "init", "-q", "--object-format=sha256", sha256], check=True)
    repo = Repo(sha256)
    repo.write({"manifest.yaml": "moduledir: modules\n", "x/manifests/init.pp": "class x { }\n"})
    repo.git("add", "-A")
    repo.git("commit", "-qm", "x")
    repo.git("tag", "v1")
    done = site.run("release", "tag", str(sha256), "r1", HOME=str(home), **USER, code=2)
    assert "its objects have SHA-256 names" in done.err
    other = forge.repo("other")
    text = f"moduledir: modules\nmodules:\n  x: {{git: 'file://{sha256}', tag: v1}}\n"
    other.write({"manifest.yaml": text})
    done = site.run("release", "lock", str(other.path))
    assert "its objects have SHA-256 names" in done.err


def test_a_directory_below_the_top_of_a_work_tree_is_refused(
    site: Node, forge: Forge, origin: Repo, home: Path
) -> None:
    for place in (forge.repo("web").path / "web", origin.path, forge.path, forge.path / "none"):
        refused = site.run("release", "tag", str(place), "r2", HOME=str(home), **USER, code=2)
        assert "work tree" in refused.err
