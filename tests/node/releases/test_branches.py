"""Modules at commits and branches: the lock pins them, and locking again moves them."""

import pytest

from tests.rigs.forge import Forge, klass, make
from tests.rigs.node import Node


@pytest.fixture
def shop(node: Node, forge: Forge) -> Node:
    node.settings(allow_file_urls=True, sources={"web": {"git": forge.repo("web").url}})
    forge.repo("apt").commit({"manifests/init.pp": klass("apt", "apt one")})
    forge.repo("web").commit({"web/manifests/init.pp": klass("web", "web")})
    return node


def manifest(forge: Forge, kind: str, ref: str) -> str:
    text = f"modules:\n  apt: {{git: '{forge.repo('apt').url}', {kind}: '{ref}'}}\n"
    forge.repo("web").write({"manifest.yaml": text})
    return str(forge.repo("web").path)


def test_a_branch_stays_at_its_locked_commit(shop: Node, forge: Forge) -> None:
    apt, web = forge.repo("apt"), manifest(forge, "branch", "main")
    first = apt.git("rev-parse", "HEAD")
    pin = make(shop, "lock", web, "--json").json["modules"]["apt"]
    assert (pin["branch"], pin["commit"]) == ("main", first)
    forge.repo("web").commit({}, "r1")
    second = apt.commit({"manifests/init.pp": klass("apt", "apt two")})
    assert make(shop, "lock", web, "--json").json["modules"]["apt"]["commit"] == first
    shop.write("input.yaml", "app: web/tags/r1\nclasses: [web, apt]\n")
    applied = shop.run("apply")
    assert applied.code == 0, applied.err
    assert "apt one" in applied.out
    found = make(shop, "lock", web, "--outdated")
    assert found.out.splitlines()[1].split() == [
        *("apt", "main", first[:12], "->", "main", second[:12])
    ]
    moved = make(shop, "lock", web, "--update", "--json").json
    assert moved["modules"]["apt"]["commit"] == second
    assert [change["name"] for change in moved["changes"]] == ["apt"]


def test_a_commit_that_is_not_a_tip_is_fetched(shop: Node, forge: Forge) -> None:
    apt = forge.repo("apt")
    first = apt.git("rev-parse", "HEAD")
    apt.commit({"manifests/init.pp": klass("apt", "apt two")})
    web = manifest(forge, "commit", first)
    pin = make(shop, "lock", web, "--json").json["modules"]["apt"]
    assert (pin["commit"], "branch" in pin) == (first, False)
    assert make(shop, "check", web).code == 0
    forge.repo("web").commit({}, "r1")
    assert shop.run("stage", "web/tags/r1").code == 0
    init = shop.root / "modules/web/tags/r1/apt/manifests/init.pp"
    assert "apt one" in init.read_text()
    assert shop.run("release", "verify", "--all").code == 0


@pytest.mark.parametrize(
    ("kind", "ref", "code", "what"),
    [
        ("branch", "gone", 2, "has no branch 'gone'"),
        ("branch", "-x", 2, "starts with '-'"),
        ("commit", "abc1234", 2, "is an invalid id"),
        ("commit", "c" * 40, 69, f"has no commit {'c' * 40}"),
    ],
)
def test_a_missing_or_invalid_branch_or_commit_is_refused(
    shop: Node, forge: Forge, kind: str, ref: str, code: int, what: str
) -> None:
    refused = make(shop, "lock", manifest(forge, kind, ref))
    assert refused.code == code, refused.err
    assert what in refused.err


def test_a_branch_without_a_lock_is_refused_on_a_node(shop: Node, forge: Forge) -> None:
    manifest(forge, "branch", "main")
    shop.write("modules/x/trunk/manifest.yaml", (forge.path / "web/manifest.yaml").read_text())
    shop.write("modules/x/trunk/apt/manifests/init.pp", klass("apt", "here"))
    shop.write("input.yaml", "app: x/trunk\nclasses: [apt]\n")
    refused = shop.run("apply")
    assert refused.code == 2
    assert "is a branch, and there is no manifest.lock" in refused.err
    forge.repo("web").commit({}, "r1")
    assert "there is no manifest.lock" in shop.run("stage", "web/tags/r1").err


def test_a_lock_with_another_branch_than_its_manifest_is_refused(shop: Node, forge: Forge) -> None:
    web = manifest(forge, "branch", "main")
    assert make(shop, "lock", web).code == 0
    manifest(forge, "branch", "other")
    refused = make(shop, "check", web)
    assert refused.code == 2
    assert "has the branch other, the lock has main" in refused.err
