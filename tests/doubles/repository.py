"""A `Git` in memory: servers with tags, and the mirror of one machine.

It passes the contract test in `tests/node/releases/git/test_repository.py`, too.
"""

import hashlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from localpuppet.base.errors import IntegrityError, InvalidInputError, UnavailableError
from localpuppet.node.releases.git.git_names import TagObject
from localpuppet.node.releases.git.mirrors import Git
from localpuppet.node.releases.git.signatures import Countersignature, TagSigner
from localpuppet.node.releases.limits import Budget

MAX_FILE = 1024 * 1024
Files = Mapping[str, bytes]
Ref = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class _Published:
    """The content of a tag on a server."""

    found: TagObject
    files: Files
    signer: str
    time: int


@dataclass
class FakeServers:
    """Git servers and their published tags."""

    away: set[str] = field(default_factory=set)  # URLs of repositories that cannot be reached
    # URLs of repositories that send an object that git rejects
    broken: set[str] = field(default_factory=set)
    # the content of each tag, by URL and tag
    published: dict[Ref, _Published] = field(default_factory=dict)
    # further signers and the tag object that each signed, by URL and tag
    countersigned: dict[Ref, list[tuple[str, str]]] = field(default_factory=dict)

    def countersign(self, url: str, tag: str, signer: str) -> None:
        """Add a signature to the tag object of a tag, beside the signature of its maker."""
        pair = (signer, self.published[url, tag].found.id)
        self.countersigned.setdefault((url, tag), []).append(pair)

    def publish(
        self,
        url: str,
        tag: str,
        files: Files,
        *,
        annotated: bool = True,
        signer: str = "",
        time: int = 1_795_000_000,
    ) -> TagObject:
        """Commit files and tag the commit; an existing tag moves."""
        tree = _id("tree", *(f"{name}\0".encode() + data for name, data in sorted(files.items())))
        commit = _id("commit", url.encode(), tree.encode(), str(time).encode())
        ref = _id("tag", tag.encode(), commit.encode()) if annotated else commit
        found = TagObject(
            id=ref,
            commit=commit,
            annotated=annotated,
            tree=tree,
            sources=(url.rpartition("/")[2].removesuffix(".git"),) if signer else (),
            tagged_at=time if annotated else None,
            subject=tag,
        )
        self.published[url, tag] = _Published(
            found=found, files=dict(files), signer=signer, time=time
        )
        return found


