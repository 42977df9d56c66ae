"""Names and versions of packages, and copying trees out of them."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.errors import IntegrityError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.releases.packages import directory
from localpuppet.node.releases.packages.directory import (
    is_licence,
    package_name,
    package_version,
    parse_version,
)

DEBIAN = re.compile(r"[a-z0-9][a-z0-9+.-]+")
COMPONENT = st.from_regex(r"\A[A-Za-z0-9_.+][A-Za-z0-9_.+-]{0,20}\Z")
APP = st.builds(lambda source, tag: f"{source}/tags/{tag}", COMPONENT, COMPONENT)


def test_similar_releases_get_different_names() -> None:
    def name(app: str) -> str:
        return package_name(ReleasePath(app)).removeprefix("localpuppet-release-")

    assert name("web/tags/r1") == "web-r1"
    assert name("web-app/tags/v1.2+b") == "web-app-v1.2+b"
    alike = ["web/tags/R1", "web/tags/a-b", "web-a/tags/b", "w_eb/tags/r1", "w/eb/tags/r1"]
    assert len({name(app) for app in [*alike, "web/tags/r1", "w-eb/tags/r1"]}) == 7
    assert name("web/tags/R1").startswith("web-r1-")
    versions = {
        "r1": "1",
        "v1.2-rc1": "1.2~rc1",
        "2026-11-20": "2026.11.20",
        "release_7": "7",
        "blue": "0+blue",
        "1.0-1": "1.0.1",
    }
    assert {tag: package_version(tag) for tag in versions} == versions


@given(APP, APP)
def test_every_release_has_a_unique_package_name(one: str, other: str) -> None:
    first, second = (package_name(ReleasePath(app)) for app in (one, other))
    assert DEBIAN.fullmatch(first)
    assert len(first) < 160
    assert (first == second) == (one == other)


@given(st.from_regex(r"\A[A-Za-z0-9_.+-]{1,200}\Z"))
def test_every_tag_gives_a_valid_version(tag: str) -> None:
    version = package_version(tag)
    assert parse_version(version) == version


def test_licence_files_are_recognised_by_name() -> None:
    for name in ("LICENSE", "LICENCE.md", "COPYING", "copyright", "NOTICE.txt", "LICENSE-MIT"):
        assert is_licence(name), name
    for name in ("noticed.pp", "licensing", "README.md", "copy.sh"):
        assert not is_licence(name), name


def test_a_file_with_the_wrong_mode_is_copied_instead_of_linked(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "d").mkdir(parents=True)
    for name, mode in {"a": 0o444, "b": 0o644, "d/c": 0o4755}.items():
        (tree / name).write_text(name)
        (tree / name).chmod(mode)
    directory.copy_tree(tree, tmp_path / "new", link=True)
    for name, mode in {"a": 0o444, "b": 0o444, "d/c": 0o555}.items():
        assert (tmp_path / "new" / name).stat().st_mode & 0o7777 == mode
        assert (tmp_path / "new" / name).samefile(tree / name) == (name == "a")
    assert (tree / "b").stat().st_mode & 0o7777 == 0o644
    os.mkfifo(tree / "fifo")
    with pytest.raises(IntegrityError, match="not a file, link or directory"):
        directory.copy_tree(tree, tmp_path / "other", link=True)
