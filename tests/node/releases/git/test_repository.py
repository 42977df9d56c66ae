"""The contract of `Repository`, for real git repositories and for the double in memory."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from localpuppet.base.errors import IntegrityError, InvalidInputError, StateError, UnavailableError
from localpuppet.node.releases.git.git_names import TagObject, judge
from localpuppet.node.releases.git.mirrors import Git
from localpuppet.node.releases.limits import MAX_TAG_SUBJECT, Budget, Limits
from tests.doubles.repository import FakeRepository, FakeServers
from tests.node import make
from tests.rigs.forge import Forge

FILES = {
    "manifest.yaml": b"modulepath: []\n",
    "web/manifests/init.pp": b"class web {}\n",
    "files/bytes": bytes(range(256)),
    "files/dos.txt": b"one\r\ntwo\r\n",
    "files/empty": b"",
}
COMMITTED = 1_795_176_000  # 2026-11-20T12:00:00Z


class GitHost:
    """Git repositories on disk, and machines with mirrors of them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._forge = Forge(root / "forge")
        self._machines = 0

    def url(self, name: str) -> str:
        return f"file://{self._forge.path / name}"

    def publish(
        self,
        name: str,
        tag: str,
        files: Mapping[str, bytes] = FILES,
        *,
        annotated: bool = True,
        signer: str = "",
    ) -> None:
        repo = self._forge.repo(name)
        for path in repo.path.iterdir():
            if path.name != ".git":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for file, data in files.items():
            (repo.path / file).parent.mkdir(parents=True, exist_ok=True)
            (repo.path / file).write_bytes(data)
        repo.commit({})
        key = ["-c", "gpg.format=ssh", "-c", f"user.signingkey={self._key(signer)}"]
        if signer:
            repo.git(*key, "tag", "-f", "-s", "-m", tag, tag)
        elif annotated:
            repo.git("tag", "-f", "-a", "-m", tag, tag)
        else:
            repo.git("tag", "-f", tag)

    def countersign(self, name: str, tag: str, signer: str) -> None:
        repo = self._forge.repo(name)
        key = ["-c", "gpg.format=ssh", "-c", f"user.signingkey={self._key(signer)}"]
        text = f"signs\n\nLocalpuppet-Source: {name}"
        repo.git(*key, "tag", "-f", "-s", "-m", text, f"signatures/{tag}", f"refs/tags/{tag}")
        made = repo.git("rev-parse", f"refs/tags/signatures/{tag}")
        repo.git("update-ref", f"refs/signatures/{tag}/{made}", made)

    def _key(self, name: str) -> Path:
        key = self._root / f"key-{name}"
        if name and not key.exists():
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(key)]
            subprocess.run(words, check=True)
        return key

    def go_away(self, name: str) -> None:
        shutil.rmtree(self._forge.path / name)

    def signers(self, *names: str) -> Path:
        public = {name: self._key(name).with_suffix(".pub").read_text() for name in names}
        file = self._root / f"signers-{'-'.join(names)}"
        file.write_text("".join(f"{name} {key}" for name, key in public.items()))
        return file

    def machine(self) -> Git:
        self._machines += 1
        env = {"PATH": os.environ["PATH"], "HOME": str(self._root)}
        return make.git(self._root / f"mirrors-{self._machines}", env=env)


