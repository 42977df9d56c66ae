"""'release check' and 'release tag' refuse a tree that a node would refuse to stage."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rigs.forge import Forge, Repo
from tests.rigs.node import Done, Node


def absolute_link(web: Repo) -> None:
    (web.path / "web/files").mkdir()
    (web.path / "web/files/motd").symlink_to("/etc/motd")


def chain_of_links(web: Repo) -> None:
    (web.path / "a").mkdir()
    (web.path / "a/up").symlink_to("..")
    (web.path / "b").symlink_to("a/up/..")


def submodule(web: Repo) -> None:
    web.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", "../ntp", "vendored")


def clone_that_git_would_commit(web: Repo) -> None:
    web.git("clone", "-q", "../ntp", "vendored")


def refused(done: Done) -> str:
    assert done.code == 3, done.err
    return done.err.strip().rpartition(": ")[2]


@pytest.mark.parametrize(
    ("plant", "problem"),
    [
        (absolute_link, "an absolute symlink"),
        (chain_of_links, "a symlink that points outside the tree"),
        (submodule, "a submodule"),
        (clone_that_git_would_commit, "a submodule"),
    ],
)
def test_check_and_tag_refuse_the_same_trees_as_stage(
    site: Node, forge: Forge, plant: Callable[[Repo], None], problem: str
) -> None:
    web = forge.repo("web")
    plant(web)
    checked = site.run("release", "check", str(web.path))
    assert problem in refused(checked)
    web.commit({})
    tagged = site.run("release", "tag", str(web.path), "r2", "--no-push")
    assert problem in refused(tagged)
    assert "r2" not in web.git("tag")
    web.git("tag", "-a", "-m", "r2", "r2")
    staged = site.run("stage", "web/tags/r2")
    assert refused(staged).partition(" (")[0] == refused(tagged).partition(" (")[0]
    assert not list(site.state.glob(".check-*"))


def test_a_directory_without_git_is_read_completely(site: Node, forge: Forge) -> None:
    web = forge.repo("web")
    (web.path / ".git").rename(web.path.parent / "aside")
    assert site.run("release", "check", str(web.path)).code == 0
    absolute_link(web)
    assert "an absolute symlink" in refused(site.run("release", "check", str(web.path)))


def test_the_tree_has_tracked_files_and_no_ignored_ones(site: Node, forge: Forge) -> None:
    web = forge.repo("web")
    web.write({".gitignore": "cache\nkept\n"})
    for name in ("cache", "kept"):
        (web.path / name).symlink_to("/etc")
    web.git("add", "-f", "kept")
    checked = site.run("release", "check", str(web.path))
    assert checked.code == 3
    assert "'kept'" in checked.err
    web.git("rm", "-q", "--cached", "kept")
    assert site.run("release", "check", str(web.path)).code == 0


def test_a_split_index_is_read(site: Node, forge: Forge) -> None:
    web = forge.repo("web")
    web.git("update-index", "--split-index")
    assert site.run("release", "check", str(web.path)).code == 0


def test_the_configuration_of_the_repository_runs_no_program(
    site: Node, forge: Forge, tmp_path: Path
) -> None:
    web = forge.repo("web")
    web.git("config", "filter.evil.clean", f"touch {tmp_path}/ran; cat")
    web.git("config", "core.fsmonitor", f"touch {tmp_path}/ran")
    web.write({".gitattributes": "* filter=evil\n", "web/manifests/new.pp": "class web::new { }\n"})
    before = (web.path / ".git/index").read_bytes()
    assert site.run("release", "check", str(web.path)).code == 0
    assert not (tmp_path / "ran").exists()
    assert (web.path / ".git/index").read_bytes() == before
