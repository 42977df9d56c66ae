"""release sign: a second person signs a tag, and a node that requires two accepts it."""

import subprocess
from pathlib import Path

import pytest

from localpuppet.base.errors import (
    IntegrityError,
    InvalidInputError,
    LocalpuppetError,
    UnavailableError,
)
from localpuppet.node.releases.author.tagging import CountersignedTag, countersign
from localpuppet.node.releases.git.git_names import Tag
from localpuppet.node.releases.git.work_tree import GitWorkTree
from tests.rigs.forge import Forge, Repo, klass
from tests.rigs.node import Node
from tests.rigs.packages import build
from tests.rigs.signing import Signing, sign_tag


@pytest.fixture
def signing(tmp_path: Path) -> Signing:
    """A home with the keys of alice and bob, in which git signs as bob."""
    home = tmp_path / "home"
    home.mkdir()
    made = Signing(home)
    for name in ("alice", "bob"):
        made.ssh_key(name)
    (home / ".gitconfig").write_text(
        f"[user]\nname = Bob\nemail = bob@example.net\nsigningkey = {home}/bob\n"
        "[gpg]\nformat = ssh\n"
    )
    return made


@pytest.fixture
def web(forge: Forge, signing: Signing) -> Repo:
    """Bob's clone with the tag r2 that alice signed and pushed to origin."""
    repo = forge.repo("web")
    repo.commit({"manifest.yaml": "modulepath: []\n", "web/manifests/init.pp": klass("web", "r2")})
    repo.write({"manifest.lock": "version: 1\nmodules: {}\nsources: {}\n"})
    repo.commit({})
    sign_tag(repo, "r2", signing, key="alice")
    bare = forge.path / "origin.git"
    repo.git("clone", "-q", "--bare", str(repo.path), str(bare))
    repo.git("remote", "add", "origin", f"file://{bare}")
    return repo


@pytest.fixture
def origin(web: Repo, forge: Forge) -> Repo:
    return Repo(forge.path / "origin.git")


def two(node: Node, origin: Repo, signing: Signing, signatures: int = 2) -> None:
    """Configure the node to require signatures of several people."""
    source = {
        "git": origin.url,
        "require_signed": True,
        "signers": str(signing.ssh_signers("alice", "bob")),
        "signatures": signatures,
    }
    node.settings(allow_file_urls=True, sources={"web": source})


def test_a_second_person_signs_a_tag(node: Node, web: Repo, origin: Repo, signing: Signing) -> None:
    two(node, origin, signing)
    refused = node.run("stage", "web/tags/r2", code=3)
    assert "web/tags/r2: web requires 2 signatures" in refused.err
    assert "is signed by alice@example.net: 1 more must sign" in refused.err
    config = {"HOME": str(signing.home), "GIT_CONFIG_NOSYSTEM": "1"}
    signed = node.run("release", "sign", str(web.path), "r2", "--json", **config, code=0)
    assert signed.json["source"] == "web"
    assert signed.json["ref"] in origin.git("for-each-ref", "--format=%(refname)")
    node.run("stage", "web/tags/r2", code=0)
    node.write("input.yaml", "app: web/tags/r2\nclasses: [web]\n")
    node.run("check", code=0)
    pack = build(node, "tar", node.root / "out")
    two(node, origin, signing, 3)
    assert node.run("check").code == 3, (
        "a release that was verified for two is not verified for three"
    )
    packed = node.run("stage", "web/tags/r2", "--pack", str(pack))
    assert packed.code == 3, "a pack carries no signature"
    more = node.run("stage", "web/tags/r2").err
    assert "is signed by alice@example.net, bob@example.net: 1 more must sign" in more


def test_a_signature_may_stay_local(node: Node, web: Repo, origin: Repo, signing: Signing) -> None:
    config = {"HOME": str(signing.home), "GIT_CONFIG_NOSYSTEM": "1"}
    done = node.run("release", "sign", str(web.path), "r2", "--no-push", **config, code=0)
    commit = web.git("rev-parse", "HEAD")
    assert f"signed r2 of web at {commit[:12]}, not pushed" in done.out
    assert "signatures" not in origin.git("for-each-ref")
    push = done.out.splitlines()[-1].split()
    web.git(*push[1:])
    two(node, origin, signing)
    node.run("stage", "web/tags/r2", code=0)


