"""`app: control/branches/NAME`: the current commit of a branch, which is not a release."""

import json
from pathlib import Path

import pytest

from localpuppet.base.formats.names import ReleasePath
from tests.rigs.forge import Forge, Repo, klass, make
from tests.rigs.module_forge import ModuleForge
from tests.rigs.node import Node

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
    assert make(node, "lock", str(repo.path)).code == 0
    repo.commit({})
    node.write("input.yaml", f"app: {APP}\nclasses: [app, ntp]\n")
    return repo


@pytest.mark.parametrize(
    ("text", "source", "branch", "is_tag"),
    [
        ("foo/branches/main", "foo", "main", False),
        ("foo/branches/feature/x", "foo", "feature/x", False),
        ("foo/branches/tags/r1", "foo", "tags/r1", False),
        ("a/foo/branches/trunk", "a/foo", "trunk", False),
        ("foo/tags/branches", "foo", "", True),
        ("branches/tags/r1", "branches", "", True),
        ("foo/trunk", "foo", "", False),
    ],
)
def test_a_branch_with_any_name_is_not_a_tag(
    text: str, source: str, branch: str, is_tag: bool
) -> None:
    path = ReleasePath.parse(text, where="app")
    assert (path.source, path.branch, path.is_tag) == (source, branch, is_tag)


def test_each_stage_fetches_the_current_commit_of_the_branch(node: Node, control: Repo) -> None:
    staged = node.run("stage")
    assert staged.code == 0, staged.err
    assert staged.out.startswith(f"staged {APP}: commit ")
    first = node.run("apply")
    assert first.code == 0, first.err
    assert "first" in first.out
    assert "ntp 1.0.0" in first.out
    commit = control.commit({"app/manifests/init.pp": klass("app", "second")})
    assert "second" in node.run("apply", "--noop").out
    assert node.run("stage", "--json").json["commit"] == commit
    assert not (node.state / "applied.json").exists()
    control.path.rename(control.path.with_name("away"))
    stays = node.run("apply", "--noop")
    assert stays.code == 0, stays.err
    assert f"warning: {APP} stays at {commit[:12]}" in stays.err
    assert "second" in stays.out
    assert node.run("stage").code == 69
    kept = node.run("release", "gc", "--json").json
    assert node.run("check").code == 0, kept


def test_if_tags_or_signatures_are_required_a_branch_is_refused(node: Node, control: Repo) -> None:
    settings = json.loads((node.root / "localpuppet.yaml").read_text())
    node.settings(**{**settings, "immutable_only": True})
    for verb in ("stage", "apply", "check"):
        refused = node.run(verb)
        assert refused.code == 2
        assert f"{APP} can change, and 'immutable_only' is set" in refused.err
    signed = {"git": control.url, "require_signed": True, "signers": "keys"}
    node.write("keys", "")
    node.settings(**{**settings, "sources": {"control": signed}})
    refused = node.run("stage")
    assert refused.code == 2
    assert "a branch has no signature" in refused.err


def test_the_error_of_a_missing_branch_names_it(node: Node, control: Repo) -> None:
    refused = node.run("stage", "control/branches/gone")
    assert refused.code == 2
    assert "the repository has no branch 'gone'" in refused.err
    assert "'localpuppet stage' fetches it" in node.run("check").err
    assert "'contrl' is not a source" in node.run("stage", "contrl/branches/main").err


def test_a_lock_with_work_trees_is_not_staged_from_a_branch(node: Node, control: Repo) -> None:
    assert make(node, "lock", str(control.path), "--path", f"ntp={control.path}").code == 0
    control.commit({})
    refused = node.run("stage")
    assert refused.code == 2
    assert "paths.ntp: is a work tree" in refused.err