class FakeRepository(Git):
    """The mirror of one machine."""

    def __init__(self, servers: FakeServers) -> None:
        self._servers = servers
        self._mirrored: dict[Ref, _Published] = {}
        self._countersigned: dict[Ref, Sequence[tuple[str, str]]] = {}
        self._seen: list[_Published] = []
        self.asked: list[Ref] = []  # URL and tag of each question to a server, in order
        self.written: list[str] = []  # ids of the trees that were written
        self.swept = 0  # how often localpuppet listed rubbish

    def rubbish(self) -> list[Path]:
        self.swept += 1
        return []

    def fetch(self, tags: Sequence[Ref], *, refresh: bool) -> None:
        for _ in self.arrivals(tags, refresh=refresh):
            pass

    def arrivals(self, tags: Sequence[Ref], *, refresh: bool) -> Generator[list[Ref], None, None]:
        for ref in dict.fromkeys(tags):
            if refresh or ref not in self._mirrored:
                self._fetch(ref)
            yield [ref]

    def _fetch(self, ref: Ref) -> None:
        self.asked.append(ref)
        url, tag = ref
        if url in self._servers.away:
            raise UnavailableError(f"cannot fetch {tag}", where=url)
        if url in self._servers.broken:
            raise IntegrityError("git rejects an object of the repository", where=url)
        published = self._servers.published.get(ref)
        if published is None:
            raise InvalidInputError(f"the repository has no tag {tag}", where=url)
        self._mirrored[ref] = published
        self._seen.append(published)

    def fetch_commits(self, commits: Sequence[Ref]) -> None:
        for url, commit in commits:
            for (where, _), published in self._servers.published.items():
                if (where, published.found.commit) == (url, commit):
                    self._seen.append(published)

    def commit_trees(self, commits: Sequence[Ref]) -> Mapping[Ref, str]:
        return {(url, commit): self._commit(url, commit).found.tree for url, commit in commits}

    def tag(self, url: str, tag: str) -> TagObject:
        return self.tags([(url, tag)])[url, tag]

    def tags(self, tags: Sequence[Ref]) -> Mapping[Ref, TagObject]:
        return {(url, tag): self._known(url, tag).found for url, tag in tags}

    def _known(self, url: str, tag: str) -> _Published:
        if (url, tag) not in self._mirrored:
            raise UnavailableError("was not downloaded", where=f"{url} tag {tag}")
        return self._mirrored[url, tag]

    def verify_signature(self, url: str, tag: str, *, signers: Path) -> TagSigner:
        published = self._known(url, tag)
        trusted = signers.read_text().split()
        if not published.found.annotated or published.signer not in trusted:
            raise IntegrityError(
                "has no valid signature by a trusted key", where=f"{url} tag {tag}"
            )
        return _signer(published.signer)

    def countersignatures(
        self, url: str, tag: str, *, signers: Path, source: str, refresh: bool
    ) -> Sequence[Countersignature]:
        published = self._known(url, tag)
        if refresh:
            self.asked.append((url, tag))
            if url in self._servers.away:
                raise UnavailableError(f"cannot fetch {tag}", where=url)
            self._countersigned[url, tag] = self._servers.countersigned.get((url, tag), ())
        trusted = signers.read_text().split()
        found = []
        for number, (signer, tag_object) in enumerate(self._countersigned.get((url, tag), ())):
            problem = ""
            if tag_object != published.found.id:
                problem = "belongs to another tag object"
            elif signer not in trusted:
                problem = "has no valid signature by a trusted key"
            found.append(
                Countersignature(
                    id=f"{number:040x}",
                    signer=None if problem else _signer(signer),
                    problem=problem,
                )
            )
        return found

    def write(
        self, trees: Sequence[tuple[str, str, str]], directory: Path, budget: Budget
    ) -> Generator[str, None, None]:
        for url, tree, name in trees:
            found = [published for published in self._seen if published.found.tree == tree]
            if not found:
                raise IntegrityError("its objects are not there", where=url)
            for path, data in found[0].files.items():
                budget.take(len(data), where=f"{url}: {path}")
            for path, data in found[0].files.items():
                file = directory / name / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
            self.written.append(tree)
            yield name

    def commit_time(self, url: str, commit: str) -> int:
        return self._commit(url, commit).time

    def files(self, url: str, commit: str, names: Sequence[str]) -> Mapping[str, bytes]:
        files = self._commit(url, commit).files
        for name in names:
            below = any(path.startswith(f"{name}/") for path in files)
            if below or len(files.get(name, b"")) > MAX_FILE:
                raise IntegrityError("must be an ordinary file of at most 1 MiB", where=url)
        return {name: files[name] for name in names if name in files}

    def _commit(self, url: str, commit: str) -> _Published:
        found = [published for published in self._seen if published.found.commit == commit]
        if not found:
            raise IntegrityError("is not there", where=f"{url} {commit[:12]}")
        return found[0]

    def refs(self, urls: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        for url in urls:
            if url in self._servers.away:
                raise UnavailableError("cannot be asked", where=url)
        return {
            url: {
                f"refs/tags/{tag}": published.found.commit
                for (where, tag), published in self._servers.published.items()
                if where == url
            }
            for url in urls
        }


def _signer(name: str) -> TagSigner:
    return TagSigner(name=name, marks=frozenset({name}))


def _id(kind: str, *parts: bytes) -> str:
    """Return 40 hex digits of a digest of the content, in place of an object's id."""
    lengths = [str(len(part)).encode() for part in parts]
    whole = b"\0".join([kind.encode(), *lengths, *parts])
    return hashlib.sha256(whole).hexdigest()[:40]
