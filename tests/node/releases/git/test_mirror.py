"""A fetch has a limit of bytes, and a failed fetch leaves no objects."""

import os
from pathlib import Path

import pytest

from localpuppet.base.errors import IntegrityError, StateError
from localpuppet.node.releases.git.mirrors import Git
from localpuppet.node.releases.git.program import GitProgram
from localpuppet.node.releases.limits import GitLimits
from tests.rigs.forge import Forge, Repo

LIMIT = 100_000


@pytest.fixture
def web(tmp_path: Path) -> Repo:
    """A repository with a small release and a large one that cannot be compressed."""
    repo = Forge(tmp_path / "forge").repo("web")
    repo.commit({"manifest.yaml": "modulepath: []\n"}, "small")
    (repo.path / "noise").write_bytes(os.urandom(3 * LIMIT))
    repo.commit({}, "large")
    return repo


def mirrors(tmp_path: Path, limits: GitLimits) -> Git:
    return Git(
        tmp_path / "mirrors",
        GitProgram(env=os.environ, allow_file=True, timeout=60, limits=limits),
    )


def packs(tmp_path: Path) -> list[str]:
    return sorted(path.name[:4] for path in (tmp_path / "mirrors").glob("*/objects/pack/*"))


def test_a_fetch_above_the_limit_is_refused(web: Repo, tmp_path: Path) -> None:
    git = mirrors(tmp_path, GitLimits(fetched=LIMIT))
    git.fetch([(web.url, "small")], refresh=False)
    before = packs(tmp_path)
    with pytest.raises(IntegrityError, match=f"sent more than {LIMIT} bytes"):
        git.fetch([(web.url, "large")], refresh=False)
    assert packs(tmp_path) == before, "the partial pack is removed"
    commit = web.git("rev-parse", "large^{commit}")
    with pytest.raises(IntegrityError, match="sent more than"):
        git.fetch_commits([(web.url, commit)])
    assert git.tag(web.url, "small").annotated


def test_a_fetch_keeps_the_configured_free_space(web: Repo, tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    free = disk.f_bavail * disk.f_frsize
    with pytest.raises(StateError, match="MiB are free"):
        mirrors(tmp_path, GitLimits(min_free=2 * free)).fetch([(web.url, "small")], refresh=False)
    git = mirrors(tmp_path, GitLimits(parallel=free // LIMIT))
    with pytest.raises(IntegrityError, match="what the disk has to spare"):
        git.fetch([(web.url, "large")], refresh=False)
