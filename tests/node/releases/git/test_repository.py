"""The contract of `Repository`, for real git repositories and for the double in memory."""

import re
from pathlib import Path

import pytest

from localpuppet.base.errors import IntegrityError, InvalidInputError, UnavailableError
from localpuppet.node.releases.git.git_names import TagObject
from localpuppet.node.releases.git.mirrors import Git
from localpuppet.node.releases.limits import Budget, Limits
from tests.node.releases.git.hosts import COMMITTED, FILES, GitHost, Host, MemoryHost

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

    def test_a_lightweight_tag_is_its_commit(self, host: Host) -> None:
        host.publish("web", "r1", annotated=False)
        _, found = fetched(host)
        assert (found.id, found.annotated) == (found.commit, False)

    def test_two_machines_get_the_same_tag(self, host: Host) -> None:
        host.publish("web", "r1")
        assert fetched(host)[1] == fetched(host)[1]

    def test_the_id_of_a_tree_depends_only_on_its_files(self, host: Host) -> None:
        host.publish("web", "r1")
        host.publish("copy", "v2")
        host.publish("other", "r1", {**FILES, "files/empty": b"no"})
        trees = [fetched(host, *which)[1].tree for which in (("web", "r1"), ("copy", "v2"))]
        assert trees[0] == trees[1] != fetched(host, "other")[1].tree

    def test_a_tag_that_was_not_fetched_is_unavailable(self, host: Host) -> None:
        host.publish("web", "r1")
        repository = host.machine()
        with pytest.raises(UnavailableError, match="was not downloaded"):
            repository.tag(host.url("web"), "r1")
        repository.fetch([(host.url("web"), "r1")], refresh=False)
        with pytest.raises(UnavailableError, match="was not downloaded"):
            repository.tags([(host.url("web"), "r1"), (host.url("web"), "r2")])

    @pytest.mark.parametrize("refresh", [False, True])
    def test_the_error_of_a_missing_tag_names_it(self, host: Host, refresh: bool) -> None:
        host.publish("web", "r1")
        repository = host.machine()
        with pytest.raises(InvalidInputError, match="r2"):
            repository.fetch([(host.url("web"), "r2")], refresh=refresh)

    def test_a_fetched_tag_is_not_fetched_again(self, host: Host) -> None:
        host.publish("web", "r1")
        repository, before = fetched(host)
        host.publish("web", "r1", {"moved": b""})
        repository.fetch([(host.url("web"), "r1")], refresh=False)
        assert repository.tag(host.url("web"), "r1") == before
        host.go_away("web")
        repository.fetch([(host.url("web"), "r1")], refresh=False)

    def test_a_refresh_finds_a_moved_tag(self, host: Host) -> None:
        host.publish("web", "r1")
        repository, before = fetched(host)
        host.publish("web", "r1", {"moved": b""})
        repository.fetch([(host.url("web"), "r1")], refresh=True)
        after = repository.tag(host.url("web"), "r1")
        assert after.id != before.id
        assert after.commit != before.commit
        assert after.tree != before.tree

    def test_an_unreachable_repository_is_unavailable_and_does_not_affect_others(
        self, host: Host
    ) -> None:
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

    def test_a_tree_is_written_byte_for_byte(self, host: Host, tmp_path: Path) -> None:
        host.publish("web", "r1")
        repository, found = fetched(host)
        assert written(host, repository, found.tree, tmp_path / "out") == FILES

    def test_each_of_many_trees_is_written_into_a_separate_directory(
        self, host: Host, tmp_path: Path
    ) -> None:
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

    def test_the_earlier_tree_can_be_written_after_its_tag_has_moved(
        self, host: Host, tmp_path: Path
    ) -> None:
        host.publish("web", "r1")
        repository, before = fetched(host)
        host.publish("web", "r1", {"moved": b""})
        repository.fetch([(host.url("web"), "r1")], refresh=True)
        assert written(host, repository, before.tree, tmp_path / "out") == FILES

    def test_a_missing_tree_is_refused(self, host: Host, tmp_path: Path) -> None:
        host.publish("web", "r1")
        repository, _ = fetched(host)
        with pytest.raises(IntegrityError):
            list(repository.write([(host.url("web"), UNKNOWN, "tree")], tmp_path, Budget()))

    def test_files_at_the_top_are_read_without_missing_ones(self, host: Host) -> None:
        host.publish("web", "r1")
        repository, found = fetched(host)
        files = repository.files(host.url("web"), found.commit, ["manifest.yaml", "manifest.lock"])
        assert files == {"manifest.yaml": FILES["manifest.yaml"]}
        assert repository.files(host.url("web"), found.commit, ["manifest.lock"]) == {}

    def test_a_file_that_is_a_directory_or_too_large_is_refused(self, host: Host) -> None:
        limit = 1024 * 1024
        files = {"dir/file": b"", "large": bytes(limit + 1), "largest": bytes(limit)}
        host.publish("web", "r1", files)
        repository, found = fetched(host)
        for name in ("dir", "large"):
            with pytest.raises(IntegrityError, match="ordinary file"):
                repository.files(host.url("web"), found.commit, [name])
        largest = repository.files(host.url("web"), found.commit, ["largest"])
        assert len(largest["largest"]) == limit

    def test_a_commit_has_a_time_and_a_missing_commit_is_refused(self, host: Host) -> None:
        host.publish("web", "r1")
        repository, found = fetched(host)
        assert repository.commit_time(host.url("web"), found.commit) == COMMITTED
        with pytest.raises(IntegrityError):
            repository.commit_time(host.url("web"), UNKNOWN)
        with pytest.raises(IntegrityError):
            repository.files(host.url("web"), UNKNOWN, ["manifest.yaml"])

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
