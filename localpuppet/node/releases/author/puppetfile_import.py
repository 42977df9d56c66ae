"""Imports a Puppetfile into a manifest: every entry is taken, or left out with a reason.

- The rules are r10k's where r10k has some: a ref is a tag before it is a branch, and a module
  without a ref is at `master`. If the refs are unknown, the form of a name decides.
- `evaluate` runs a Puppetfile that has code, in isolation and within limits of time, memory and
  output; its children end with it. Its output is data like a parsed Puppetfile. If isolation is
  impossible, it is refused.
"""

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import IntegrityError, InvalidInputError, UnavailableError
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.isolation import Bounds, CodeIsolation, run
from localpuppet.base.machine.own_program import shared_file
from localpuppet.base.machine.processes import find_programs
from localpuppet.base.value import Value
from localpuppet.node.releases import limits
from localpuppet.node.releases.author.puppetfile import Puppetfile, PuppetfileEntry
from localpuppet.node.releases.git.git_modules import GitModule
from localpuppet.node.releases.git.git_names import GitUrl, Tag, parse_branch, parse_module_name
from localpuppet.node.releases.manifest import Manifest, parse_inner_path
from localpuppet.node.releases.modules import Module, all_sources

if TYPE_CHECKING:
    from localpuppet.node.releases.git.mirrors import Git


CONTROL = "control_branch"
_HEX = re.compile(r"[0-9a-f]{40}\Z")
_SHORT = re.compile(r"[0-9a-f]{7,39}\Z")
_VERSION = re.compile(r"(?:[a-z]+[-_/]?)?(\d+(?:\.\d+)+)(?:[-.+_]?[a-z0-9.]+)?\Z", re.IGNORECASE)
_OTHERS = {
    "svn": "is a Subversion repository",
    "local": "is local: the release contains its directory unchanged",
    "path": "is local: the release contains its directory unchanged",
    "tarball": "is a tarball by URL",
    "github_tarball": "is a tarball by URL",
}
_KNOWN = {"git", "tag", "ref", "commit", "branch", "default_branch", "default_branch_override"}
_KNOWN |= {"install_path", "exclude_spec", "version", "type", "source"}
_KINDS = ("tag", "commit", "ref", "branch")

_USER = re.compile(r"(https?://)[^/@:]+@")


def git_url(text: str, *, allow_file: bool) -> tuple[GitUrl, str]:
    """Return the URL of a repository, and a note about what was changed in it."""
    note = ""
    if text.startswith("git://"):
        text, note = f"https://{text.removeprefix('git://')}", "git:// became https://"
    elif text.startswith("http://"):
        text, note = f"https://{text.removeprefix('http://')}", "http:// became https://"
    elif text.startswith("git+ssh://"):
        text, note = text.removeprefix("git+"), "git+ssh:// became ssh://"
    if _USER.match(text):
        text, note = _USER.sub(r"\1", text), "the user in the URL is left to git's configuration"
    try:
        return GitUrl.parse(text.rstrip("/"), allow_file=allow_file), note
    except InvalidInputError as error:
        if "credentials" in str(error):
            raise InvalidInputError("its URL holds a password", hint="use ssh keys") from error
        raise InvalidInputError(
            "its repository is not an https or ssh URL",
            hint="use a URL that nodes reach, or 'allow_file_urls: true' in localpuppet.yaml",
        ) from error


class ImportRules(Value):
    """Rules besides the Puppetfile itself.

    `use_tags` replaces a branch or commit by the tag at the same commit, or leaves the entry out.
    Without `asking`, the form of a name decides what no repository is asked for.
    """

    allow_file: bool
    use_tags: bool
    paths: tuple[str, ...]
    asking: bool


class EntryChoice(Value):
    """The result for an entry; without `module` it is left out, or its repository must be asked.

    `name` is the module's name, or the entry's if that is not a module name.
    """

    entry: PuppetfileEntry
    name: str
    module: Module | None = None
    pinned_by: str = ""
    left: str = ""
    notes: tuple[str, ...] = ()


