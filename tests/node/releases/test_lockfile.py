"""`manifest.lock`: its form, its completeness, and its agreement with the manifest."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.releases.git.git_names import Tag
from localpuppet.node.releases.manifest import (
    EMPTY,
    LOCK,
    MANIFEST,
    Lock,
    Manifest,
    check_complete,
    to_text,
)
from tests.node import make

APP = ReleasePath("web/tags/r1")
DIST = ReleasePath("dist/tags/r7")
NTP = make.pin("ntp", "v1")
PLATFORM = make.pin("dist", "r7")
WHOLE = Lock(modules={"ntp": NTP}, sources={DIST: PLATFORM})
TEXT = """\
# Written by 'localpuppet release lock'; commit it beside manifest.yaml.
version: 1
modules:
  ntp:
    url: "https://git.example.net/ntp.git"
    tag: "v1"
    tag_object: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    commit: "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
    tree_sha256: "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
sources:
  dist/tags/r7:
    url: "https://git.example.net/dist.git"
    tag: "r7"
    tag_object: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    commit: "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
    tree_sha256: "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
"""
WANTS = """\
modulepath: [dist/tags/r7]
modules:
  ntp: {git: 'https://git.example.net/ntp.git', tag: v1}
"""


def lock_of(text: str, *, allow_file: bool = False) -> Lock:
    return make.release_files(allow_file=allow_file).parse_lock(text.encode(), "manifest.lock")


def manifest_of(text: str) -> Manifest:
    return make.release_files().parse_manifest(text.encode(), "manifest.yaml")


def read(manifest: str | None, lock: str | None) -> Lock:
    files = {MANIFEST: manifest, LOCK: lock}
    present = {name: text.encode() for name, text in files.items() if text is not None}
    return make.release_files().locked(APP, present.get)


def test_a_lock_is_written_in_a_fixed_order_and_reads_back_as_equal() -> None:
    assert to_text(WHOLE) == TEXT
    other = replace(NTP, tag=Tag("v2"))
    mixed = Lock(modules={"zsh": other, "apt": NTP}, sources={})
    assert to_text(mixed) == to_text(Lock(modules={"apt": NTP, "zsh": other}, sources={}))
    assert to_text(EMPTY).splitlines()[1:] == ["version: 1"]
    for lock in (WHOLE, EMPTY, Lock(modules={}, sources={DIST: PLATFORM})):
        assert lock_of(to_text(lock)) == lock


@pytest.mark.parametrize(
    "notation",
    [
        lambda text: text.replace('"', "'"),
        lambda text: text.replace("version: 1", "version: 1  # one"),
        lambda text: "---\n" + text,
        lambda text: text.replace("  ntp:\n", "  # mine\n  ntp:\n"),
    ],
)
def test_a_lock_in_another_notation_reads_as_equal(notation: Callable[[str], str]) -> None:
    assert notation(TEXT) != TEXT
    assert lock_of(notation(TEXT)) == WHOLE


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("version: 1\n", "version: 2\n", "version"),
        ("version: 1\n", "", "version"),
        ('    tag: "v1"\n', "", "tag"),
        ('    tag: "v1"\n', '    tag: "v1"\n    branch: "main"\n', "branch"),
        ('"v1"', '"-v1"', "modules.ntp.tag"),
        ('"v1"', '"v1..v2"', "modules.ntp.tag"),
        ("b" * 40, "b" * 39, "commit"),
        ("b" * 40, "B" * 40, "commit"),
        ("b" * 40, "0" * 40, "commit"),
        ("a" * 40, "a" * 12, "tag_object"),
        ("c" * 64, "c" * 63, "tree_sha256"),
        ("c" * 64, "C" * 64, "tree_sha256"),
        ("https://git.example.net/ntp", "http://git.example.net/ntp", "modules.ntp.url"),
        ("https://git.example.net/ntp", "file:///srv/ntp", "modules.ntp.url"),
        ("https://git.example.net/ntp", "https://user:secret@git.example.net/ntp", "credentials"),
        ("  ntp:\n", "  Ntp:\n", "modules"),
        ("dist/tags/r7:", "dist/tags/r8:", "is not the tag 'r7' of a source"),
        ("dist/tags/r7:", "dist/trunk:", "is not the tag 'r7' of a source"),
        ("dist/tags/r7:", "../tags/r7:", "sources"),
    ],
)
def test_an_invalid_lock_is_refused_in_every_notation(old: str, new: str, problem: str) -> None:
    changed = TEXT.replace(old, new)
    assert changed != TEXT
    for text in (changed, "---\n" + changed):
        with pytest.raises(InvalidInputError, match=problem) as caught:
            lock_of(text)
        assert "secret" not in str(caught.value)


def test_a_file_url_is_accepted_if_the_site_allows_it() -> None:
    text = TEXT.replace("https://git.example.net/ntp.git", "file:///srv/ntp.git")
    ntp = lock_of(text, allow_file=True).to_dict()["modules"]["ntp"]
    assert ntp["url"] == "file:///srv/ntp.git"


@pytest.mark.parametrize("text", ["", "modulepath: []\n", "# nothing\n", "modules: {}\n"])
def test_a_manifest_without_dependencies_needs_no_lock(text: str) -> None:
    assert read(text, None) == EMPTY


def test_a_manifest_reads_as_equal_in_canonical_and_other_form() -> None:
    own = manifest_of(WANTS).to_text({"ntp": "the time"})
    assert manifest_of(own) == manifest_of(WANTS)


def test_a_parsed_manifest_is_cached(tmp_path: Path) -> None:
    documents = Documents(tmp_path)
    for _ in range(2):
        for text in (WANTS, manifest_of(WANTS).to_text({})):
            files = make.release_files(documents)
            found = files.parse_manifest(text.encode(), "manifest.yaml")
            assert found == manifest_of(WANTS)
        documents.remember()
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(InvalidInputError, match=r"^manifest.yaml: modules.ntp.git"):
        manifest_of(WANTS.replace("https", "file"))


def test_a_lock_that_matches_its_manifest_is_read() -> None:
    assert read(WANTS, TEXT) == WHOLE


@pytest.mark.parametrize(
    ("manifest", "lock", "problem"),
    [
        (None, TEXT, r"web/tags/r1: there is no manifest.yaml"),
        (WANTS, None, r"there is no manifest.lock"),
        ("modulepath: [dist/tags/r7]\n", None, r"there is no manifest.lock"),
        (WANTS.partition("\n")[2], None, r"there is no manifest.lock"),
        ("modulepath: [dist/trunk]\n", TEXT, "dist/trunk is mutable"),
    ],
)
def test_a_missing_file_or_a_mutable_dependency_is_refused(
    manifest: str | None, lock: str | None, problem: str
) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        read(manifest, lock)


@pytest.mark.parametrize(
    ("manifest", "place"),
    [
        (WANTS.replace("v1", "v2"), "modules.ntp"),
        (WANTS.replace("tag: v1", "branch: main"), "modules.ntp"),
        (WANTS.replace("ntp:", "time:"), "modules.ntp"),
        (WANTS.replace("r7", "r8"), "sources.dist/tags/r7"),
        ("modulepath: [dist/tags/r7]\n", "modules.ntp"),
        (WANTS.partition("\n")[2], "sources.dist/tags/r7"),
        (WANTS + "  zsh: {git: 'https://git.example.net/zsh.git', tag: v1}\n", "modules.zsh"),
    ],
)
def test_a_lock_that_differs_from_its_manifest_is_refused(manifest: str, place: str) -> None:
    with pytest.raises(InvalidInputError, match=f"{APP}: {place}: manifest and lock disagree"):
        read(manifest, TEXT)


def test_a_lock_of_another_repository_is_refused() -> None:
    manifest = manifest_of(WANTS.replace("net/ntp", "net/evil"))
    with pytest.raises(InvalidInputError, match="name different repositories"):
        check_complete(manifest, WHOLE, where=APP)
    check_complete(manifest_of(WANTS), WHOLE, where=APP)