class MemoryHost:
    """The double of `tests.doubles.repository`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._servers = FakeServers()

    def url(self, name: str) -> str:
        return f"https://git.example.net/{name}.git"

    def publish(
        self,
        name: str,
        tag: str,
        files: Mapping[str, bytes] = FILES,
        *,
        annotated: bool = True,
        signer: str = "",
    ) -> None:
        self._servers.publish(
            self.url(name), tag, files, annotated=annotated, signer=signer, time=COMMITTED
        )

    def countersign(self, name: str, tag: str, signer: str) -> None:
        self._servers.countersign(self.url(name), tag, signer)

    def go_away(self, name: str) -> None:
        self._servers.away.add(self.url(name))

    def signers(self, *names: str) -> Path:
        file = self._root / f"signers-{'-'.join(names)}"
        file.write_text(" ".join(names))
        return file

    def machine(self) -> FakeRepository:
        return FakeRepository(self._servers)


Host = GitHost | MemoryHost
UNKNOWN = "1234567890" * 4


@pytest.fixture(params=[GitHost, MemoryHost])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    made: Host = request.param(tmp_path)
    return made


def fetched(host: Host, name: str = "web", tag: str = "r1") -> tuple[Git, TagObject]:
    repository = host.machine()
    repository.fetch([(host.url(name), tag)], refresh=False)
    return repository, repository.tag(host.url(name), tag)


def written(
    host: Host, repository: Git, tree: str, directory: Path, name: str = "web"
) -> dict[str, bytes]:
    directory.mkdir()
    assert list(repository.write([(host.url(name), tree, "tree")], directory, Budget())) == ["tree"]
    top = directory / "tree"
    return {
        str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()
    }


class TestRepository:
    """The behaviour that callers of the port rely on."""

    def test_a_fetched_tag_is_an_object_a_commit_and_a_tree(self, host: Host) -> None:
        host.publish("web", "r1")
        _, found = fetched(host)
        ids = {found.id, found.commit, found.tree}
        assert (len(ids), found.annotated, found.subject) == (3, True, "r1")
        assert all(re.fullmatch("[0-9a-f]{40}", one) for one in ids)
        host.publish("web", "light", annotated=False)
        _, found = fetched(host, tag="light")
        assert (found.id, found.annotated) == (found.commit, False)

    def test_a_tag_is_the_same_everywhere_and_a_tree_only_its_files(self, host: Host) -> None:
        host.publish("web", "r1")
        assert fetched(host)[1] == fetched(host)[1]
        host.publish("copy", "v2")
        host.publish("other", "r1", {**FILES, "files/empty": b"no"})
        trees = [fetched(host, *which)[1].tree for which in (("web", "r1"), ("copy", "v2"))]
        assert trees[0] == trees[1] != fetched(host, "other")[1].tree

    def test_a_tag_is_unavailable_before_a_fetch_or_named_if_missing(self, host: Host) -> None:
        host.publish("web", "r1")
        repository = host.machine()
        with pytest.raises(UnavailableError, match="was not downloaded"):
            repository.tag(host.url("web"), "r1")
        repository.fetch([(host.url("web"), "r1")], refresh=False)
        with pytest.raises(UnavailableError, match="was not downloaded"):
            repository.tags([(host.url("web"), "r1"), (host.url("web"), "r2")])
        for refresh in (False, True):
            with pytest.raises(InvalidInputError, match="r2"):
                repository.fetch([(host.url("web"), "r2")], refresh=refresh)

    def test_only_a_refresh_finds_a_moved_tag(self, host: Host, tmp_path: Path) -> None:
        host.publish("web", "r1")
        repository, before = fetched(host)
        host.publish("web", "r1", {"moved": b""})
        repository.fetch([(host.url("web"), "r1")], refresh=False)
        assert repository.tag(host.url("web"), "r1") == before
        repository.fetch([(host.url("web"), "r1")], refresh=True)
        after = repository.tag(host.url("web"), "r1")
        assert after.id != before.id
        assert after.commit != before.commit
        assert after.tree != before.tree
        assert written(host, repository, before.tree, tmp_path / "out") == FILES
        host.go_away("web")
        repository.fetch([(host.url("web"), "r1")], refresh=False)

    def test_an_unreachable_repository_does_not_affect_others(self, host: Host) -> None:
        for name in ("web", "gone"):
            host.publish(name, "r1")
        repository, before = fetched(host)
        wanted = [(host.url(name), "r1") for name in ("web", "gone")]
        host.go_away("gone")
        with pytest.raises(UnavailableError, match="gone"):
            repository.fetch(wanted, refresh=True)
        assert repository.tag(host.url("web"), "r1") == before

    def test_each_tag_of_many_repositories_arrives_once(self, host: Host) -> None:
        names = [f"m{number}" for number in range(12)]
        for name in names:
            host.publish(name, "v1", {"name": name.encode()})
        host.publish("m0", "v2", {"name": b"m0 v2"})
        repository, _ = fetched(host, "m3", "v1")
        wanted = [(host.url(name), "v1") for name in names] + [(host.url("m0"), "v2")]
        came = [
            ref for some in repository.arrivals([*wanted, wanted[0]], refresh=False) for ref in some
        ]
        assert sorted(came) == sorted(wanted)
        found = repository.tags(wanted)
        assert found == {ref: repository.tag(*ref) for ref in wanted}
        assert len({one.tree for one in found.values()}) == len(wanted)

    def test_an_arrived_tag_can_be_used_before_the_others_arrive(self, host: Host) -> None:
        for name in ("web", "other"):
            host.publish(name, "r1")
        repository = host.machine()
        wanted = [(host.url(name), "r1") for name in ("web", "other")]
        arrivals = repository.arrivals(wanted, refresh=True)
        first = next(arrivals)
        assert set(first) <= set(wanted)
        assert set(repository.tags(first)) == set(first)
        arrivals.close()

    def test_empty_requests_ask_no_server(self, host: Host, tmp_path: Path) -> None:
        repository = host.machine()
        repository.fetch([], refresh=True)
        assert (repository.tags([]), repository.refs([])) == ({}, {})
        assert list(repository.write([], tmp_path, Budget())) == []

    def test_each_tree_is_written_into_its_directory(self, host: Host, tmp_path: Path) -> None:
        names = [f"m{number}" for number in range(12)]
        for name in names:
            host.publish(name, "v1", {"name": name.encode()})
        repository = host.machine()
        wanted = [(host.url(name), "v1") for name in names]
        repository.fetch(wanted, refresh=False)
        found = repository.tags(wanted)
        out = tmp_path / "out"
        out.mkdir()
        trees = [(url, found[url, tag].tree, f"d{i}") for i, (url, tag) in enumerate(wanted)]
        for directory in (whole := repository.write(trees, out, Budget())):
            number = int(directory[1:])
            assert (out / directory / "name").read_bytes() == names[number].encode()
            names[number] = ""
        whole.close()
        assert set(names) == {""}, "each tree was written once"

    def test_files_at_the_top_are_read_without_missing_ones(self, host: Host) -> None:
        limit = 1024 * 1024
        files = {"dir/file": b"", "large": bytes(limit + 1), "largest": bytes(limit)}
        host.publish("web", "r1", files)
        repository, found = fetched(host)
        for name in ("dir", "large"):
            with pytest.raises(IntegrityError, match="ordinary file"):
                repository.files(host.url("web"), found.commit, [name])
        read = repository.files(host.url("web"), found.commit, ["largest", "manifest.lock"])
        assert {name: len(data) for name, data in read.items()} == {"largest": limit}
        assert repository.files(host.url("web"), found.commit, ["manifest.lock"]) == {}

    def test_a_missing_commit_or_tree_is_refused(self, host: Host, tmp_path: Path) -> None:
        host.publish("web", "r1")
        repository, found = fetched(host)
        assert repository.commit_time(host.url("web"), found.commit) == COMMITTED
        with pytest.raises(IntegrityError):
            repository.commit_time(host.url("web"), UNKNOWN)
        with pytest.raises(IntegrityError):
            repository.files(host.url("web"), UNKNOWN, ["manifest.yaml"])
        with pytest.raises(IntegrityError):
            list(repository.write([(host.url("web"), UNKNOWN, "tree")], tmp_path, Budget()))

    def test_refs_are_listed_without_a_fetch(self, host: Host) -> None:
        host.publish("web", "r1")
        host.publish("web", "r2", {"other": b""}, annotated=False)
        host.publish("other", "v1")
        repository = host.machine()
        refs = repository.refs([host.url("web"), host.url("other")])
        tags = {name for name in refs[host.url("web")] if name.startswith("refs/tags/")}
        assert tags == {"refs/tags/r1", "refs/tags/r2"}
        with pytest.raises(UnavailableError, match="was not downloaded"):
            repository.tag(host.url("web"), "r1")
        for tag in ("r1", "r2"):
            _, found = fetched(host, "web", tag)
            assert refs[host.url("web")][f"refs/tags/{tag}"] == found.commit
        host.go_away("other")
        with pytest.raises(UnavailableError, match="other"):
            repository.refs([host.url("web"), host.url("other")])

    def test_a_signature_of_a_trusted_key_is_accepted(self, host: Host) -> None:
        host.publish("web", "r1", signer="alice")
        repository, _ = fetched(host)
        found = repository.verify_signature(host.url("web"), "r1", signers=host.signers("alice"))
        assert found.name == "alice"
        with pytest.raises(IntegrityError):
            repository.verify_signature(host.url("web"), "r1", signers=host.signers("bob"))

    def test_countersignatures_are_found_after_a_refresh(self, host: Host) -> None:
        host.publish("web", "r1", signer="alice")
        repository, _ = fetched(host)
        signers = host.signers("alice", "bob")

        def found(*, refresh: bool) -> list[tuple[str, bool]]:
            all_of_them = repository.countersignatures(
                host.url("web"), "r1", signers=signers, source="web", refresh=refresh
            )
            return sorted(
                (one.signer.name if one.signer else "", bool(one.problem)) for one in all_of_them
            )

        assert found(refresh=True) == []
        host.countersign("web", "r1", "bob")
        host.countersign("web", "r1", "eve")
        assert found(refresh=False) == []
        assert found(refresh=True) == [("", True), ("bob", False)]
        host.go_away("web")
        assert found(refresh=False) == [("", True), ("bob", False)]
        with pytest.raises(UnavailableError):
            found(refresh=True)

    def test_a_countersignature_counts_for_one_tag_object(self, host: Host) -> None:
        host.publish("web", "r1", signer="alice")
        host.countersign("web", "r1", "bob")
        host.publish("web", "r1", {"manifest.yaml": b"modulepath: [a]\n"}, signer="alice")
        repository, _ = fetched(host)
        (found,) = repository.countersignatures(
            host.url("web"), "r1", signers=host.signers("bob"), source="web", refresh=True
        )
        assert (found.signer, found.problem) == (None, "belongs to another tag object")

    @pytest.mark.parametrize("annotated", [False, True])
    def test_a_tag_without_a_signature_is_refused(self, host: Host, annotated: bool) -> None:
        host.publish("web", "r1", annotated=annotated)
        repository, _ = fetched(host)
        with pytest.raises(IntegrityError, match="signature"):
            repository.verify_signature(host.url("web"), "r1", signers=host.signers("alice"))

    def test_a_fetched_tag_is_not_rubbish(self, host: Host) -> None:
        assert list(host.machine().rubbish()) == []
        host.publish("web", "r1")
        repository, before = fetched(host)
        assert list(repository.rubbish()) == []
        assert repository.tag(host.url("web"), "r1") == before

    def test_a_tree_beyond_its_budget_is_not_written(self, host: Host, tmp_path: Path) -> None:
        host.publish("web", "r1")
        repository, found = fetched(host)
        budget = Budget(Limits(members=1))
        with pytest.raises(IntegrityError, match="too many members"):
            list(repository.write([(host.url("web"), found.tree, "tree")], tmp_path, budget))
        assert not (tmp_path / "tree").exists()


def test_incomplete_mirrors_of_a_killed_git_are_rubbish(tmp_path: Path) -> None:
    host = GitHost(tmp_path)
    host.publish("web", "r1")
    repository, _ = fetched(host)
    mirrors = tmp_path / "mirrors-1"
    for name in (".new-1", ".scratch-1"):
        (mirrors / name / "objects").mkdir(parents=True)
    left = {path for path in mirrors.iterdir() if path.name.startswith(".")}
    assert (len(left), set(repository.rubbish())) == (2, left)


def test_a_lock_of_a_killed_git_does_not_block_the_next_one(tmp_path: Path) -> None:
    host = GitHost(tmp_path)
    host.publish("web", "r1")
    repository, _ = fetched(host)
    (mirror,) = (tmp_path / "mirrors-1").iterdir()
    for name in ("refs/tags/r1.lock", "shallow.lock", "objects/pack/tmp_pack_1"):
        (mirror / name).parent.mkdir(parents=True, exist_ok=True)
        (mirror / name).touch()
    host.publish("web", "r1", {"moved": b""})
    repository.fetch([(host.url("web"), "r1")], refresh=True)
    assert repository.tag(host.url("web"), "r1") == fetched(host)[1]


def cut(pattern: str, size: int) -> Callable[[Path], None]:
    def harm(mirror: Path) -> None:
        for path in mirror.glob(pattern):
            data = path.read_bytes()[:size]
            path.unlink()
            path.write_bytes(data)

    return harm


@pytest.mark.parametrize(
    "harm",
    [
        cut("HEAD", 0),
        lambda mirror: (mirror / "config").write_bytes(bytes(50)),
        cut("refs/tags/r1", 0),
        lambda mirror: (mirror / "refs/tags/r1").write_bytes(bytes(41)),
        lambda mirror: (mirror / "shallow").write_bytes(bytes(41)),
        cut("objects/pack/*.pack", 0),
        cut("objects/pack/*.pack", 100),
        cut("objects/pack/*.idx", 0),
        cut("objects/pack/*.idx", 500),
        lambda mirror: shutil.rmtree(mirror / "refs"),
        lambda mirror: shutil.rmtree(mirror / "objects"),
    ],
)
def test_a_mirror_that_a_power_failure_damaged_is_fetched_anew(
    tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    host = GitHost(tmp_path)
    host.publish("web", "r1")
    repository, before = fetched(host)
    (mirror,) = (tmp_path / "mirrors-1").iterdir()
    harm(mirror)
    repository.fetch([(host.url("web"), "r1")], refresh=True)
    assert repository.tag(host.url("web"), "r1") == before
    assert written(host, repository, before.tree, tmp_path / "out") == FILES


@pytest.mark.parametrize("place", ["out", "mirrors-1"])
def test_a_disk_without_room_for_files_is_no_fault_of_the_repository(
    tmp_path: Path, place: str
) -> None:
    host = GitHost(tmp_path)
    host.publish("web", "r1", {f"files/{number}": b"x" for number in range(40)})
    repository = host.machine()
    full = tmp_path / place
    full.mkdir()
    room = "nr_inodes=30" if place == "out" else "nr_inodes=15"
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size=16m,{room}", "x", full], check=True)
    wanted = (host.url("web"), "r1")
    try:
        with pytest.raises(StateError, match=r"the disk is full: .*No space left on device"):
            repository.fetch([wanted], refresh=True)
            tree = repository.tag(*wanted).tree
            list(repository.write([(host.url("web"), tree, "tree")], full, Budget()))
    finally:
        subprocess.run(["umount", full], check=True)


def test_a_mirror_stays_if_its_server_is_at_fault(tmp_path: Path) -> None:
    host = GitHost(tmp_path)
    host.publish("web", "r1")
    repository, before = fetched(host)
    host.go_away("web")
    with pytest.raises(UnavailableError):
        repository.fetch([(host.url("web"), "r1")], refresh=True)
    assert repository.tag(host.url("web"), "r1") == before


def test_a_commit_whose_objects_are_lost_is_fetched_again(tmp_path: Path) -> None:
    host = GitHost(tmp_path)
    host.publish("web", "r1")
    repository, _ = fetched(host)
    wanted = [(host.url("web"), fetched(host)[1].commit)]
    repository.fetch_commits(wanted)
    (mirror,) = (tmp_path / "mirrors-1").iterdir()
    shutil.rmtree(mirror / "objects/pack")
    repository.fetch_commits(wanted)
    with pytest.raises(UnavailableError, match="was not downloaded"):
        repository.commit_trees(wanted)
    repository.fetch_commits(wanted)
    assert len(repository.commit_trees(wanted)) == 1


def test_tags_may_be_where_a_tag_was(tmp_path: Path) -> None:
    host = GitHost(tmp_path)
    host.publish("web", "r1")
    repository, _ = fetched(host)
    Forge(tmp_path / "forge").repo("web").git("tag", "-d", "r1")
    for tag in ("r1/a", "r1/b"):
        host.publish("web", tag)
        repository.fetch([(host.url("web"), tag)], refresh=False)
        assert repository.tag(host.url("web"), tag).annotated


COMMIT = ("c" * 40, "commit", b"tree t\nauthor a <a> 1 +0000\n\nWork on ntp\n\nmore\n")
TREE = ("d" * 40, "tree", b"")
HEAD = f"object {COMMIT[0]}\ntype commit\ntag r1\ntagger a <a> 7 +0000\n\n".encode()


def subject(message: bytes) -> str:
    found = ("a" * 40, "tag", HEAD + message)
    return judge("r1", found[0], found, COMMIT, TREE, where="here").subject


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (b"ntp is faster\n\nand more\n", "ntp is faster"),
        (b"", ""),
        (b"-----BEGIN SSH SIGNATURE-----\nxx\n", ""),
        (b"a\x1b[31mred\xe2\x80\xae\xff\n", None),
        (b"x" * 10_000_000, "x" * MAX_TAG_SUBJECT),
    ],
)
def test_the_subject_of_a_tag_is_one_printable_line(message: bytes, shown: str | None) -> None:
    found = subject(message)
    assert found.isprintable()
    assert shown is None or found == shown


def test_without_a_tag_object_the_subject_is_that_of_the_commit() -> None:
    found = judge("r1", COMMIT[0], COMMIT, COMMIT, TREE, where="here")
    assert (found.subject, found.annotated) == ("Work on ntp", False)


def test_a_tag_object_with_another_name_is_refused() -> None:
    found = ("a" * 40, "tag", HEAD)
    with pytest.raises(IntegrityError, match="says that its name is 'r1'"):
        judge("r2", found[0], found, COMMIT, TREE, where="here")
