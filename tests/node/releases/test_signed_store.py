"""`require_signed` applies to stored trees: files of other releases or links are not trusted."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.releases.git.git_names import Tag
from localpuppet.node.releases.release_records import (
    StagedRelease,
    Verifications,
    note_verified,
    rules_digest,
)
from localpuppet.node.releases.source import ReleaseSource
from tests.node.make import pin
from tests.rigs.forge import Forge, klass, make, more_settings
from tests.rigs.node import Node
from tests.rigs.packages import build
from tests.rigs.signing import Signing, sign_tag


@pytest.fixture
def signed(site: Node, forge: Forge, signing: Signing) -> Node:
    """The site with a source `dist` that requires signatures, and an untrusted source `rogue`."""
    sign_tag(forge.repo("dist"), "r7", signing)
    settle(site, forge, signing.ssh_signers("ssh"))
    web = forge.repo("web")
    make(site, "lock", str(web.path), "--accept-moved", code=0)
    web.commit({})
    web.git("tag", "-f", "-a", "-m", "r1", "r1")
    return site


def settle(node: Node, forge: Forge, signers: Path) -> None:
    sources: dict[str, Any] = {name: {"git": forge.repo(name).url} for name in ("web", "rogue")}
    dist = {"git": forge.repo("dist").url, "require_signed": True, "signers": str(signers)}
    node.settings(allow_file_urls=True, sources={**sources, "dist": dist})


def plant(node: Node, forge: Forge) -> str:
    """Stage a tree with an unsigned release, and name it dist/tags/r7 in the lock of another."""
    rogue = forge.repo("rogue")
    rogue.commit({"manifest.yaml": "modulepath: []\n", **evil()}, "r1")
    node.run("stage", "rogue/tags/r1", code=0)
    record = json.loads((node.state / "staged/rogue%tags%r1.json").read_text())
    tree: str = record["pin"]["tree_sha256"]
    lock = (forge.repo("web").path / "manifest.lock").read_text()
    before, _, entry = lock.partition("sources:\n")
    old = entry.partition('tree_sha256: "')[2][:64]
    lie = f"{before.partition('modules:')[0]}sources:\n{entry.replace(old, tree)}"
    rogue.commit({"manifest.yaml": "modulepath: [dist/tags/r7]\n", "manifest.lock": lie}, "r2")
    return tree


def evil() -> dict[str, str]:
    return {"platform/manifests/init.pp": klass("platform", "evil")}


def test_a_tree_of_an_unsigned_release_is_no_signed_tag(signed: Node, forge: Forge) -> None:
    """The attack on a node that never staged `dist`, and on one that has verified its tag."""
    link = signed.root / "modules/dist/tags/r7"
    tree = plant(signed, forge)
    done = signed.run("stage", "rogue/tags/r2", code=3)
    assert f"the lock says {tree[:16]}" in done.err
    assert not link.exists()
    signed.run("stage", code=0)
    genuine = link.readlink()
    shutil.rmtree(forge.path / "dist")
    again = signed.run("stage", "rogue/tags/r2", code=3)
    assert f"the lock says {tree[:16]}" in again.err
    assert link.readlink() == genuine
    assert "Notice: dist r7" in signed.run("apply").out


def test_a_collection_has_the_same_bytes_in_all_releases(signed: Node, forge: Forge) -> None:
    """Also without required signatures: `rogue` must not change the collection of `web`."""
    names = ("web", "rogue", "dist")
    more_settings(signed, sources={name: {"git": forge.repo(name).url} for name in names})
    signed.run("stage", code=0)
    link = signed.root / "modules/dist/tags/r7"
    genuine = link.readlink()
    plant(signed, forge)
    refused = signed.run("stage", "rogue/tags/r2", code=3)
    assert "dist/tags/r7: is the tree" in refused.err
    assert "for web/tags/r1, which is staged here" in refused.err
    assert link.readlink() == genuine
    assert not (signed.root / "modules/rogue/tags/r2").exists()
    accepted = signed.run("stage", "rogue/tags/r2", "--accept-moved")
    assert accepted.code == 0, "an operator accepted the change"
    assert link.readlink() != genuine
    done = signed.run("apply", code=0)
    assert "Notice: dist r7" in done.out, "a run uses the record of its release"
    signed.run("release", "verify", "--all", code=0)


def test_a_removed_signer_is_not_trusted(signed: Node, forge: Forge, signing: Signing) -> None:
    signed.run("stage", code=0)
    signed.run("check", code=0)
    settle(signed, forge, signing.ssh_signers("other"))
    for verb in (
        ["apply"],
        ["check"],
        ["enc", "web01.example.com"],
        ["lookup", "key"],
        ["release", "verify", "--quick"],
        ["release", "diff", "web/tags/r1", "web/tags/r1"],
    ):
        refused = signed.run(*verb, code=3)
        assert "dist" in refused.err, verb
        assert "signature" in refused.err, verb
    assert "'localpuppet stage web/tags/r1' verifies again" in signed.run("check").err
    assert signed.run("stage", "web/tags/r1").code == 3, "it has no other signature"
    settle(signed, forge, signing.ssh_signers("other", "ssh"))
    signed.run("stage", code=0)
    signed.run("check", code=0)


def test_a_pack_carries_no_signature(signed: Node, forge: Forge, signing: Signing) -> None:
    """Also if the store has its trees from another release."""
    signed.run("stage", code=0)
    good = build(signed, "tar", signed.root / "out")
    assert signed.run("stage", "--pack", str(good)).code == 0, "git fetched each of its trees"
    victim = Node(signed.root / "victim")
    (victim.root / "modules").mkdir(parents=True)
    settle(victim, forge, signing.ssh_signers("ssh"))
    shutil.copytree(signed.state / "objects", victim.state / "objects", symlinks=True)
    shutil.copytree(signed.state / "index", victim.state / "index")
    refused = victim.run("stage", "web/tags/r1", "--pack", str(good), code=3)
    assert "dist requires signed tags, and a package has no signature" in refused.err


APP = ReleasePath("web/tags/r1")
PIN = pin("web", "r1")
URL = PIN.url


def test_a_signer_that_is_removed_during_staging_is_not_trusted(tmp_path: Path) -> None:
    signers = tmp_path / "signers"
    signers.write_text("mallory key\n")
    source = ReleaseSource(name="web", url=URL, signers=signers)
    state = tmp_path / "state"
    rules = rules_digest(source)  # git verifies with these
    signers.write_text("alice key\n")
    note_verified(state, [(source, PIN, rules)])
    assert not Verifications(state).accepts(source, PIN)
    note_verified(state, [(source, PIN, rules_digest(source))])
    assert Verifications(state).accepts(source, PIN)


def test_the_first_part_of_a_release_without_a_verification_is_named(tmp_path: Path) -> None:
    signers = tmp_path / "signers"
    signers.write_text("alice key\n")
    sources = {name: ReleaseSource(name=name, url=URL, signers=signers) for name in ("web", "dist")}
    sources["open"] = ReleaseSource(name="open", url=URL, signers=None)
    dist = replace(PIN, tag=Tag("r7"), tree_sha256="d" * 64)
    collections = {"open/tags/r1": "e" * 64, "dist/tags/r7": dist.tree_sha256}
    staged = StagedRelease(
        release=APP, pin=PIN, composition="", modules={}, sources=collections, moduledir=""
    )
    state = tmp_path / "state"
    assert Verifications(state).unverified(staged, sources) == APP
    assert Verifications(state).unverified(staged, {}) is None
    rules = {name: rules_digest(source) for name, source in sources.items()}
    note_verified(state, [(sources["web"], PIN, rules["web"]), (sources["open"], PIN, "")])
    assert Verifications(state).unverified(staged, sources) == "dist/tags/r7"
    note_verified(
        state, [(sources["web"], PIN, rules["web"]), (sources["dist"], dist, rules["dist"])]
    )
    assert Verifications(state).unverified(staged, sources) is None
    signers.write_text("bob key\n")
    assert Verifications(state).unverified(staged, sources) == APP
