"""'release check' and 'release tag' refuse a tree that a node would refuse to stage."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rigs.forge import Forge, Repo, manifest
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


def refused(done: Done) -> str:
    assert done.code == 3, done.err
    return done.err.strip().rpartition(": ")[2]


@pytest.mark.parametrize(
    ("plant", "problem"),
    [
        (absolute_link, "an absolute symlink"),
        (chain_of_links, "a symlink that points outside the tree"),
        (submodule, "a submodule"),
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
    site.run("release", "check", str(web.path), code=0)
    absolute_link(web)
    assert "an absolute symlink" in refused(site.run("release", "check", str(web.path)))


def test_the_tree_has_tracked_files_and_no_ignored_ones(site: Node, forge: Forge) -> None:
    web = forge.repo("web")
    web.write({".gitignore": "cache\nkept\n"})
    for name in ("cache", "kept"):
        (web.path / name).symlink_to("/etc")
    web.git("add", "-f", "kept")
    checked = site.run("release", "check", str(web.path), code=3)
    assert "'kept'" in checked.err
    web.git("rm", "-q", "--cached", "kept")
    site.run("release", "check", str(web.path), code=0)


def test_a_split_index_is_read(site: Node, forge: Forge) -> None:
    web = forge.repo("web")
    web.git("update-index", "--split-index")
    site.run("release", "check", str(web.path), code=0)


def test_no_git_configuration_runs_a_program(site: Node, forge: Forge, tmp_path: Path) -> None:
    web = forge.repo("web")
    web.git("config", "filter.evil.clean", f"touch {tmp_path}/ran; cat")
    web.git("config", "core.fsmonitor", f"touch {tmp_path}/ran")
    web.write({".gitattributes": "* filter=evil\n", "web/manifests/new.pp": "class web::new { }\n"})
    before = (web.path / ".git/index").read_bytes()
    assert "filter=evil" in site.run("release", "check", str(web.path)).err
    web.write({".gitattributes": "* -filter\n"})
    site.run("release", "check", str(web.path), code=0)
    assert not (tmp_path / "ran").exists()
    assert (web.path / ".git/index").read_bytes() == before


def test_an_untracked_clone_and_a_submodule_are_named(site: Node, forge: Forge) -> None:
    web = forge.repo("web")
    web.git("clone", "-q", "../ntp", "vendored")
    checked = site.run("release", "check", str(web.path), code=2)
    assert f"{web.path}/vendored: is a clone of another repository" in checked.err
    assert "let .gitignore name it" in checked.err
    web.write({".gitignore": "/vendored\n"})
    site.run("release", "check", str(web.path), code=0)
    web.write({".gitignore": ""})
    web.commit({})
    assert "a submodule" in refused(site.run("release", "check", str(web.path)))


@pytest.mark.parametrize(
    ("place", "attribute", "named"),
    [
        (".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text", "filter=lfs"),
        ("web/files/.gitattributes", "big.bin filter=git-crypt", "filter=git-crypt"),
        (".git/info/attributes", "web/** filter=anything", "filter=anything"),
        ("home/.config/git/attributes", "*.bin filter=lfs", "filter=lfs"),
        ("home/named", "*.bin filter=lfs", "filter=lfs"),
        (".gitattributes", "*.bin ident", "ident=set"),
        (".gitattributes", "*.bin eol=crlf", "eol=crlf"),
        (".gitattributes", "*.bin working-tree-encoding=UTF-16", "working-tree-encoding=UTF-16"),
    ],
)
def test_a_file_that_git_converts_is_refused_by_name_wherever_the_attribute_is(
    site: Node, forge: Forge, tmp_path: Path, place: str, attribute: str, named: str
) -> None:
    web, home = forge.repo("web"), tmp_path / "of the author"
    web.commit({"web/files/big.bin": "contents\n"})
    file = home / place.removeprefix("home/") if place.startswith("home/") else web.path / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{attribute}\n")
    if place == "home/named":
        (home / ".gitconfig").write_text(f"[core]\n\tattributesFile = {file}\n")
    done = site.run("release", "check", str(web.path), HOME=str(home), code=2)
    assert f"{web.path}/web/files/big.bin: git's attribute {named} converts" in done.err
    assert "git add --renormalize" in done.err
    site.run("release", "tag", str(web.path), "r2", "--no-push", HOME=str(home), code=2)
    assert "r2" not in web.git("tag")


def test_attributes_that_convert_nothing_are_accepted(site: Node, forge: Forge) -> None:
    web = forge.repo("web")
    attributes = "* text=auto\n*.pp text eol=lf -filter\n*.png binary\nx export-subst\n"
    web.commit({"web/files/big.bin": "contents\n", ".gitattributes": attributes})
    site.run("release", "check", str(web.path), code=0)


def test_a_tag_of_a_tag_names_the_commit_as_the_way_out(site: Node, forge: Forge) -> None:
    web, ntp = forge.repo("web"), forge.repo("ntp")
    commit = ntp.git("rev-parse", "HEAD").strip()
    ntp.git("tag", "-a", "-m", "outer", "outer", "v1")
    web.write({"manifest.yaml": manifest(forge, ntp="outer")})
    refused_lock = site.run("release", "lock", str(web.path), code=2)
    assert "tag outer: points at another tag" in refused_lock.err
    assert f"name its commit ('commit: {commit}')" in refused_lock.err
