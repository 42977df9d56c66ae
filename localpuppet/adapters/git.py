"""Git: mirrors, tags, signatures, and trees as bytes.

Owns: every call of the program `git` and its safety: no configuration but ours, no hooks, no
prompts, only the transports that are allowed, full ref names, data behind `--end-of-options`.
Trees are written by one checkout of a tree of trees, with every attribute that changes bytes
switched off. GitPython would start the same program for each step (ADR 9).
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from localpuppet.errors import IntegrityError, StateError, UnavailableError
from localpuppet.files import make_private, state_problem
from localpuppet.model.text import one_line
from localpuppet.ports import TagObject

MAX_FILE = 1024 * 1024
# Highest of all attributes: nothing in a tree can ask for a conversion of its bytes.
_ATTRIBUTES = "* -text -eol -ident -filter -working-tree-encoding -export-subst -diff -merge\n"


class Git:
    """Mirrors below one directory.

    Args:
        mirrors: Where they are.
        env: The environment to take PATH, HOME and the ssh agent from.
        allow_file: Whether `file://` URLs may be fetched.
        timeout: Seconds for one git command.
        parallel: How many fetches at a time.
        progress: Called with the number of repositories that are done and of all.
    """

    def __init__(
        self,
        mirrors: Path,
        *,
        env: Mapping[str, str],
        allow_file: bool,
        timeout: float,
        parallel: int = 4,
        progress: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> None:
        self._mirrors = mirrors
        self._timeout = timeout
        self._parallel = parallel
        self._progress = progress
        kept = ("PATH", "HOME", "SSH_AUTH_SOCK", "GIT_SSH_COMMAND", "LANG", "TMPDIR")
        self._env = {name: env[name] for name in kept if name in env} | {
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": "https:ssh:file" if allow_file else "https:ssh",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "LC_ALL": "C",
        }
        self._env.setdefault("GIT_SSH_COMMAND", "ssh -oBatchMode=yes")

    def fetch(self, tags: Sequence[tuple[str, str]], *, refresh: bool) -> None:
        """Bring tags into their mirrors; see `ports.Repository`.

        Raises:
            UnavailableError: A repository or tag cannot be had.
            IntegrityError: What the server sent is broken.
        """
        wanted: dict[str, list[str]] = {}
        for url, tag in dict.fromkeys(tags):
            if refresh or not self._has(url, tag):
                wanted.setdefault(url, []).append(tag)
        if not wanted:
            return
        with ThreadPoolExecutor(self._parallel) as pool:
            jobs = [pool.submit(self._fetch_one, url, names) for url, names in wanted.items()]
            for done, job in enumerate(jobs, 1):
                job.result()
                self._progress(done, len(jobs))

    def refs(self, urls: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """Ask repositories for all their refs; see `ports.Repository`.

        Raises:
            UnavailableError: A repository cannot be had.
        """
        found = {}
        wanted = list(dict.fromkeys(urls))
        with ThreadPoolExecutor(self._parallel) as pool:
            for done, (url, refs) in enumerate(
                zip(wanted, pool.map(self._refs, wanted), strict=True), 1
            ):
                found[url] = refs
                self._progress(done, len(wanted))
        return found

    def _refs(self, url: str) -> dict[str, str]:
        said = self._run(
            Path(os.devnull),
            "ls-remote",
            "--quiet",
            "--end-of-options",
            url,
            failure=lambda said: UnavailableError(f"cannot be asked: {said}", where=url),
        )
        refs = {}
        for line in said.decode("utf-8", "replace").splitlines():
            commit, _, name = line.partition("\t")
            refs[name.removesuffix("^{}")] = commit  # the peeled line comes after the tag's own
        return refs

    def _mirror(self, url: str) -> Path:
        return self._mirrors / hashlib.sha256(url.encode()).hexdigest()[:32]

    def _has(self, url: str, tag: str) -> bool:
        mirror = self._mirror(url)
        if (mirror / "refs" / "tags" / tag).is_file():
            return True
        return self._resolve(mirror, f"refs/tags/{tag}") is not None

    def _fetch_one(self, url: str, tags: Iterable[str]) -> None:
        mirror = self._mirror(url)
        if not (mirror / "HEAD").exists():
            self._make_mirror(mirror)
        # Forced: whether a tag has moved is for the caller to judge, who knows what was pinned.
        refspecs = [f"+refs/tags/{tag}:refs/tags/{tag}" for tag in tags]
        self._run(
            mirror,
            "fetch",
            "--quiet",
            "--depth=1",
            "--no-tags",
            "--no-write-fetch-head",
            "--no-recurse-submodules",
            "--end-of-options",
            url,
            *refspecs,
            failure=lambda said: UnavailableError(
                f"cannot fetch {', '.join(tags)}: {said}", where=url, hint="is the tag there?"
            ),
        )

    def _make_mirror(self, mirror: Path) -> None:
        make_private(mirror.parent)
        new = Path(tempfile.mkdtemp(dir=mirror.parent, prefix=".new-"))
        self._run(new, "init", "--quiet", "--bare", "--template=", cwd=new)
        (new / "info").mkdir(exist_ok=True)
        (new / "info" / "attributes").write_text(_ATTRIBUTES)
        try:
            new.rename(mirror)
        except OSError:
            shutil.rmtree(new, ignore_errors=True)  # another process was faster
            if not (mirror / "HEAD").exists():
                raise

    def tag(self, url: str, tag: str) -> TagObject:
        """Return what a fetched tag is; see `ports.Repository`.

        Raises:
            IntegrityError: It is nested, misnamed, or points at no commit.
            UnavailableError: It was not fetched.
        """
        mirror = self._mirror(url)
        where = f"{url} tag {tag}"
        found = self._resolve(mirror, f"refs/tags/{tag}")
        if found is None:
            raise UnavailableError("was not fetched", where=where)
        kind = self._run(mirror, "cat-file", "-t", found).decode().strip()
        commit = found
        if kind == "tag":
            head, _, _ = self._run(mirror, "cat-file", "tag", found).partition(b"\n\n")
            fields = dict(line.partition(b" ")[::2] for line in head.split(b"\n") if b" " in line)
            if fields.get(b"type") != b"commit":
                raise IntegrityError(
                    "is a nested tag, or a tag of something else than a commit", where=where
                )
            if fields.get(b"tag") != tag.encode():
                said = one_line(fields.get(b"tag", b"").decode("utf-8", "replace"))[:60]
                raise IntegrityError(f"the tag object says that its name is {said!r}", where=where)
            commit = fields[b"object"].decode()
        elif kind != "commit":
            raise IntegrityError(f"points at a {kind}, not at a commit", where=where)
        tree = self._resolve(mirror, f"{commit}^{{tree}}")
        if tree is None:
            raise IntegrityError("its tree is missing in the mirror", where=where)
        return TagObject(id=found, commit=commit, annotated=kind == "tag", tree=tree)

    def _resolve(self, mirror: Path, name: str) -> str | None:
        if not mirror.is_dir():
            return None
        done = self._start(mirror, "rev-parse", "--verify", "--quiet", "--end-of-options", name)
        return done.stdout.decode().strip() if done.returncode == 0 else None

    def verify_signature(self, url: str, tag: str, *, signers: Path) -> None:
        """Hold a tag's signature against pinned keys; see `ports.Repository`.

        Raises:
            IntegrityError: It is lightweight, unsigned, or signed by nobody in `signers`.
        """
        mirror = self._mirror(url)
        where = f"{url} tag {tag}"
        found = self.tag(url, tag)
        if not found.annotated:
            raise IntegrityError("is not annotated, so it has no signature", where=where)
        body = self._run(mirror, "cat-file", "tag", found.id)
        try:
            openpgp = b"BEGIN PGP PUBLIC KEY" in signers.read_bytes()
        except OSError as error:
            raise state_problem(error, signers) from error
        if openpgp:
            with tempfile.TemporaryDirectory(prefix="localpuppet-gpg-") as home:
                self._import_keys(Path(home), signers)
                self._verify(
                    mirror,
                    found.id,
                    where,
                    {"GNUPGHOME": home},
                    ["-c", "gpg.minTrustLevel=undefined"],
                )
        elif b"BEGIN SSH SIGNATURE" in body:
            config = ["-c", "gpg.format=ssh", "-c", f"gpg.ssh.allowedSignersFile={signers}"]
            self._verify(mirror, found.id, where, {}, config)
        else:
            raise IntegrityError("has no signature by a trusted key", where=where)

    def _import_keys(self, home: Path, keys: Path) -> None:
        done = subprocess.run(  # keys in a home of their own: who is in it is trusted, nobody else
            ["gpg", "--batch", "--quiet", "--homedir", home, "--import", "--", keys],  # noqa: S607
            env=self._env,
            capture_output=True,
            timeout=self._timeout,
            check=False,
        )
        if done.returncode != 0:
            said = one_line(done.stderr.decode("utf-8", "replace").strip())[-200:]
            raise IntegrityError(f"the keys cannot be read: {said}", where=str(keys))

    def _verify(
        self, mirror: Path, tag_object: str, where: str, env: Mapping[str, str], config: list[str]
    ) -> None:
        done = self._start(mirror, *config, "verify-tag", "--raw", tag_object, env=env)
        if done.returncode != 0:
            raise IntegrityError(
                "has no valid signature by a trusted key",
                where=where,
                hint="check the source's pinned keys; do not use the release meanwhile",
            )

    def file(self, url: str, commit: str, name: str) -> bytes | None:
        """Return a file at the top of a commit; see `ports.Repository`.

        Raises:
            IntegrityError: It is no ordinary file, or larger than 1 MiB.
        """
        mirror = self._mirror(url)
        line = self._run(mirror, "ls-tree", "-l", "-z", commit, "--", name).decode().rstrip("\0")
        if not line:
            return None
        mode, kind, blob, size = line.partition("\t")[0].split()
        if kind != "blob" or mode == "120000" or int(size) > MAX_FILE:
            raise IntegrityError(
                "must be an ordinary file of at most 1 MiB", where=f"{url} {commit[:12]}:{name}"
            )
        return self._run(mirror, "cat-file", "blob", blob)

    def write(self, trees: Sequence[tuple[str, str, str]], directory: Path) -> None:
        """Write trees out; see `ports.Repository`.

        Raises:
            IntegrityError: A tree holds a submodule, or its objects are not there.
        """
        if not trees:
            return
        with tempfile.TemporaryDirectory(dir=self._mirrors, prefix=".write-") as name:
            scratch = Path(name)
            self._run(scratch, "init", "--quiet", "--bare", "--template=", cwd=scratch)
            (scratch / "info").mkdir(exist_ok=True)
            (scratch / "info" / "attributes").write_text(_ATTRIBUTES)
            stores = dict.fromkeys(f"{self._mirror(url)}/objects" for url, _, _ in trees)
            (scratch / "objects" / "info" / "alternates").write_text("\n".join(stores) + "\n")
            listing = "".join(f"040000 tree {tree}\t{target}\0" for _, tree, target in trees)
            top = self._run(scratch, "mktree", "-z", stdin=listing.encode()).decode().strip()
            modes = self._run(scratch, "ls-tree", "-r", "-z", "--full-tree", top)
            if b"\x00160000 " in b"\x00" + modes:
                raise IntegrityError(
                    "a tree holds a submodule (gitlink, mode 160000)",
                    where=", ".join(sorted({url for url, _, _ in trees}))[:200],
                    hint="vendor it, or make it a module of its own",
                )
            self._run(
                scratch,
                "-c",
                "core.bare=false",
                "-c",
                "checkout.workers=4",
                f"--work-tree={directory}",
                "read-tree",
                "-u",
                "--reset",
                top,
                cwd=directory,
            )

    def _run(
        self,
        repository: Path,
        *arguments: str,
        cwd: Path | None = None,
        stdin: bytes = b"",
        failure: Callable[[str], Exception] | None = None,
    ) -> bytes:
        done = self._start(repository, *arguments, cwd=cwd, stdin=stdin)
        if done.returncode == 0:
            return done.stdout
        said = one_line(done.stderr.decode("utf-8", "replace").strip())[-300:]
        if failure is not None:
            raise failure(said)
        raise IntegrityError(f"git {arguments[0]} failed: {said}", where=str(repository))

    def _start(
        self,
        repository: Path,
        *arguments: str,
        cwd: Path | None = None,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> "subprocess.CompletedProcess[bytes]":
        command = [
            "git",
            f"--git-dir={repository}",
            "-c",
            "core.hooksPath=/dev/null",
            "-c",
            "core.symlinks=true",
            "-c",
            "core.autocrlf=false",
            "-c",
            "core.fsmonitor=false",
            "-c",
            "fetch.fsckObjects=true",
            "-c",
            "gc.auto=0",
            *arguments,
        ]
        try:
            return subprocess.run(
                command,
                env={**self._env, **(env or {})},
                cwd=cwd or "/",
                input=stdin,
                capture_output=True,
                timeout=self._timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(
                f"git {arguments[0]} did not end within {self._timeout:g} s", where=str(repository)
            ) from error
        except FileNotFoundError as error:
            raise StateError("git is not installed", hint="apt-get install git") from error