def must_ask(entry: PuppetfileEntry, rules: ImportRules) -> GitUrl | None:
    """Return the repository that must be asked before an entry can be judged, or `None`."""
    options = _options(entry)
    if entry.left or "git" not in options:
        return None
    kind, ref = _named(options)
    settled = (
        kind == "tag"
        or (_HEX.match(ref) and kind != "branch")
        or (kind == "branch" and bool(ref))
        or (ref == CONTROL and bool(options.get("default_branch")))
    )
    if settled and not (rules.use_tags and kind != "tag"):
        return None
    try:
        return git_url(options["git"], allow_file=rules.allow_file)[0]
    except InvalidInputError:
        return None


def choose(
    entry: PuppetfileEntry, *, rules: ImportRules, refs: Mapping[str, str] | None, unasked: str = ""
) -> EntryChoice:
    """Return the result for an entry.

    `refs` has the full name of each ref of its repository, and HEAD, → the commit behind it; `None`
    if it was not asked or did not answer. `unasked` says why it did not answer.
    """
    _, separator, rest = entry.name.replace("/", "-", 1).partition("-")
    name = rest if separator else entry.name
    if entry.left:
        return EntryChoice(entry=entry, name=name, left=entry.left)
    options = _options(entry)
    notes = _notes(options)
    try:
        parse_module_name(name)
        _refuse_others(options)
        _refuse_place(options.get("install_path", entry.moduledir), rules)
        if "git" not in options:
            versioned = _versioned(entry, options, rules)
            module: Module | None = versioned
            version_text = versioned.fields["version"]
        else:
            url, note = git_url(options["git"], allow_file=rules.allow_file)
            notes += [note] if note else []
            module, version_text, more = _git(url, options, rules, refs, unasked)
            notes += more
            named = _named(options)[1] not in ("", CONTROL)
            # r10k takes it where a branch is missing.
            is_branch = isinstance(module, GitModule) and module.ref_kind == "branch"
            if is_branch and named and options.get("default_branch"):
                notes.append("default_branch is not kept")
    except InvalidInputError as error:
        return EntryChoice(entry=entry, name=name, left=_reason(error), notes=tuple(notes))
    return EntryChoice(
        entry=entry, name=name, module=module, pinned_by=version_text, notes=tuple(notes)
    )


def _reason(error: InvalidInputError) -> str:
    return str(error).partition(" (")[0] if not error.hint else f"{error.args[0]}: {error.hint}"


def _options(entry: PuppetfileEntry) -> dict[str, str]:
    """Return the options of an entry in their old form: `type: 'git', source:` is `git:`."""
    options = dict(entry.options)
    if options.get("type") == "git" and "source" in options:
        options["git"] = options["source"]
        if "version" in options:
            options.setdefault("ref", options["version"])
    kind = options.get("type", "")
    if kind in _OTHERS:
        options.setdefault(kind, "true")
    return options


def _notes(options: Mapping[str, str]) -> list[str]:
    notes = []
    if options.get("exclude_spec") == "true":
        notes.append("spec/ stays: a tree is as its author made it")
    if unknown := sorted(set(options) - _KNOWN - ({"git"} if "git" in options else {*_OTHERS})):
        notes.append(f"{', '.join(unknown)} is not kept")
    return notes


def _refuse_others(options: Mapping[str, str]) -> None:
    if "git" in options and "path" in options:
        raise InvalidInputError(
            "is a directory of its repository (:path), and a module here is a whole repository"
        )
    for key, what in _OTHERS.items():
        if options.get(key, "false") != "false" and "git" not in options:
            raise InvalidInputError(what)


def _refuse_place(place: str | None, rules: ImportRules) -> None:
    """Reject an entry that r10k puts into a directory where Puppet looks for no modules."""
    if place is None:
        return
    try:
        inner = parse_inner_path(place.removeprefix("./")) or "."
    except InvalidInputError:
        inner = ""
    if inner not in rules.paths:
        shown = place if place.removeprefix("./") else f"{place!r}, the top of the release"
        raise InvalidInputError(
            f"goes to {shown} by install_path or moduledir, which is not on the modulepath"
        )