@pytest.fixture
def bobs(web: Repo, signing: Signing, monkeypatch: pytest.MonkeyPatch) -> Repo:
    """Bob's clone, in a process with bob's home."""
    monkeypatch.setenv("HOME", str(signing.home))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return web


def sign(web: Repo, tag: str = "r2", source: str | None = None) -> CountersignedTag:
    tree = GitWorkTree(web.path, timeout=60)
    return countersign(tree, Tag(tag), source=source, push=True)


def test_a_countersignature_covers_the_tag_and_leaves_none(bobs: Repo, origin: Repo) -> None:
    made = sign(bobs)
    assert (made.tag_object, made.commit) == (
        bobs.git("rev-parse", "refs/tags/r2"),
        bobs.git("rev-parse", "HEAD"),
    )
    assert origin.git("rev-parse", made.ref) == made.ref.rpartition("/")[2]
    assert f"object {made.tag_object}\ntype tag\n" in origin.git("cat-file", "tag", made.ref)
    assert bobs.git("tag") == origin.git("tag") == "r2"


@pytest.mark.parametrize(
    ("spoil", "tag", "error", "problem"),
    [
        ("true", "r3", InvalidInputError, "there is no annotated tag r3 here"),
        ("git tag light", "light", InvalidInputError, "there is no annotated tag light here"),
        ("git tag -a -m x plain", "plain", IntegrityError, "is not signed"),
        ("git update-ref refs/tags/r9 refs/tags/r2", "r9", IntegrityError, "another name inside"),
        ("git push -q origin :refs/tags/r2", "r2", InvalidInputError, "origin has no such tag"),
        ("git push -qf origin HEAD:refs/tags/r2", "r2", IntegrityError, "at origin"),
        # git 2.39 prints nothing and makes a tag without a signature; 2.47 prints an error.
        (
            "git config user.signingkey /nonexistent",
            "r2",
            InvalidInputError,
            "made no signature|Couldn't load public key",
        ),
        ("git config gpg.format openpgp", "r2", InvalidInputError, "cannot sign the tag r2"),
        ("chmod 555 ../origin.git; rm -rf ../origin.git/objects", "r2", UnavailableError, "origin"),
    ],
)
def test_an_invalid_or_changed_tag_is_not_signed(
    bobs: Repo, spoil: str, tag: str, error: type[LocalpuppetError], problem: str
) -> None:
    subprocess.run(["sh", "-ec", spoil], cwd=bobs.path, check=True)
    with pytest.raises(error, match=problem):
        sign(bobs, tag)
    assert "signatures" not in bobs.git("for-each-ref")


def test_a_push_that_is_refused_leaves_no_signature(bobs: Repo, origin: Repo) -> None:
    hook = origin.path / "hooks/update"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(UnavailableError, match="cannot push refs/signatures/r2/"):
        sign(bobs)
    assert "signatures" not in bobs.git("for-each-ref")


def test_both_signatures_name_one_source(bobs: Repo, signing: Signing, origin: Repo) -> None:
    with pytest.raises(IntegrityError, match="is for the source web"):
        sign(bobs, source="shop")
    sign_tag(bobs, "r2", signing, key="alice", message="release r2")
    bobs.git("push", "-qf", "origin", "refs/tags/r2")
    with pytest.raises(InvalidInputError, match="--source NAME"):
        sign(bobs)
    assert sign(bobs, source="shop").source == "shop"
    sign_tag(bobs, "r2", signing, message="Localpuppet-Source: a\nLocalpuppet-Source: b", key="bob")
    bobs.git("push", "-qf", "origin", "refs/tags/r2")
    with pytest.raises(IntegrityError, match="is for the source a, b"):
        sign(bobs, source="a")


def test_a_leftover_tag_of_a_killed_command_does_not_prevent_signing(bobs: Repo) -> None:
    bobs.git("tag", "signatures/r2", "HEAD")
    assert sign(bobs).tag == "r2"
    assert bobs.git("tag") == "r2"
