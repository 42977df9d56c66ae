"""Modules at commits and branches: the lock pins them, and locking again moves them."""

from pathlib import Path

import pytest

from localpuppet.base.formats.names import ReleasePath
from tests.rigs.forge import Forge, Repo, klass, make, more_settings
from tests.rigs.module_forge import ModuleForge
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
    applied = shop.run("apply", code=0)
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
    make(shop, "check", web, code=0)
    forge.repo("web").commit({}, "r1")
    shop.run("stage", "web/tags/r1", code=0)
    init = shop.root / "modules/web/tags/r1/apt/manifests/init.pp"
    assert "apt one" in init.read_text()
    shop.run("release", "verify", "--all", code=0)


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
    refused = make(shop, "lock", manifest(forge, kind, ref), code=code)
    assert what in refused.err


def test_a_branch_without_a_lock_is_refused_on_a_node(shop: Node, forge: Forge) -> None:
    manifest(forge, "branch", "main")
    shop.write("modules/x/trunk/manifest.yaml", (forge.path / "web/manifest.yaml").read_text())
    shop.write("modules/x/trunk/apt/manifests/init.pp", klass("apt", "here"))
    shop.write("input.yaml", "app: x/trunk\nclasses: [apt]\n")
    refused = shop.run("apply", code=2)
    assert "is a branch, and there is no manifest.lock" in refused.err
    forge.repo("web").commit({}, "r1")
    assert "there is no manifest.lock" in shop.run("stage", "web/tags/r1").err


APP = "control/branches/feature/x"


@pytest.fixture
def control(node: Node, forge: Forge, tmp_path: Path) -> Repo:
    """A source with a branch that has a locked module."""
    modules = ModuleForge()
    modules.publish("acme/ntp", "1.0.0")
    repo = forge.repo("control")
    node.settings(
        allow_file_urls=True,
        sources={"control": {"git": repo.url}},
        forge={"url": modules.write(tmp_path / "archives")},
    )
    repo.git("checkout", "-q", "-b", "feature/x")
    manifest = "modules:\n  ntp:\n    forge: acme/ntp\n    version: 1.0.0\n"
    repo.write({"manifest.yaml": manifest, "app/manifests/init.pp": klass("app", "first")})
    make(node, "lock", str(repo.path), code=0)
    repo.commit({})
    node.write("input.yaml", f"app: {APP}\nclasses: [app, ntp]\n")
    return repo


@pytest.mark.parametrize(
    ("text", "source", "branch", "kind"),
    [
        ("foo/branches/main", "foo", "main", "branch"),
        ("foo/branches/feature/x", "foo", "feature/x", "branch"),
        ("foo/branches/tags/r1", "foo", "tags/r1", "branch"),
        ("foo/branches/assigned", "foo", "assigned", "branch"),
        ("a/foo/branches/trunk", "a/foo", "trunk", "branch"),
        ("foo/tags/branches", "foo", "", "tag"),
        ("foo/tags/assigned", "foo", "", "tag"),
        ("branches/tags/r1", "branches", "", "tag"),
        ("foo/assigned", "foo", "", "assigned"),
        ("a/b/assigned", "a/b", "", "assigned"),
        ("foo/trunk", "foo", "", ""),
        ("assigned", "assigned", "", ""),
    ],
)
def test_kinds_of_releases_are_told_apart(text: str, source: str, branch: str, kind: str) -> None:
    path = ReleasePath.parse(text, where="app")
    assert (path.source, path.branch) == (source, branch)
    assert (path.is_tag, path.is_assigned) == (kind == "tag", kind == "assigned")


def test_each_stage_fetches_the_current_commit_of_the_branch(node: Node, control: Repo) -> None:
    staged = node.run("stage", code=0)
    assert staged.out.startswith(f"staged {APP}: commit ")
    first = node.run("apply", code=0)
    assert "first" in first.out
    assert "ntp 1.0.0" in first.out
    commit = control.commit({"app/manifests/init.pp": klass("app", "second")})
    assert "second" in node.run("apply", "--noop").out
    assert node.run("stage", "--json").json["commit"] == commit
    assert not (node.state / "applied.json").exists()
    control.path.rename(control.path.with_name("away"))
    stays = node.run("apply", "--noop", code=0)
    assert f"warning: {APP} stays at {commit[:12]}" in stays.err
    assert "second" in stays.out
    node.run("stage", code=69)
    kept = node.run("release", "gc", "--json").json
    assert node.run("check").code == 0, kept


def test_if_tags_or_signatures_are_required_a_branch_is_refused(node: Node, control: Repo) -> None:
    more_settings(node, immutable_only=True)
    for verb in ("stage", "apply", "check"):
        refused = node.run(verb, code=2)
        assert f"{APP}: can change, and 'immutable_only' is set" in refused.err
    signed = {"git": control.url, "require_signed": True, "signers": "keys"}
    node.write("keys", "")
    more_settings(node, immutable_only=False, sources={"control": signed})
    refused = node.run("stage", code=2)
    assert "a branch has no signature" in refused.err


def test_the_error_of_a_missing_branch_names_it(node: Node, control: Repo) -> None:
    refused = node.run("stage", "control/branches/gone", code=2)
    assert "the repository has no branch 'gone'" in refused.err
    assert "'localpuppet stage' fetches it" in node.run("check").err
    assert "'contrl' is not a source" in node.run("stage", "contrl/branches/main").err


def test_a_lock_with_work_trees_is_not_staged_from_a_branch(node: Node, control: Repo) -> None:
    make(node, "lock", str(control.path), "--path", f"ntp={control.path}", code=0)
    control.commit({})
    refused = node.run("stage", code=2)
    assert "paths.ntp: is a work tree" in refused.err
