"""The pipelines that publish packages: their calls and rights, and two jobs, run for real."""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.rigs.node import REPOSITORY, completed

GITHUB = ".github/workflows/packages.yml"
GITLAB = ".gitlab/packages.yml"
FORGES = (GITHUB, GITLAB)
# A call of a script of this project: its name and its words.
_CALL = re.compile(r"(?<![\w/])(scripts/[\w-]+)((?: +(?:\"[^\"]*\"|[^\s;&|)]+))*)")
_PINNED = re.compile(r"uses: [\w./-]+@[0-9a-f]{40} # v[0-9.]+")
_OF_GITLAB = {"default", "variables", "stages"}


def read(forge: str) -> dict[Any, Any]:
    pipeline: dict[Any, Any] = yaml.safe_load((REPOSITORY / forge).read_text())
    return pipeline


def jobs(forge: str) -> dict[str, Any]:
    pipeline = read(forge)
    if "jobs" in pipeline:
        return dict(pipeline["jobs"])
    return {name: job for name, job in pipeline.items() if name not in _OF_GITLAB}


def lines(job: Mapping[str, Any]) -> list[str]:
    """Return the shell texts of a job, in order."""
    return [
        *(step["run"] for step in job.get("steps", ()) if "run" in step),
        *job.get("script", ()),
    ]