def _versioned(entry: PuppetfileEntry, options: Mapping[str, str], rules: ImportRules) -> Module:
    version = entry.version or options.get("version", "")
    for source in all_sources():
        module = source.of_puppetfile(entry.name, version)
        if module is not None and rules.use_tags and not module.is_tag:
            raise InvalidInputError(f"is of the {source.kind.title()}, and only tags are taken")
        if module is not None:
            return module
    raise InvalidInputError("names no repository")


def _named(options: Mapping[str, str]) -> tuple[str, str]:
    """Return the kind and name of the ref that r10k would take; the last of them counts."""
    kinds = [(kind, options[kind]) for kind in options if kind in _KINDS and options[kind]]
    return kinds[-1] if kinds else ("", "")


def _git(
    url: GitUrl,
    options: Mapping[str, str],
    rules: ImportRules,
    refs: Mapping[str, str] | None,
    unasked: str,
) -> tuple[GitModule | None, str, list[str]]:
    """Return the module, what pins it in words, and notes."""
    kind, ref = _named(options)
    notes = []
    if ref == CONTROL:
        kind, ref = "branch", options.get("default_branch", "")
        if not ref:
            raise InvalidInputError(
                "is at the control repository's own branch", hint="name a branch or default_branch"
            )
        notes.append(f":control_branch has no meaning in a release: {ref} is taken")
    unsure = f", and its repository {unasked or 'was not asked'}"
    if not ref:
        kind, ref = "branch", _default(refs)
        unsure = "" if refs is not None else unsure
        notes.append(f"names no ref: {ref} is taken{unsure}")
    if rules.use_tags and kind != "tag":
        return _at_tag(url, kind, ref, refs), "", notes
    if _HEX.match(ref):
        return _module(url, "commit", ref), f"commit {ref[:12]}", notes
    if kind in ("tag", "branch"):
        return _module(url, kind, ref), f"{kind} {ref}", notes
    if refs is None:
        if unasked and not _VERSION.match(ref):
            raise InvalidInputError(f"its repository did not answer what {ref} is: {unasked}")
        if not rules.asking and not _VERSION.match(ref):
            return None, f"{kind} {ref}", [*notes, "its repository was not asked what that is"]
        return _module(url, "tag", ref), f"tag {ref}", [*notes, f"{ref} is taken as a tag{unsure}"]
    return _asked(url, ref, refs, notes)


def _asked(
    url: GitUrl, ref: str, refs: Mapping[str, str], notes: list[str]
) -> tuple[GitModule, str, list[str]]:
    if f"refs/tags/{ref}" in refs:
        return _module(url, "tag", ref), f"tag {ref}", notes
    branch = ref.removeprefix("origin/")
    if f"refs/heads/{branch}" in refs:
        return _module(url, "branch", branch), f"branch {branch}", notes
    if _SHORT.match(ref):
        commits = {commit for commit in refs.values() if commit.startswith(ref)}
        if len(commits) == 1:
            commit = commits.pop()
            return _module(url, "commit", commit), f"commit {commit[:12]}", notes
        raise InvalidInputError(f"{ref} is a short commit id: write all 40 digits")
    raise InvalidInputError(f"its repository has no {ref}")


def _default(refs: Mapping[str, str] | None) -> str:
    """Return the branch of a module without a ref: r10k's master, or the repository's own."""
    if refs is None or "refs/heads/master" in refs:
        return "master"
    head = refs.get("HEAD", "")
    heads = [name for name, commit in refs.items() if commit == head and "/heads/" in name]
    names = sorted(name.removeprefix("refs/heads/") for name in heads)
    return "main" if "main" in names or not names else names[0]


def _module(url: GitUrl, kind: str, ref: str) -> GitModule:
    parsed = {"tag": Tag.parse, "branch": parse_branch}.get(kind)
    return GitModule(url=url, ref_kind=kind, ref=parsed(ref) if parsed else ref)


