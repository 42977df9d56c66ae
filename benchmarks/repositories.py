"""Module repositories for benchmarks: the same bytes on every machine, for every run.

Each module has about 60 files and 300 kB of text that compresses as code does, tens of commits and
15 annotated tags `v1.0.0` to `v1.14.0`.
"""

import os
import random
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

FILES = 60
TAGS = 15
COMMITS_PER_TAG = 2
BYTES = 300_000
_WHEN = 1_700_000_000
_WORDS = (
    *("ensure", "package", "service", "file", "notify", "require", "subscribe", "before"),
    *("present", "absent", "running", "enable", "owner", "group", "mode", "content", "source"),
    *("template", "params", "inherits", "class", "define", "case", "default", "undef", "value"),
    *("String", "Integer", "Boolean", "Optional", "Array", "Hash", "Variant", "Enum"),
)
_PLACES = (
    ("manifests", ".pp"),
    ("templates", ".epp"),
    ("lib/puppet/provider", ".rb"),
    ("spec/classes", "_spec.rb"),
    ("data", ".yaml"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module's repository.

    Attributes:
        name: The module.
        path: Its bare repository.
    """

    name: str
    path: Path

    @property
    def url(self) -> str:
        """Where it is fetched from."""
        return f"file://{self.path}"


def tag(number: int) -> str:
    """Return the name of the tag `number`, from 0."""
    return f"v1.{number}.0"


def git(directory: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    """Run git without anybody's configuration; return what it printed."""
    env = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": "Benchmark",
        "GIT_AUTHOR_EMAIL": "benchmark@example.net",
        "GIT_COMMITTER_NAME": "Benchmark",
        "GIT_COMMITTER_EMAIL": "benchmark@example.net",
        "GIT_AUTHOR_DATE": f"{_WHEN} +0000",
        "GIT_COMMITTER_DATE": f"{_WHEN} +0000",
    }
    done = subprocess.run(
        ["git", *arguments],  # noqa: S607
        cwd=directory,
        env=env,
        input=stdin,
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"git {shlex.join(arguments)}: {done.stderr.decode()}")
    return done.stdout


def make_modules(directory: Path, count: int) -> list[Module]:
    """Make `count` repositories in `directory`."""
    modules = []
    for number in range(count):
        module = Module(name=f"module_{number:03}", path=directory / f"module_{number:03}.git")
        module.path.mkdir(parents=True)
        git(module.path, "init", "--quiet", "--bare", "--initial-branch=main")
        git(
            module.path,
            *("-c", "fastimport.unpackLimit=0", "fast-import", "--quiet"),
            stdin=_history(number),
        )
        modules.append(module)
    return modules


def _history(number: int) -> bytes:
    """Return the history of a module for `git fast-import`."""
    choice = random.Random(f"module {number}")  # noqa: S311 - the same on every machine
    names = [f"{place}/part_{i:02}{end}" for i in range(FILES // 5) for place, end in _PLACES]
    out: list[bytes] = []
    for commit in range(TAGS * COMMITS_PER_TAG):
        changed = names if commit == 0 else choice.sample(names, 4)
        who = f"Benchmark <benchmark@example.net> {_WHEN + commit * 1000} +0000"
        out.append(
            f"commit refs/heads/main\ncommitter {who}\n".encode() + _data(f"commit {commit}")
        )
        out += [f"M 100644 inline {name}\n".encode() + _data(_text(choice)) for name in changed]
        if commit % COMMITS_PER_TAG == 1:
            name = tag(commit // COMMITS_PER_TAG)
            out.append(f"tag {name}\nfrom refs/heads/main\ntagger {who}\n".encode() + _data(name))
    return b"".join(out)


def _data(text: str) -> bytes:
    data = text.encode()
    return b"data %d\n%s\n" % (len(data), data)


def _text(choice: random.Random) -> str:
    size = choice.randint(BYTES // FILES // 2, BYTES // FILES * 3 // 2)
    lines: list[str] = []
    length = 0
    while length < size:
        words = choice.choices(_WORDS, k=6)
        lines.append(f"  {' '.join(words)} => '{choice.getrandbits(32):x}',")
        length += len(lines[-1]) + 1
    return "\n".join(lines) + "\n"


def contents(module: Module, name: str) -> dict[str, str]:
    """Return path → blob id of everything in a module at a tag."""
    listing = git(module.path, "ls-tree", "-r", "-z", name).decode().rstrip("\0")
    entries = (line.partition("\t") for line in listing.split("\0"))
    return {path: about.split()[2] for about, _, path in entries}