def run(forge: str, job: str, directory: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a job's shell texts as a runner does, without those that install or build packages."""
    texts = [
        text
        for text in lines(jobs(forge)[job])
        if not text.startswith(("apt-get", "scripts/build wheel", "scripts/build packages"))
    ]
    base = {"HOME": str(directory.parent), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    return subprocess.run(
        ["/bin/bash", "-eo", "pipefail", "-c", "\n".join(texts)],
        cwd=directory,
        env={**base, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("forge", FORGES)
def test_a_pipeline_calls_scripts_and_options_that_exist(forge: str) -> None:
    called = set()
    for job in jobs(forge).values():
        for text in lines(job):
            assert completed("bash", "-n", given=text).code == 0
            for script, words in _CALL.findall(text):
                source = (REPOSITORY / script).read_text()
                assert os.access(REPOSITORY / script, os.X_OK)
                called.add(" ".join([script, *words.split()[:1]]))
                for option in re.findall(r"(?<= )--[\w-]+", words):
                    assert re.search(rf"{option}\b", source), f"{script} has no {option}"
    usage = (REPOSITORY / "scripts/build").read_text()
    for verb in ("wheel", "packages", "repositories"):
        assert f"scripts/build {verb}" in called
        assert re.search(rf"^#   scripts/build {verb}\b", usage, re.MULTILINE)
    assert {'scripts/release "$version"', "scripts/setup check"} <= called


def test_github_gives_each_job_the_least_rights() -> None:
    text = (REPOSITORY / GITHUB).read_text()
    assert re.findall(r"uses: .*", text) == _PINNED.findall(text), "a tag of an action can move"
    assert read(GITHUB)["permissions"] == {}
    for name, job in jobs(GITHUB).items():
        writes = {right for right, access in job["permissions"].items() if access == "write"}
        assert writes == ({"contents", "id-token", "pages"} if name == "publish" else set())
        assert ("secrets." in yaml.safe_dump(job)) == (name == "sign")
        checkouts = [step for step in job["steps"] if "actions/checkout" in step.get("uses", "")]
        assert all(step["with"] == {"persist-credentials": False} for step in checkouts)


@pytest.mark.parametrize("forge", FORGES)
def test_only_the_job_that_signs_has_the_key_and_it_has_an_environment(forge: str) -> None:
    named = {name for name, job in jobs(forge).items() if "REPOSITORY_KEY" in yaml.safe_dump(job)}
    assert named == {"sign"}
    assert jobs(forge)["sign"]["environment"] == "packages"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of a project with a signed tag v1, and `dist` with its two files."""
    origin, work = tmp_path / "origin", tmp_path / "work"
    for name in ("releases", "stranger"):
        completed("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name)
    signers = origin / "docs/contribute/release-signers"
    signers.parent.mkdir(parents=True)
    signers.write_text(f"releases@example.com {(tmp_path / 'releases.pub').read_text()}")
    git(origin, "init", "-q", "-b", "main")
    git(origin, "add", "-A")
    git(origin, "commit", "-q", "-m", "begin")
    git(tmp_path, "clone", "-q", origin, work)
    (work / "dist").mkdir()
    for name in ("localpuppet.deb", "localpuppet.whl"):
        (work / "dist" / name).write_text(name)
    sums = completed("sha256sum", "localpuppet.deb", "localpuppet.whl", cwd=work / "dist").out
    tag(origin, "v1", sums, key=tmp_path / "releases")
    tag(origin, "v2", sums, key=tmp_path / "stranger")
    # What a forge checks out: the commit under the name of the tag.
    for name in ("v1", "v2"):
        git(work, "tag", name)
    return work


def git(directory: Path, *words: str | Path) -> None:
    person = ("-c", "user.name=releases", "-c", "user.email=releases@example.com")
    completed("git", *person, *words, cwd=directory)


def tag(origin: Path, name: str, sums: str, *, key: Path) -> None:
    signing = ("-c", "gpg.format=ssh", "-c", f"user.signingkey={key}")
    git(origin, *signing, "tag", "--sign", "--cleanup=verbatim", "-m", f"Notes.\n\n{sums}", name)


@pytest.mark.parametrize("forge", FORGES)
def test_only_files_that_a_maintainer_has_signed_pass(forge: str, checkout: Path) -> None:
    def build(name: str) -> int:
        return run(forge, "build", checkout, TAG=name, CI_COMMIT_TAG=name).returncode

    done = run(forge, "build", checkout, TAG="v1", CI_COMMIT_TAG="v1")
    assert done.returncode == 0, done.stderr
    (checkout / "dist/SHA256SUMS").unlink()
    assert build("v2") != 0, "a stranger has signed this tag"
    more = checkout / "dist/more.deb"
    more.touch()
    assert build("v1") != 0, "the tag does not name this file"
    more.unlink()
    assert build("v1") == 0
    (checkout / "dist/SHA256SUMS").unlink()
    (checkout / "dist/localpuppet.deb").write_text("other bytes")
    assert build("v1") != 0


@pytest.fixture
def secret(tmp_path: Path) -> Iterator[str]:
    """The private key of a repository, as a forge keeps it."""
    home = tmp_path / "gpg"
    home.mkdir(mode=0o700)
    env = {**os.environ, "GNUPGHOME": str(home)}
    words = ("--batch", "--passphrase", "")
    completed("gpg", *words, "--quick-generate-key", "packages@example.com", env=env)
    yield completed("gpg", *words, "--armor", "--export-secret-keys", env=env).out
    completed("gpgconf", "--kill", "all", env=env)


def sign(forge: str, work: Path, secret: str) -> subprocess.CompletedProcess[str]:
    """Run the job `sign` with a key, which GitLab has in a file."""
    key = secret
    if forge == GITLAB:
        (work / "key").write_text(secret)
        key = str(work / "key")
    return run(forge, "sign", work, REPOSITORY_KEY=key)


@pytest.mark.parametrize("forge", FORGES)
def test_the_job_that_signs_makes_a_repository_of_the_key_and_none_without(
    forge: str, secret: str, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    (work / "tree/DEBIAN").mkdir(parents=True)
    about = "Package: localpuppet\nVersion: 1+deb12\nArchitecture: amd64\nMaintainer: x <x@y>\n"
    (work / "tree/DEBIAN/control").write_text(f"{about}Description: x\n")
    (work / "dist").mkdir()
    package = work / "dist/localpuppet_1+deb12_amd64.deb"
    completed("dpkg-deb", "--build", work / "tree", package)
    package.with_name(f"{package.name}.cdx.json").write_text("{}")
    (work / "scripts").symlink_to(REPOSITORY / "scripts")

    assert sign(forge, work, "no key").returncode != 0
    assert not (work / "public").exists()
    done = sign(forge, work, secret)
    assert done.returncode == 0, done.stderr
    reader = tmp_path / "reader"
    reader.mkdir(mode=0o700)
    verifying = ("gpg", "--batch", "--no-autostart", "--homedir", reader)
    completed(*verifying, "--import", work / "public/localpuppet.asc")
    completed(*verifying, "--verify", work / "public/apt/dists/deb12/InRelease")
