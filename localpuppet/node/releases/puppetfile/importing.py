"""Imports a Puppetfile into a manifest; every entry is taken, or left out with a reason."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from localpuppet.base.errors import IntegrityError, UnavailableError
from localpuppet.base.value import Value
from localpuppet.node.releases.git.repository import Repository
from localpuppet.node.releases.manifest import Manifest, Module
from localpuppet.node.releases.puppetfile.choosing import EntryChoice, ImportRules, choose, must_ask
from localpuppet.node.releases.puppetfile.entry import Puppetfile

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
