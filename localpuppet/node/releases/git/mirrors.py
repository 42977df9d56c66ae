"""Git mirrors: one bare repository per URL, with only the fetched tags and commits.

Refs `refs/commits/ID`, which localpuppet adds, keep fetched commits.

- Ref names are full, and data follow `--end-of-options`.
- Trees are written by checkouts of a tree of trees, with every attribute switched off that changes
  bytes.
- One `cat-file --batch` reads the tags and files of many mirrors.
- A node that has all it needs imports this file and starts nothing, so modules that start or write
  are imported where they are used.
- GitPython would start the same program for each step (ADR 9).

Mirrors of the site's sources stay: after a change of a signers file their tags are verified again
without the network. Mirrors of single modules are used once per release and expire by age.
"""

import hashlib
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from localpuppet.base.errors import (
    IntegrityError,
    LocalpuppetError,
    UnavailableError,
    gather_unavailable,
)
from localpuppet.base.machine.files import disk_errors, make_private, remove_tree
from localpuppet.node.releases.git import signatures
from localpuppet.node.releases.git.access import ask_failure, fetch_failure, raise_failures
from localpuppet.node.releases.git.git_names import TagObject, countersignature_refs, judge
from localpuppet.node.releases.git.program import HEAD, GitProgram, check_out, make_bare
from localpuppet.node.releases.limits import MAX_GIT_FILE, Budget

# Below the state directory.
PLACE = "mirrors"


def mirror_name(url: str) -> str:
    """Return the directory name of a repository's mirror."""
    return hashlib.sha256(url.encode()).hexdigest()[:32]


def _gone(url: str, commit: str, _error_text: str) -> UnavailableError:
    hint = "check that a branch or tag still contains it"
    return UnavailableError(f"has no commit {commit}", where=url, hint=hint)


def _sweep(mirror: Path) -> None:
    """Remove the files of a killed git. The caller holds the store's lock, so no git runs."""
    for directory, pattern in (("", "*.lock"), ("refs", "**/*.lock"), ("objects/pack", "tmp_*")):
        for dead in (mirror / directory).glob(pattern):
            dead.unlink(missing_ok=True)


# What git says if the files of a mirror are at fault, and not the server. After a power failure
# they may be empty; a tag may be where a directory of tags was.
_DAMAGED = re.compile(
    r"cannot lock ref|bad (?:config line|shallow line|object)|not a git repository: '/"
    r"|unable to rename temporary '\*\.(?:pack|idx)' file"  # git 2.47: the pack there differs
)


def _is_whole(mirror: Path) -> bool:
    try:
        return (mirror / "HEAD").read_bytes() == HEAD and (mirror / "refs").is_dir()
    except OSError:
        return False


def _make(mirror: Path) -> None:
    import shutil
    import tempfile

    make_private(mirror.parent)
    new = Path(tempfile.mkdtemp(dir=mirror.parent, prefix=".new-"))
    make_bare(new, alternates=[])
    try:
        new.rename(mirror)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)  # another process was faster
        if not _is_whole(mirror):
            raise


# One checkout of many trees is faster than one each; a few at a time let the reader begin.
TREES_AT_ONCE = 10
_OBJECT = re.compile(r"[0-9a-f]{40}\n?\Z")

_Result = TypeVar("_Result")


