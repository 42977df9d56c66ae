"""The corpus of hostile locks, tag names, URLs and repositories, with real git."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.base.formats.documents import Documents
from localpuppet.node.enc.input import read_enc
from localpuppet.node.releases.git.git_names import GitUrl, Tag
from localpuppet.node.releases.release_files import ReleaseFiles, to_text
from localpuppet.node.releases.store import Store, check_link, check_path
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
    import re

    assert re.search(case["message"], str(refused.value), re.IGNORECASE), refused.value
    assert "hunter2" not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not PWNED.exists()


def test_every_case_of_these_kinds_is_run() -> None:
    kinds = [case["kind"] for case in CASES]
    assert [kinds.count(kind) for kind in ("lock", "git_tag", "git_url", "git_repo")] == [
        9,
        6,
        7,
        9,
    ]


@pytest.mark.parametrize("case", cases("lock"))
def test_a_lock_of_the_corpus_is_accepted_or_refused(case: dict[str, Any]) -> None:
    def parse() -> None:
        lock = ReleaseFiles(
            documents=Documents(None), allow_file=False, read_enc=read_enc
        ).parse_lock(content(case), "manifest.lock")
        again = ReleaseFiles(
            documents=Documents(None), allow_file=False, read_enc=read_enc
        ).parse_lock(to_text(lock).encode(), "x")
        assert again == lock

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


@pytest.mark.parametrize("case", cases("git_repo"))
def test_a_repository_of_the_corpus_is_accepted_or_refused(
    node: Node, tmp_path: Path, ssh_keys: dict[str, str], case: dict[str, Any]
) -> None:
    subprocess.run(["/bin/sh", "-c", case["input"]], cwd=tmp_path, env=ssh_keys, check=True)
    node.settings(
        allow_file_urls=True,
        sources={
            "up": {
                "git": f"file://{tmp_path}/up",
                "require_signed": True,
                "signers": f"{tmp_path}/allowed_signers",
                "unnamed_tags": "accept",
            }
        },
    )
    node.write("work/manifest.yaml", "modulepath: [up/tags/r1]\n")
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


def test_a_signers_file_that_others_can_write_is_refused(
    node: Node, tmp_path: Path, ssh_keys: dict[str, str]
) -> None:
    subprocess.run(
        [
            "/bin/sh",
            "-ec",
            "git init -q up; cd up; echo > manifest.yaml; git add .;"
            " git commit -qm r1; git tag -s -m r1 r1",
        ],
        cwd=tmp_path,
        env=ssh_keys,
        check=True,
    )
    signers = tmp_path / "allowed_signers"
    source = {
        "git": f"file://{tmp_path}/up",
        "require_signed": True,
        "signers": str(signers),
        "unnamed_tags": "accept",
    }
    node.settings(allow_file_urls=True, sources={"up": source})
    node.write("work/manifest.yaml", "modulepath: [up/tags/r1]\n")
    signers.chmod(0o666)
    done = node.run("release", "lock", str(node.root / "work"))
    assert done.code == 2, done.err
    assert f"{signers}: is writable by others" in done.err
    signers.chmod(0o644)
    assert node.run("release", "lock", str(node.root / "work")).code == 0


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


def test_a_tag_with_an_openpgp_signature_is_accepted_only_with_its_key(
    node: Node, tmp_path: Path
) -> None:
    home = tmp_path / "gnupg"
    home.mkdir(mode=0o700)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GNUPGHOME": str(home)}

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        for name in ("release", "other"):
            run(
                *["gpg", "--batch", "--passphrase", "", "--quick-generate-key"],
                *[f"{name}@example.net", "ed25519", "sign", "0"],
            )
            (tmp_path / f"{name}.asc").write_text(
                run("gpg", "--armor", "--export", f"{name}@example.net")
            )
        identity = ["-c", "user.name=R", "-c", "user.email=release@example.net"]
        run("git", "init", "-q", "up")
        (tmp_path / "up/init.pp").write_text("class up {}\n")
        git = ["git", "-C", "up", *identity]
        run(*git, "add", "-A")
        run(*git, "commit", "-qm", "a")
        run(*git, "-c", "user.signingkey=release@example.net", "tag", "-s", "-m", "r1", "r1")
        node.write("work/manifest.yaml", "modulepath: [up/tags/r1]\n")
        for key, code in (("release", 0), ("other", 3)):
            source = {
                "git": f"file://{tmp_path}/up",
                "require_signed": True,
                "unnamed_tags": "accept",
            }
            node.settings(
                allow_file_urls=True,
                sources={"up": {**source, "signers": f"{tmp_path}/{key}.asc"}},
            )
            done = node.run("release", "lock", str(node.root / "work"))
            assert done.code == code, done.err
    finally:
        run("gpgconf", "--kill", "gpg-agent")


def test_a_tag_object_with_another_name_is_refused(
    node: Node, tmp_path: Path, ssh_keys: dict[str, str]
) -> None:
    script = (
        "git init -q up; cd up; echo x > init.pp; git add -A; git commit -qm a;"
        "git tag -s -m r0 r0; git update-ref refs/tags/r1 $(git rev-parse refs/tags/r0)"
    )
    subprocess.run(["/bin/sh", "-ec", script], cwd=tmp_path, env=ssh_keys, check=True)
    node.settings(allow_file_urls=True, sources={"up": {"git": f"file://{tmp_path}/up"}})
    node.write("work/manifest.yaml", "modulepath: [up/tags/r1]\n")
    done = node.run("release", "lock", str(node.root / "work"))
    assert done.code == 3
    assert "says that its name is 'r0'" in done.err


def test_a_chain_of_links_that_leads_outside_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    tree = store.staging() / "0"
    (tree / "deep/er").mkdir(parents=True)
    (tree / "top").mkdir()
    (tree / "deep/er/d").symlink_to("../../top")
    (tree / "deep/er/x").symlink_to("d/../../../secret")
    with pytest.raises(IntegrityError, match="outside the tree"):
        store.add([("evil", tree)])
    (tree / "deep/er/x").unlink()
    (tree / "deep/er/x").symlink_to("d/../../secret")
    with pytest.raises(IntegrityError, match="outside the tree"):
        store.add([("evil", tree)])
    assert store.digests() == []


@pytest.mark.parametrize("path", [b"a/../b", b".git/config", b"a/.GIT/x", b"a\nb", b"x\x1b[31m"])
def test_a_hostile_name_in_a_tree_is_refused(path: bytes) -> None:
    with pytest.raises(IntegrityError):
        check_path(path, where="t")


@pytest.mark.parametrize("target", [b"/etc/shadow", b"../../x", b"", b"a\nb"])
def test_a_hostile_link_in_a_tree_is_refused(target: bytes) -> None:
    with pytest.raises(IntegrityError):
        check_link(b"a/b", target, where="t")


@pytest.mark.parametrize("text", ["hunter2:x@host/repo", "git@hunter2 0123456:x", "hunter2"])
def test_the_error_does_not_repeat_a_refused_url(text: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        GitUrl.parse(text, where="sources.foo.git")
    assert "hunter2" not in str(caught.value)
    assert "sources.foo.git" in str(caught.value)
