"""Chooses the manifest entry for each module of a Puppetfile, or the reason to leave it out.

The rules are r10k's where r10k has some: a ref is a tag before it is a branch, and a module without
a ref is at `master`. If the refs are unknown, the form of a name decides.
"""

import re
from collections.abc import Mapping

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.value import Value
from localpuppet.node.releases.forge.versions import Range, Slug
from localpuppet.node.releases.git.names import GitUrl, Tag, parse_branch, parse_module_name
from localpuppet.node.releases.manifest import ForgeModule, GitModule, Module, parse_inner_path
from localpuppet.node.releases.puppetfile.parsing import PuppetfileEntry

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
    """Return the URL of a repository, and a note about what was changed in it.

    Raises:
        InvalidInputError: No URL of a manifest can express it.
    """
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
        return GitUrl.parse(text.rstrip("/"), where="", allow_file=allow_file), note
    except InvalidInputError as error:
        if "credentials" in str(error):
            raise InvalidInputError("its URL holds a password", hint="use ssh keys") from error
        raise InvalidInputError(
            "its repository is not an https or ssh URL",
            hint="use a URL that nodes reach; 'allow_file_urls: true' allows file:///",
        ) from error


class ImportRules(Value):
    """Rules besides the Puppetfile itself.

    Attributes:
        allow_file: Whether `file://` URLs are allowed.
        use_tags: Replace a branch or commit by the tag at the same commit, or leave the entry out.
        paths: Directories of the modulepath, for `install_path`.
        asking: Whether repositories are asked; otherwise the form of a name decides.
    """

    allow_file: bool
    use_tags: bool
    paths: tuple[str, ...]
    asking: bool


class EntryChoice(Value):
    """The result for an entry.

    Attributes:
        entry: The entry.
        name: The module's name, or the entry's if that is not a module name.
        module: The module in the manifest; `None` if left out, or if its repository must be asked
            first.
        pinned_by: What pins it, in words.
        left: Why it is left out, or empty.
        notes: Notes for the user.
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

    Args:
        entry: The entry.
        rules: The rules besides it.
        refs: Full name of each ref of its repository, and HEAD, → the commit behind it; `None` if
            the repository was not asked or did not answer.
        unasked: Why it did not answer; empty if it was not asked.
    """
    _, separator, rest = entry.name.replace("/", "-", 1).partition("-")
    name = rest if separator else entry.name
    if entry.left:
        return EntryChoice(entry=entry, name=name, left=entry.left)
    options = _options(entry)
    notes = _notes(options)
    try:
        parse_module_name(name, where="")
        _refuse_others(options)
        _refuse_place(options.get("install_path", entry.moduledir), rules)
        if "git" not in options:
            module: Module | None = _forge(entry, options, rules)
            version_text = module.version.text if isinstance(module, ForgeModule) else ""
        else:
            url, note = git_url(options["git"], allow_file=rules.allow_file)
            notes += [note] if note else []
            module, version_text, more = _git(url, options, rules, refs, unasked)
            notes += more
            named = _named(options)[1] not in ("", CONTROL)
            # r10k takes it where a branch is missing.
            if module and module.kind == "branch" and named and options.get("default_branch"):
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
    unknown = sorted(set(options) - _KNOWN - ({"git"} if "git" in options else {*_OTHERS}))
    if unknown:
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
        inner = parse_inner_path(place.removeprefix("./"), where="") or "."
    except InvalidInputError:
        inner = ""
    if inner not in rules.paths:
        shown = place if place.removeprefix("./") else f"{place!r}, the top of the release"
        raise InvalidInputError(
            f"goes to {shown} by install_path or moduledir, which is not on the modulepath"
        )


def _forge(entry: PuppetfileEntry, options: Mapping[str, str], rules: ImportRules) -> ForgeModule:
    text = entry.version or options.get("version", "") or "latest"
    if rules.use_tags:
        raise InvalidInputError("is of the Forge, and only tags are taken")
    text = "latest" if text in ("present", "installed") else text
    slug = Slug.parse(entry.name, where="")
    return ForgeModule(slug=slug, version=Range.parse(text, where=""))


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
    return GitModule(url=url, kind=kind, ref=parsed(ref, where="") if parsed else ref)


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
