"""Imports a Puppetfile into a manifest: every entry is taken, or left out with a reason.

Its children die with it, and time, memory and output are limited. Its output is data like a parsed
Puppetfile. If isolation is impossible, evaluation is refused.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from localpuppet.base.errors import IntegrityError, InvalidInputError, UnavailableError
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.confinement import find_programs
from localpuppet.base.machine.isolation import Bounds, CodeIsolation, run
from localpuppet.base.share.files import shared_file
from localpuppet.base.value import Value
from localpuppet.node.releases.git.repository import Repository
from localpuppet.node.releases.manifest import Manifest, Module
from localpuppet.node.releases.puppetfile.choosing import EntryChoice, ImportRules, choose, must_ask
from localpuppet.node.releases.puppetfile.parsing import Puppetfile, PuppetfileEntry

AT_ONCE = 4


class RepositoryAnswer(Value):
    """The refs of a repository, or why they are unknown.

    Attributes:
        refs: Full name of each ref, and HEAD, → the commit behind it, or `None`.
        problem: Why the refs are unknown.
    """

    refs: Mapping[str, str] | None
    problem: str = ""


NOBODY = RepositoryAnswer(refs=None)


def ask(
    urls: Sequence[str], repository: Repository, progress: Callable[[int, int], None]
) -> dict[str, RepositoryAnswer]:
    """Return the refs of repositories, listed several at a time.

    Args:
        urls: Their URLs.
        repository: Git.
        progress: Called with the numbers of finished and of all repositories.
    """
    from concurrent.futures import ThreadPoolExecutor

    def list_refs(url: str) -> RepositoryAnswer:
        try:
            return RepositoryAnswer(refs=repository.refs([url])[url])
        except (UnavailableError, IntegrityError) as error:
            return RepositoryAnswer(refs=None, problem=error.args[0])

    wanted = list(dict.fromkeys(urls))
    answers = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for url, answer in zip(wanted, pool.map(list_refs, wanted), strict=True):
            answers[url] = answer
            progress(len(answers), len(wanted))
    return answers


class ImportResult(Value):
    """The result of importing a Puppetfile.

    Attributes:
        choices: Its entries, in its order.
        manifest: The manifest.
        comments: Module → the comment above its entry.
        changes: Module → `added`, `changed` or `removed`, compared with the old manifest.
    """

    choices: tuple[EntryChoice, ...]
    manifest: Manifest
    comments: Mapping[str, str]
    changes: Mapping[str, str]

    @property
    def left(self) -> tuple[EntryChoice, ...]:
        """The entries that are left out."""
        return tuple(choice for choice in self.choices if choice.left)


def import_modules(
    puppetfile: Puppetfile,
    *,
    rules: ImportRules,
    old: Manifest,
    repository: Repository | None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> ImportResult:
    """Return the manifest of a Puppetfile, with the choice for each entry.

    Args:
        puppetfile: The Puppetfile.
        rules: The rules besides it.
        old: The existing manifest; its modulepath and other keys are kept.
        repository: Git; `None` to ask no repository.
        progress: Called with the numbers of finished and of all repositories.
    """
    places = [must_ask(entry, rules) for entry in puppetfile.entries]
    urls = [url for url in places if url is not None]
    answers = ask(urls, repository, progress) if repository is not None and urls else {}
    choices: list[EntryChoice] = []
    first: dict[str, int] = {}
    for entry, url in zip(puppetfile.entries, places, strict=True):
        answer = answers.get(url, NOBODY) if url is not None else NOBODY
        choice = choose(entry, rules=rules, refs=answer.refs, unasked=answer.problem)
        line = first.setdefault(choice.name, entry.line)
        if line != entry.line and not choice.left:
            choice = replace(choice, module=None, left=f"is a duplicate; line {line} is the first")
        choices.append(choice)
    modules = {choice.name: choice.module for choice in choices if choice.module is not None}
    return ImportResult(
        choices=tuple(choices),
        manifest=replace(old, modules=modules),
        comments={c.name: c.entry.comment for c in choices if c.module and c.entry.comment},
        changes=_changes(old.modules, modules),
    )


def _changes(old: Mapping[str, Module], new: Mapping[str, Module]) -> dict[str, str]:
    changes = {}
    for name in sorted({*old, *new}):
        if name not in old:
            changes[name] = "added"
        elif name not in new:
            changes[name] = "removed"
        elif old[name].fields != new[name].fields:
            changes[name] = "changed"
    return changes


SECONDS = 20
CPU_SECONDS = 10
MEMORY = 1024**3  # of all programs together
MAX_OUTPUT = 8 * 1024 * 1024
MAX_WORDS = 65536
MAX_PROGRAMS = 8
SIGNALLED = 128  # A shell's exit code for a program that a signal ended starts here.
MAX_MODULES = 10_000
BOUNDS = Bounds(seconds=SECONDS, output=MAX_OUTPUT, errors=MAX_WORDS, memory=MEMORY)
LIMITS = {
    "cpu": CPU_SECONDS,
    "as": MEMORY // MAX_PROGRAMS,
    "fsize": MAX_OUTPUT,
    "core": 0,
    "nofile": 64,
    "nproc": MAX_PROGRAMS,
}


def evaluate(text: bytes, *, path: str) -> Puppetfile:
    """Return the entries of a Puppetfile after Ruby has run it.

    Args:
        text: The Puppetfile.
        path: The PATH for programs.

    Raises:
        InvalidInputError: Ruby fails, or a limit is exceeded.
        StateError: A program for the child is missing, or it cannot be isolated.
    """
    (ruby,) = find_programs("ruby", path=path, package="ruby")
    # Passed as text: the other user may have no access to localpuppet's directory.
    script = Path(shared_file("puppetfile.rb")).read_text("utf-8")
    program = [ruby, "--disable=gems,did_you_mean", "-e", script]
    isolation = CodeIsolation(
        path=path,
        memory=MEMORY,
        programs=2 * MAX_PROGRAMS,
        otherwise="write the modules without Ruby",
    )
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        isolation.check(root)
        with isolation.command(program, (), root, limits=LIMITS, watched=True) as command:
            done = run(
                command,
                env={"PATH": path, "LC_ALL": "C.UTF-8", "HOME": "/nonexistent"},
                cwd=Path("/"),
                bounds=BOUNDS,
                stdin=text,
            )
    if not done.in_time:
        raise InvalidInputError(f"did not end within {SECONDS} s when Ruby ran it")
    if done.flooded:
        raise InvalidInputError(f"printed more than {MAX_OUTPUT} bytes when Ruby ran it")
    if done.code != 0:
        lines = done.err.decode("utf-8", "replace").strip().splitlines()
        killed = done.code >= SIGNALLED or not lines
        first = "it was killed" if killed else one_line(lines[0])[:300]
        raise InvalidInputError(f"Ruby refuses it: {first}")
    return _puppetfile(done.out)


def _puppetfile(output: bytes) -> Puppetfile:
    try:
        document = loads(output)
        entries = tuple(_entry(item) for item in document["modules"][:MAX_MODULES])
        return Puppetfile(
            entries=entries,
            forge=str(document["forge"]),
            notes={},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInputError("printed unexpected output when Ruby ran it") from error


def _entry(raw: Mapping[str, object]) -> PuppetfileEntry:
    options = raw["options"]
    if not isinstance(options, dict):
        raise TypeError("options")
    return PuppetfileEntry(
        name=str(raw["name"])[:200],
        line=int(str(raw["line"])),
        version=str(raw["version"])[:200],
        moduledir=None if raw["moduledir"] is None else str(raw["moduledir"])[:1024],
        options={str(key): str(value)[:1024] for key, value in options.items()},
    )