def _at_tag(url: GitUrl, kind: str, ref: str, refs: Mapping[str, str] | None) -> GitModule:
    """Return the module at the tag that points at the same commit."""
    known = refs or {}
    commit = ref if _HEX.match(ref) else known.get(f"refs/heads/{ref}", "")
    if kind == "ref" and f"refs/tags/{ref}" in known:
        return _module(url, "tag", ref)
    tags = [
        name.removeprefix("refs/tags/")
        for name, commit_at_tag in known.items()
        if name.startswith("refs/tags/") and commit and commit_at_tag == commit
    ]
    for tag in sorted(tags, key=_preference):
        try:
            return _module(url, "tag", tag)
        except InvalidInputError:
            continue
    raise InvalidInputError(f"no tag is at {kind} {ref[:40]}")


def _preference(tag: str) -> tuple[bool, list[int], str]:
    """Return a sort key: versions before names like `stable` that move, the highest first."""
    match = _VERSION.match(tag)
    numbers = [-int(number) for number in match[1].split(".")] if match else []
    return (match is None, numbers, tag)


AT_ONCE = 4


class RepositoryAnswer(Value):
    """The refs of a repository by full name, and HEAD, with the commits behind them."""

    refs: Mapping[str, str] | None
    problem: str = ""


NOBODY = RepositoryAnswer(refs=None)


def ask(
    urls: Sequence[str], repository: "Git", progress: Callable[[int, int], None]
) -> dict[str, RepositoryAnswer]:
    """Return the refs of repositories, listed several at a time."""
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
    """The result of importing a Puppetfile: comments above entries; changes of the manifest."""

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
    repository: "Git | None",
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> ImportResult:
    """Return the manifest of a Puppetfile, with the choice for each entry.

    The modulepath and other keys of the existing manifest are kept. Without a `repository` none is
    asked.
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
SIGNALLED = 128  # A shell's exit code for a program that a signal ended starts here.
BOUNDS = Bounds(
    seconds=SECONDS,
    output=limits.MAX_PUPPETFILE_OUTPUT,
    errors=limits.MAX_PUPPETFILE_ERRORS,
    memory=MEMORY,
)
LIMITS = {
    "cpu": CPU_SECONDS,
    "as": MEMORY // limits.MAX_PUPPETFILE_PROGRAMS,
    "fsize": limits.MAX_PUPPETFILE_OUTPUT,
    "core": 0,
    "nofile": 64,
    "nproc": limits.MAX_PUPPETFILE_PROGRAMS,
}


def evaluate(text: bytes, *, path: str) -> Puppetfile:
    """Return the entries of a Puppetfile after Ruby has run it."""
    (ruby,) = find_programs("ruby", path=path, package="ruby")
    # Passed as text: the other user may have no access to localpuppet's directory.
    script = Path(shared_file("puppetfile.rb")).read_text("utf-8")
    program = [ruby, "--disable=gems,did_you_mean", "-e", script]
    isolation = CodeIsolation(
        path=path,
        memory=MEMORY,
        programs=2 * limits.MAX_PUPPETFILE_PROGRAMS,
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
        raise InvalidInputError(
            f"printed more than {limits.MAX_PUPPETFILE_OUTPUT} bytes when Ruby ran it"
        )
    if done.code != 0:
        lines = done.err.decode("utf-8", "replace").strip().splitlines()
        killed = done.code >= SIGNALLED or not lines
        first = "it was killed" if killed else one_line(lines[0])[:300]
        raise InvalidInputError(f"Ruby refuses it: {first}")
    return _puppetfile(done.out)


def _puppetfile(output: bytes) -> Puppetfile:
    try:
        document = loads(output)
        entries = tuple(
            _entry(item) for item in document["modules"][: limits.MAX_PUPPETFILE_MODULES]
        )
        return Puppetfile(entries=entries, forge=str(document["forge"]), notes={})
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
