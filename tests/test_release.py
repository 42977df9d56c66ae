"""scripts/release and scripts/commits: what a release needs before anybody publishes it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.rigs.node import REPOSITORY

# Replaces the real build, which takes minutes: it writes the same bytes each time, or others.
SAME_BYTES = 'echo "$1" >"$2/localpuppet-0.1.0.$1"'
OTHER_BYTES = 'mktemp -u >"$2/localpuppet-0.1.0.$1"'


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False
    )


def commit(project: Path, subject: str) -> None:
    run("git", "add", "-A", cwd=project)
    done = run("git", "commit", "-q", "--allow-empty", "-m", subject, cwd=project)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small project with the real scripts, a signing key and a changelog of 0.1.0."""
    project = tmp_path / "project"
    (project / "scripts").mkdir(parents=True)
    for name in ("release", "commits"):
        shutil.copy(REPOSITORY / "scripts" / name, project / "scripts")
    write_build(project, SAME_BYTES)
    (project / "localpuppet").mkdir()
    (project / "localpuppet/__init__.py").write_text('__version__ = "0.1.0"\n')
    (project / "CHANGELOG.md").write_text("# Changes\n\n## 0.1.0 (2026-12-01)\n\n- First.\n")
    key = tmp_path / "key"
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key, cwd=tmp_path)
    public = key.with_suffix(".pub").read_text()
    (tmp_path / "signers").write_text(f"releases@example.com {public}")
    run("git", "init", "-q", "-b", "main", cwd=project)
    for name, value in {
        "user.name": "Releases",
        "user.email": "releases@example.com",
        "gpg.format": "ssh",
        "user.signingkey": str(key),
        "gpg.ssh.allowedSignersFile": str(tmp_path / "signers"),
    }.items():
        run("git", "config", name, value, cwd=project)
    commit(project, "project: begin")
    return project


def write_build(project: Path, body: str) -> None:
    script = project / "scripts/build"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)


def release(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run("scripts/release", *arguments, cwd=project)


def test_a_release_signs_notes_and_checksums_with_its_tag(project: Path, tmp_path: Path) -> None:
    done = release(project, "0.1.0", str(tmp_path / "out"), "--tag")
    assert done.returncode == 0, done.stderr
    message = run("git", "tag", "-l", "--format=%(contents)", "v0.1.0", cwd=project).stdout
    sums = (tmp_path / "out/SHA256SUMS").read_text()
    assert len(sums.splitlines()) == 2
    assert "- First." in message
    assert sums in message
    assert run("git", "verify-tag", "v0.1.0", cwd=project).returncode == 0


def test_a_release_is_refused_if_two_builds_differ(project: Path, tmp_path: Path) -> None:
    write_build(project, OTHER_BYTES)
    commit(project, "build: write other bytes")
    done = release(project, "0.1.0", str(tmp_path / "out"), "--tag")
    assert (done.returncode, "differ" in done.stderr) == (2, True)
    assert run("git", "tag", cwd=project).stdout == ""


@pytest.mark.parametrize(
    ("prepare", "arguments", "message"),
    [
        ("touch new", ("0.1.0", "OUT"), "the work tree has changes"),
        ("true", ("0.2.0", "OUT"), "has version 0.1.0"),
        ("mkdir -p OUT/old", ("0.1.0", "OUT"), "is not empty"),
        ("true", ("0.1.0",), "VERSION or DIRECTORY missing"),
        ("true", ("0.1.0", "OUT", "--push"), "unknown option --push"),
        ("git tag v0.1.0", ("0.1.0", "OUT", "--tag"), "tag v0.1.0 exists"),
        (
            "mkdir changelog.d; echo - > changelog.d/+x.node.md; git add .; git commit -qm 'x: y'",
            ("0.1.0", "OUT", "--tag"),
            "changelog.d still has entries",
        ),
        (
            "sed -i s/0.1.0/0.0.9/ CHANGELOG.md; git commit -qam 'x: y'",
            ("0.1.0", "OUT", "--tag"),
            "the changelog has no section for 0.1.0",
        ),
    ],
)
def test_a_release_is_refused_with_a_reason(
    project: Path, tmp_path: Path, prepare: str, arguments: tuple[str, ...], message: str
) -> None:
    out = str(tmp_path / "out")
    assert run("sh", "-c", prepare.replace("OUT", out), cwd=project).returncode == 0
    done = release(project, *(argument.replace("OUT", out) for argument in arguments))
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("subject", "code"),
    [
        ("rollout: reject checkpoints with an out-of-range epoch", 0),
        ("base, node: raise disk errors through one context manager", 0),
        ("Fix bug", 1),
        ("rollout: reject checkpoints.", 1),
        (f"rollout: {'x' * 64}", 1),
    ],
)
def test_the_check_of_commit_subjects(project: Path, subject: str, code: int) -> None:
    commit(project, subject)
    assert run("scripts/commits", "HEAD~1..HEAD", cwd=project).returncode == code


def test_each_changelog_entry_is_short_and_links_to_its_page() -> None:
    for entry in (REPOSITORY / "changelog.d").glob("*.md"):
        text = entry.read_text()
        pages = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
        assert pages, f"{entry.name}: link to the page of the change: ([page](docs/how-to/x.md))"
        missing = [page for page in pages if not (REPOSITORY / page).exists()]
        assert missing == [], f"{entry.name}: link to pages that exist"
        assert len(text.split()) <= 25, f"{entry.name}: shorten it to 25 words"
