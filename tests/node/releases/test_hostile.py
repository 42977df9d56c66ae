"""The corpus of hostile locks, tag names, URLs and repositories, with real git."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.node.releases.git.git_names import GitUrl, Tag
from localpuppet.node.releases.manifest import to_text
from localpuppet.node.releases.store import check_link, check_path
from tests.node import make
from tests.rigs.bad_inputs import CASES
from tests.rigs.node import Node
from tests.test_bad_inputs import cases, content, judge

PWNED = Path("/tmp/localpuppet-pwned")


def verdict(case: dict[str, Any], action: Any) -> None:
    if case["expect"] == "accept":
        action()
        return
    with pytest.raises(InvalidInputError) as refused:
        action()
    assert re.search(case["message"], str(refused.value), re.IGNORECASE), refused.value
    assert "hunter2" not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not PWNED.exists()


def test_every_case_of_these_kinds_is_run() -> None:
    kinds = [case["kind"] for case in CASES]
    known = {kind: kinds.count(kind) for kind in ("lock", "git_tag", "git_url", "git_repo")}
    assert known == {"lock": 9, "git_tag": 6, "git_url": 7, "git_repo": 9}


@pytest.mark.parametrize("case", cases("lock"))
def test_a_lock_of_the_corpus_is_accepted_or_refused(case: dict[str, Any]) -> None:
    def parse() -> None:
        lock = make.release_files().parse_lock(content(case), "manifest.lock")
        assert make.release_files().parse_lock(to_text(lock).encode(), "x") == lock

    verdict(case, parse)


@pytest.mark.parametrize("case", cases("git_tag"))
def test_a_tag_name_of_the_corpus_is_accepted_or_refused(case: dict[str, Any]) -> None:
    verdict(case, lambda: Tag.parse(str(case["input"]), where="tag"))


@pytest.mark.parametrize("case", cases("git_url"))
def test_a_url_of_the_corpus_is_accepted_or_refused(case: dict[str, Any]) -> None:
    verdict(case, lambda: GitUrl.parse(str(case["input"]), where="git"))


@pytest.fixture
def ssh_keys(tmp_path: Path) -> dict[str, str]:
    """Make a release key and another key; return the environment in which git signs."""
    for name in ("k1", "k2"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", tmp_path / name],
            check=True,
        )
    public = (tmp_path / "k1.pub").read_text()
    (tmp_path / "allowed_signers").write_text(f"release@example.net {public}")
    (tmp_path / ".gitconfig").write_text(
        "[user]\nname = Release\nemail = release@example.net\n"
        f"signingkey = {tmp_path}/k1\n[gpg]\nformat = ssh\n"
    )
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}


def signed_source(node: Node, directory: Path) -> None:
    """Configure a source that requires signatures, and write a manifest that needs its r1."""
    source = {
        "git": f"file://{directory}/up",
        "require_signed": True,
        "signers": f"{directory}/allowed_signers",
        "unnamed_tags": "accept",
    }
    node.settings(allow_file_urls=True, sources={"up": source})
    node.write("work/manifest.yaml", "modulepath: [up/tags/r1]\n")


@pytest.mark.parametrize("case", cases("git_repo"))
def test_a_repository_of_the_corpus_is_accepted_or_refused(
    node: Node, tmp_path: Path, ssh_keys: dict[str, str], case: dict[str, Any]
) -> None:
    subprocess.run(["/bin/sh", "-c", case["input"]], cwd=tmp_path, env=ssh_keys, check=True)
    signed_source(node, tmp_path)
    if case["id"] == "gr-moved":
        lock_first_commit(node, tmp_path / "up", ssh_keys)
    done = node.run("release", "lock", str(node.root / "work"))
    judge(case, done)
    objects = sorted((node.state / "objects").glob("*"))
    if case["expect"] == "reject":
        # A tag of a tag is no alarm: its message names the commit to pin.
        assert done.code == (2 if case["id"] == "gr-tag-of-tag" else 3)
        assert objects == []
    else:
        modes = {path.stat().st_mode & 0o7777 for path in objects[0].rglob("*") if path.is_file()}
        assert modes <= {0o444, 0o555}


def lock_first_commit(node: Node, repository: Path, env: dict[str, str]) -> None:
    log = subprocess.run(
        ["git", "rev-list", "--reverse", "HEAD"],
        cwd=repository,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    first = log.stdout.split()[0]
    node.write(
        "work/manifest.lock",
        "version: 1\nsources:\n  up/tags/r1:\n"
        f"    url: file://{repository}\n    tag: r1\n    tag_object: '{first}'\n"
        f"    commit: '{first}'\n    tree_sha256: {'a' * 64}\n",
    )


def test_a_hostile_name_or_link_in_a_tree_is_refused() -> None:
    for path in (b"a/../b", b".git/config", b"a/.GIT/x", b"a\nb", b"x\x1b[31m"):
        with pytest.raises(IntegrityError):
            check_path(path, where="t")
    for target in (b"/etc/shadow", b"../../x", b"", b"a\nb"):
        with pytest.raises(IntegrityError):
            check_link(b"a/b", target, where="t")


@pytest.mark.parametrize("text", ["hunter2:x@host/repo", "git@hunter2 0123456:x", "hunter2"])
def test_the_error_does_not_repeat_a_refused_url(text: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        GitUrl.parse(text, where="sources.foo.git")
    assert "hunter2" not in str(caught.value)
    assert "sources.foo.git" in str(caught.value)