class Git:
    """Git repositories by URL, each with a mirror below one directory.

    A tag that the mirror has is fetched again only with `refresh`. Mirrors of one `kind` are not
    used for another: what came with the credentials of this machine is not public.
    """

    def __init__(
        self,
        mirrors: Path,
        program: GitProgram,
        *,
        progress: Callable[[int, int], None] = lambda _done, _all: None,
        names: Mapping[str, str] | None = None,
        kind: str = "",
    ) -> None:
        self._mirrors = mirrors
        self._kind = kind
        self._program = program
        self._progress = progress
        self._names = names or {}

    def fetch(self, tags: Sequence[tuple[str, str]], *, refresh: bool) -> None:
        """Bring tags into their mirrors; see `arrivals`."""
        for _ in self.arrivals(tags, refresh=refresh):
            pass

    def arrivals(
        self, tags: Sequence[tuple[str, str]], *, refresh: bool
    ) -> Generator[list[tuple[str, str]], None, None]:
        """Bring tags into their mirrors, several repositories at a time; yield those that arrive.

        With `refresh` the server is asked even for tags that the mirror has. Each tag comes once;
        others are fetched meanwhile, until the caller closes the generator.
        """
        wanted: dict[str, list[str]] = {}
        here = []
        for url, tag in dict.fromkeys(tags):
            if refresh or self._ref(url, tag) is None:
                wanted.setdefault(url, []).append(tag)
            else:
                here.append((url, tag))
        if here:
            yield here
        if len(wanted) == 1:
            ((url, names),) = wanted.items()
            self._fetch_one(url, names)
            self._progress(1, 1)
            yield [(url, name) for name in names]
        elif wanted:
            yield from self._fetch_many(wanted)

    def _fetch_many(
        self, wanted: Mapping[str, Sequence[str]]
    ) -> Generator[list[tuple[str, str]], None, None]:
        arrived: list[tuple[str, str]] = []
        work = self._several(list(wanted), lambda url: self._fetch_one(url, wanted[url]))
        with closing(work) as results:
            for done, (url, _) in enumerate(results, 1):
                arrived += [(url, name) for name in wanted[url]]
                if done % TREES_AT_ONCE == 0 or done == len(wanted):
                    yield arrived
                    arrived = []

    def _several(
        self, urls: Sequence[str], work: Callable[[str], _Result], *, counted: bool = True
    ) -> Generator[tuple[str, _Result], None, None]:
        """Apply a function to repositories, some at a time; yield results in order."""
        from concurrent.futures import ThreadPoolExecutor

        failed: list[UnavailableError] = []
        with ThreadPoolExecutor(self._program.limits.parallel) as pool:
            jobs = [pool.submit(work, url) for url in urls]
            try:
                for done, (url, job) in enumerate(zip(urls, jobs, strict=True), 1):
                    with gather_unavailable(failed):
                        result = job.result()
                    if counted:
                        self._progress(done, len(urls))
                    if not failed:
                        yield url, result
                raise_failures(failed)
            finally:
                for job in jobs:
                    job.cancel()

    def rubbish(self) -> list[Path]:
        """Return incomplete files that a dead process left. The caller holds the store's lock."""
        return [*self._mirrors.glob(".new-*"), *self._mirrors.glob(".scratch-*")]

    def commit_time(self, url: str, commit: str) -> int:
        """Return when a fetched commit was made, in seconds since 1970."""
        data = self._program.run(self._mirror(url), "cat-file", "commit", commit)
        for line in data.partition(b"\n\n")[0].split(b"\n"):
            if line.startswith(b"committer "):
                seconds = line.split(b" ")[-2]
                if seconds.isdigit():
                    return int(seconds)
        raise IntegrityError("has no time", where=f"{url} {commit[:12]}")

    def refs(self, urls: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """Ask repositories for all their refs, several at a time; nothing is fetched.

        Return URL → full name of a ref, or HEAD → the commit behind it (not an annotated tag).
        """
        wanted = list(dict.fromkeys(urls))
        # A caller that asks one by one counts them.
        return dict(self._several(wanted, self._refs, counted=len(wanted) > 1))

    def _refs(self, url: str) -> dict[str, str]:
        # The peeled line comes after the tag's own.
        return {name.removesuffix("^{}"): commit for name, commit in self.listed(url)}

    def listed(self, url: str, *below: str) -> list[tuple[str, str]]:
        """Return the refs of a repository, or those below a prefix: name and object id."""
        output = self._program.ask(
            url,
            Path(os.devnull),
            *["ls-remote", "--quiet", "--end-of-options", url],
            *(f"{place}*" for place in below),
            failure=lambda output: ask_failure(url, output, name=self._names.get(url, "")),
        )
        lines = output.decode("utf-8", "replace").splitlines()
        return [(name, commit) for commit, _, name in (line.partition("\t") for line in lines)]

    def _mirror(self, url: str) -> Path:
        return self._mirrors / mirror_name(self._kind + url)

    def _ref(self, url: str, tag: str) -> str | None:
        """Return the object id of a tag's ref in the mirror; mirrors never have packed refs."""
        try:
            text = (self._mirror(url) / "refs" / "tags" / tag).read_text("ascii")
        except (OSError, UnicodeDecodeError):
            return None
        return text.rstrip("\n") if _OBJECT.match(text) else None

    def _fetch_one(self, url: str, tags: Iterable[str]) -> None:
        # Forced: whether a tag has moved is for the caller to judge, who knows what was pinned.
        self._fetch_refs(url, tags, [f"+refs/tags/{tag}:refs/tags/{tag}" for tag in tags])

    def _fetch_refs(
        self,
        url: str,
        names: Iterable[str],
        refspecs: Sequence[str],
        *,
        depth: Sequence[str] = ("--depth=1",),
    ) -> None:
        """Fetch refs into a mirror, by default without history; `names` are for messages."""
        mirror = self._mirror(url)
        for is_last in (False, True):
            if not _is_whole(mirror):
                remove_tree(mirror)
                _make(mirror)
            _sweep(mirror)
            try:
                self._program.ask(
                    url,
                    mirror,
                    *["fetch", "--quiet", *depth, "--no-tags", "--no-write-fetch-head"],
                    *["--no-recurse-submodules", "--end-of-options", url, *refspecs],
                    failure=lambda error_text: fetch_failure(
                        url, names, error_text, name=self._names.get(url, "")
                    ),
                )
            except LocalpuppetError as error:
                _sweep(mirror)  # half of a pack may be gigabytes
                if is_last or not _DAMAGED.search(str(error)):
                    raise
                remove_tree(mirror)
            else:
                return

    def fetch_commits(self, commits: Sequence[tuple[str, str]]) -> None:
        """Bring commits, pairs of URL and full id, into their mirrors, several at a time.

        Commits that the mirror has are not fetched.
        """
        wanted: dict[str, list[str]] = {}
        for url, commit in dict.fromkeys(commits):
            mirror = self._mirror(url)
            if not ((mirror / "refs" / "commits" / commit).is_file() and _is_whole(mirror)):
                wanted.setdefault(url, []).append(commit)

        for _ in self._several(list(wanted), lambda url: self._fetch_from(url, wanted[url])):
            pass

    def _fetch_from(self, url: str, commits: Sequence[str]) -> None:
        """Fetch commits; all branches and tags if the server does not send commits by their id."""
        refspecs = [f"+{commit}:refs/commits/{commit}" for commit in commits]
        with suppress(UnavailableError):
            self._fetch_refs(url, ["commits"], refspecs)
            return
        mirror = self._mirror(url)
        everything = ["+refs/heads/*:refs/all/heads/*", "+refs/tags/*:refs/all/tags/*"]
        depth = ("--unshallow",) if (mirror / "shallow").exists() else ()
        self._fetch_refs(url, ["commits"], everything, depth=depth)
        for commit in commits:
            ref, failure = f"refs/commits/{commit}", partial(_gone, url, commit)
            self._program.run(mirror, "update-ref", ref, commit, failure=failure)

    def commit_trees(self, commits: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
        """Return the tree ids of fetched commits."""
        if not (wanted := list(dict.fromkeys(commits))):
            return {}
        with self._together(url for url, _ in wanted) as repository:
            names = [f"{commit}^{{tree}}" for _, commit in wanted]
            objects = self._program.objects(repository, names)
        trees = {}
        for (url, commit), tree in zip(wanted, objects, strict=True):
            if tree is None:
                # Otherwise nothing would fetch it again.
                (self._mirror(url) / "refs" / "commits" / commit).unlink(missing_ok=True)
                raise UnavailableError("was not downloaded", where=f"{url} {commit[:12]}")
            trees[url, commit] = tree[0]
        return trees

    def tag(self, url: str, tag: str) -> TagObject:
        """Return a fetched tag.

        Raises:
            InvalidInputError: The tag is a tag of a tag.
            IntegrityError: The tag is misnamed, or does not point at a commit.
        """
        return self.tags([(url, tag)])[url, tag]

    def tags(self, tags: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], TagObject]:
        """Return many fetched tags at once, by URL and tag; see `tag`."""
        if not (wanted := dict.fromkeys(tags)):
            return {}
        refs = {}
        for url, tag in wanted:
            if (tag_ref := self._ref(url, tag)) is None:
                raise UnavailableError("was not downloaded", where=f"{url} tag {tag}")
            refs[url, tag] = tag_ref
        names = [f"{ref}{peel}" for ref in refs.values() for peel in ("", "^{commit}", "^{tree}")]
        with self._together(url for url, _ in refs) as repository:
            objects = self._program.objects(repository, names)
        return {
            (url, tag): judge(tag, ref, *objects[3 * i : 3 * i + 3], where=f"{url} tag {tag}")
            for i, ((url, tag), ref) in enumerate(refs.items())
        }

    @contextmanager
    def _together(self, urls: Iterable[str]) -> "Iterator[Path]":
        """Yield a repository that has the objects of all mirrors."""
        mirrors = list(dict.fromkeys(map(self._mirror, urls)))
        if len(mirrors) == 1:
            yield mirrors[0]
            return
        with self._scratch(mirrors) as scratch:
            yield scratch

    @contextmanager
    def _scratch(self, mirrors: Sequence[Path]) -> "Iterator[Path]":
        import tempfile

        with tempfile.TemporaryDirectory(dir=self._mirrors, prefix=".scratch-") as name:
            make_bare(Path(name), alternates=mirrors)
            yield Path(name)

    def verify_signature(self, url: str, tag: str, *, signers: Path) -> signatures.TagSigner:
        """Verify a tag's own signature with pinned keys; return the signer.

        Args:
            signers: An OpenSSH allowed-signers file, or OpenPGP public keys in ASCII armour.

        Raises:
            IntegrityError: The tag is lightweight, unsigned, or has no signer from `signers`.
        """
        where = f"{url} tag {tag}"
        tag_object = self.tag(url, tag)
        if not tag_object.annotated:
            raise IntegrityError("is not annotated, so it has no signature", where=where)
        with signatures.pinned(self._program, signers) as keys:
            return keys.verify(self._mirror(url), tag_object.id, where=where)

    def countersignatures(
        self, url: str, tag: str, *, signers: Path, source: str, refresh: bool
    ) -> Sequence[signatures.Countersignature]:
        """Judge all fetched countersignatures of a fetched tag, also those that do not count.

        `refresh` fetches the server's countersignatures first.
        """
        listed = self.listed(url, countersignature_refs(tag)) if refresh else []
        if refs := signatures.refs_among(listed, tag):
            self._fetch_refs(url, [tag], [f"+{ref}:{ref}" for ref in refs])
        tag_object = self.tag(url, tag)
        return signatures.judged(
            self._program, self._mirror(url), tag_object, tag=tag, signers=signers, source=source
        )

    def files(self, url: str, commit: str, names: Sequence[str]) -> Mapping[str, bytes]:
        """Return the bytes of ordinary files at the top of a fetched commit, but missing ones."""
        place = self._mirror(url)
        listing = self._program.run(place, "ls-tree", "-l", "-z", commit, "--", *names).decode()
        blobs = {}
        for line in filter(None, listing.split("\0")):
            about, _, name = line.partition("\t")
            mode, kind, blob, size = about.split()
            if kind != "blob" or mode == "120000" or int(size) > MAX_GIT_FILE:
                raise IntegrityError(
                    "must be an ordinary file of at most 1 MiB", where=f"{url} {commit[:12]}:{name}"
                )
            blobs[name] = blob
        objects = self._program.objects(place, list(blobs.values())) if blobs else []
        return {name: body[2] for name, body in zip(blobs, objects, strict=True) if body}

    def write(
        self, trees: Sequence[tuple[str, str, str]], directory: Path, budget: Budget
    ) -> Generator[str, None, None]:
        """Write trees byte for byte as git has them; yield each name when it is complete.

        Others may be written meanwhile, until the caller closes the generator.

        Args:
            trees: URL, tree id, and the name of the new directory.
            budget: The limits; each tree is counted before any of it is written.

        Raises:
            IntegrityError: A tree holds a submodule, exceeds a limit, or objects are missing.
        """
        parts = [trees[i : i + TREES_AT_ONCE] for i in range(0, len(trees), TREES_AT_ONCE)]
        if len(parts) < 2:
            for part in parts:
                yield from self._write(part, directory, budget)
            return
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(self._program.limits.parallel) as pool:
            for names in pool.map(lambda part: self._write(part, directory, budget), parts):
                yield from names

    def _write(
        self, trees: Sequence[tuple[str, str, str]], directory: Path, budget: Budget
    ) -> list[str]:
        mirrors = list(dict.fromkeys(self._mirror(url) for url, _, _ in trees))
        with self._scratch(mirrors) as scratch:
            check_out(self._program, scratch, trees, directory, budget)
        return [target for _, _, target in trees]


# What a fetch that brings something writes to.
_WRITTEN = ("objects/pack", "refs/tags", "refs/commits")


def old_mirrors(state: Path, sources: Iterable[str], *, since: float) -> list[Path]:
    """Return the mirrors without a fetch since a time; those of the site's sources stay."""
    directory = state / PLACE
    if not directory.is_dir():
        return []
    needed = {mirror_name(url) for url in sources}
    with disk_errors(directory):
        others = [path for path in directory.iterdir() if path.name not in needed]
        return sorted(path for path in others if path.is_dir() and _written(path) < since)


def _written(mirror: Path) -> float:
    places = [mirror, *(mirror / name for name in _WRITTEN)]
    return max(place.stat().st_mtime for place in places if place.is_dir())
