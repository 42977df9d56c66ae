"""Tags the commit of a work tree as a release, after checks of what would be missing from it.

    committed? nothing ignored that matters? a new name? -> check -> still committed? -> tag, push

If a step fails, no tag is left.

    site-modules/profile           is committed: counts
    modules/ntp                    git ignores it, r10k put it there: left out, by name
    site-modules/web/lib/x.rb      git ignores it in a module that counts: Puppet reads it here only

`releases.git.work_tree` lists what git ignores. The results are warnings; nothing here rejects a
release.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import IntegrityError, InvalidInputError, LocalpuppetError, errors_at
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.text import one_line, shown_names
from localpuppet.base.machine.files import read_user_file
from localpuppet.base.value import Value
from localpuppet.node.releases.author.hiera_data import NAME, unused_data
from localpuppet.node.releases.author.puppetfile import parse
from localpuppet.node.releases.author.puppetfile_import import (
    EntryChoice,
    ImportRules,
    import_modules,
    must_ask,
)
from localpuppet.node.releases.composing import ReleaseLayout, layout
from localpuppet.node.releases.git.git_modules import GitModule
from localpuppet.node.releases.git.git_names import TRAILER, Tag, sources_of
from localpuppet.node.releases.git.signatures import signature_kind
from localpuppet.node.releases.git.work_tree import Ignored
from localpuppet.node.releases.manifest import (
    LOCK,
    MANIFEST,
    Manifest,
    ReleaseFiles,
    parse_inner_path,
    require_manifest,
)
from localpuppet.node.releases.modules import Module
from localpuppet.node.releases.source import ReleaseSource

if TYPE_CHECKING:
    from localpuppet.node.releases.git.work_tree import GitWorkTree


# What Puppet would read here, and nodes would not get, if git ignores it.
_MATTERS = (
    *(f":(glob)*/{name}/**" for name in ("manifests", "functions", "types")),
    *("enc.yaml", "hiera.yaml"),
)


class CountersignedTag(Value):
    tag: Tag
    tag_object: str
    commit: str
    source: str
    ref: str


def countersign(
    tree: "GitWorkTree", tag: Tag, *, source: str | None, push: bool
) -> CountersignedTag:
    """Countersign a tag as one more person.

    Args:
        source: The source that the tag must be for; `None` for the one that the tag names.
        push: Push the signature to the remote, which must have the same tag.

    Raises:
        IntegrityError: The tag is malformed, unsigned, for another source, or differs from
            origin's.
        UnavailableError: The remote is unreachable; no signature is left.
    """
    if (existing := tree.tag_object(tag)) is None:
        raise InvalidInputError(
            f"there is no annotated tag {tag} here",
            where=str(tree.directory),
            hint=f"git fetch origin tag {tag}",
        )
    tag_object, body = existing
    where = f"{tree.directory} tag {tag}"
    signature_kind(body, where=where)
    lines = body.split(b"\n")[:3]
    if lines[1:] != [b"type commit", b"tag %s" % tag.encode()]:
        raise IntegrityError("is a nested tag, or has another name inside", where=where)
    named = _source(body, source, where=where)
    if push:
        _refuse_other_than_origins(tree, tag, tag_object, where=where)
    ref = tree.countersign(tag, tag_object, message=f"signs {tag}\n\n{TRAILER}{named}")
    keep_new(tree, ref, sign=True, push=push)
    commit = lines[0].removeprefix(b"object ").decode()
    return CountersignedTag(tag=tag, tag_object=tag_object, commit=commit, source=named, ref=ref)


def _source(body: bytes, wanted: str | None, *, where: str) -> str:
    sources = sources_of(body)
    if wanted is not None and "/" in ReleasePath.parse(wanted, where="--source"):
        raise InvalidInputError(f"{wanted!r} is not the name of a source", where="--source")
    if not sources:
        if wanted is None:
            raise InvalidInputError("does not name its source", where=where, hint="--source NAME")
        return wanted
    if len(sources) > 1 or (wanted is not None and sources != (wanted,)):
        shown = ", ".join(one_line(name)[:60] for name in sources[:3])
        raise IntegrityError(f"is for the source {shown}", where=where, hint="do not sign it")
    return ReleasePath.parse(sources[0], where=where)


def _refuse_other_than_origins(
    tree: "GitWorkTree", tag: Tag, tag_object: str, *, where: str
) -> None:
    if not (theirs := tree.remote_tag(tag)):
        raise InvalidInputError(
            "origin has no such tag", where=where, hint=f"git push origin {tag}, or --no-push"
        )
    if theirs != tag_object:
        raise IntegrityError(
            f"is {tag_object[:12]} here and {theirs[:12]} at origin",
            where=where,
            hint="find out which is right and who moved the tag before you sign",
        )


class Tagged(Value):
    """A release that was tagged."""

    tag: Tag
    commit: str
    signed: bool


def tag_release(
    tree: "GitWorkTree",
    tag: Tag,
    *,
    check: Callable[[], Sequence[str]],
    message: str,
    sign: bool,
    push: bool,
) -> Tagged:
    """Tag the commit of a work tree as a release; after an error, no tag is left.

    `check` checks whether the working copy can be released; it returns files that Puppet reads in
    it and that git ignores.
    """
    commit = tree.commit
    _refuse_uncommitted(tree)
    _refuse_existing(tree, tag, push=push)
    _refuse_unseen(check(), tree.directory)
    # The tag has exactly what was checked, even if the user edited files meanwhile.
    _refuse_uncommitted(tree)
    tree.make_tag(tag, commit=commit, message=message, sign=sign)
    signed = keep_new(tree, f"refs/tags/{tag}", sign=sign, push=push)
    return Tagged(tag=tag, commit=commit, signed=signed)


def keep_new(tree: "GitWorkTree", ref: str, *, sign: bool, push: bool) -> bool:
    """Keep a new tag object, or remove it; return whether it carries a signature."""
    kept = False
    try:
        signed = tree.is_signed(ref)
        if sign and not signed:
            raise InvalidInputError(
                "git made no signature",
                where=str(tree.directory),
                hint="does user.signingkey name an existing key? try: git tag --sign",
            )
        if push:
            tree.push_ref(ref)
        kept = True
    finally:
        if not kept:
            tree.remove_ref(ref)
    return signed


def source_of_tag(
    tree: "GitWorkTree", sources: Mapping[str, ReleaseSource], *, named: str | None, sign: bool
) -> str | None:
    """Return the source that a new tag names; `None` if an unsigned tag names none."""
    if named is not None:
        if "/" in ReleasePath.parse(named, where="--source"):
            raise InvalidInputError(f"{named!r} is not the name of a source", where="--source")
        return named
    url = tree.remote_url()
    names = [name for name, source in sources.items() if source.url == url]
    if len(names) == 1:
        return names[0]
    if sign:
        how_many = "several sources have" if names else "no source has"
        raise InvalidInputError(
            f"a signed tag says which source it is for, and {how_many} the URL of origin",
            where="localpuppet.yaml: sources",
            hint="--source NAME",
        )
    return None


def message_for(text: str, source: str | None) -> str:
    """Return a tag's message, with the trailer that names its source."""
    return text if source is None else f"{text}\n\n{TRAILER}{source}"


def parse_release_tag(text: str) -> Tag:
    tag = Tag.parse(text, where="TAG")
    if "/" in tag:
        raise InvalidInputError(
            f"{tag!r} has a '/': a node could not name it as NAME/tags/TAG", where="TAG"
        )
    ReleasePath.parse(f"app/tags/{tag}", where="TAG")
    return tag


def _refuse_uncommitted(tree: "GitWorkTree") -> None:
    if not tree.tracked(MANIFEST):
        require_manifest(tree.directory)
    for name in (MANIFEST, LOCK):
        if not tree.tracked(name):
            if tree.ignored(name):
                raise InvalidInputError(
                    f"git ignores {name}, which the release needs",
                    where=str(tree.directory),
                    hint=f"git add -f {name}, or correct .gitignore",
                )
            made = "" if name == MANIFEST else f"'localpuppet release lock {tree.directory}', "
            raise InvalidInputError(
                f"{name} is not committed",
                where=str(tree.directory),
                hint=f"{made}git add, git commit",
            )
    if changes := tree.changes():
        more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
        raise InvalidInputError(
            f"the work tree is not clean: {changes[0]}{more}",
            where=str(tree.directory),
            hint="commit, stash or ignore it: a tag holds what is committed",
        )
    _refuse_unseen(tree.ignored(*_MATTERS), tree.directory)


def _refuse_unseen(files: Sequence[str], directory: Path) -> None:
    if files:
        raise InvalidInputError(
            f"git ignores {files[0]}, which Puppet reads here and nodes do not have",
            where=str(directory),
            hint="commit it (git add -f), or remove it",
        )


def _refuse_existing(tree: "GitWorkTree", tag: Tag, *, push: bool) -> None:
    if tree.has_tag(tag):
        raise InvalidInputError(
            f"the tag {tag} exists already, and a release never changes",
            where=str(tree.directory),
            hint=f"choose the next name; if the tag was never pushed: git tag -d {tag}",
        )
    if push and tree.remote_tag(tag):
        raise InvalidInputError(
            f"origin has the tag {tag} already, and a release never changes",
            where=str(tree.directory),
            hint="choose the next name; 'git fetch --tags' shows the existing tags",
        )


# What Puppet reads of a module; the rest of it (`spec/`, `pkg/`) is anybody's to ignore.
_READ = (
    *("manifests", "functions", "types", "lib", "facts.d", "templates", "files", "data"),
    "hiera.yaml",
)


class OwnModules(Value):
    """The modules of a working copy, and its code outside of modules; paths are relative to it.

    Attributes:
        kept: Directory of the modulepath → its modules that count.
        code: Directories and files of the other code that count.
        left_out: Modules and directories of code that git ignores.
        unseen: Files of modules and code that count, and that git ignores.
    """

    kept: Mapping[str, tuple[Path, ...]]
    code: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def modules(self) -> list[Path]:
        """The modules that count, in the order of the modulepath."""
        return [path for paths in self.kept.values() for path in paths]

    def warnings(self) -> list[str]:
        """Return warnings about them, a line each."""
        lines = []
        if self.left_out:
            lines.append(
                f"{shown_names(self.left_out)}: left out, as git ignores it: no node has it"
            )
        if self.unseen:
            lines.append(
                f"{shown_names(self.unseen)}: git ignores it: Puppet reads it here, and no node"
            )
        return lines


def own_modules(
    directory: Path, modulepath: Iterable[str], ignored: Ignored, *, code: Sequence[str] = ()
) -> OwnModules:
    """Return the modules of a working copy, and its other code; paths are relative to it."""
    kept: dict[str, tuple[Path, ...]] = {}
    own = tuple(part for part in code if part not in ignored)
    left_out = [part for part in code if part in ignored]
    unseen = [file for part in own for file in ignored.inside(f"{part}/") if _counts(file)]
    for part in modulepath:
        before = f"{part}/" if part else ""
        if part and part in ignored:
            left_out.append(part)
            continue
        directories = sorted(path for path in (directory / part).iterdir() if path.is_dir())
        kept[part] = tuple(path for path in directories if f"{before}{path.name}" not in ignored)
        left_out += [f"{before}{path.name}" for path in directories if path not in kept[part]]
        for path in kept[part]:
            name = f"{before}{path.name}/"
            unseen += [
                file
                for file in ignored.inside(name)
                if file.removeprefix(name).partition("/")[0] in _READ and _counts(file)
            ]
    return OwnModules(kept=kept, code=own, left_out=tuple(left_out), unseen=tuple(unseen))


def _counts(file: str) -> bool:
    """Return whether a file is not a leftover of an editor."""
    name = file.rpartition("/")[2]
    return not name.startswith(".") and not name.endswith("~")


def is_module(directory: Path) -> bool:
    """Return whether a directory has code that Puppet loads from a module."""
    code = ("manifests/**/*.pp", "functions/**/*.pp", "types/**/*.pp", "lib/puppet", "lib/facter")
    return any(next(directory.glob(pattern), None) for pattern in code)


PUPPETFILE = "Puppetfile"
# Where modules are for tests and examples.
_NO_PLACES = ("spec", "test", "tests", "acceptance", "examples", "fixtures", "vendor")
_NO_MODULEDIR = "the manifest has no moduledir (write 'moduledir: modules' into manifest.yaml)"
_NO_BASE = (
    "environment.conf: $basemodulepath is not used: a release has all its modules"
    " (to add modules of the node, set 'basemodulepath:' in localpuppet.yaml)"
)
_SITE = ("*.pp", "manifests/**/*.pp")
# What Puppet loads from an environment.
_LOADED = (
    *("functions/**/*.pp", "types/**/*.pp", "lib/puppet/functions/**/*.rb"),
    *("lib/puppet/parser/functions/*.rb", "lib/puppet/datatypes/**/*.rb"),
)
_OF_MODULES = ("lib/**/*.rb", "facts.d/*", "files/**/*", "templates/**/*")


def unused_parts(
    directory: Path, manifest: Manifest, *, files: ReleaseFiles, but: Container[str] = ()
) -> list[str]:
    """Return what r10k or Puppet would use in a control repository and its release does not.

    Unlike `check_data`, it does not read `hiera.yaml`.
    """
    inner = layout(directory, manifest.moduledir, manifest.site_manifest)
    notes = [*inner.notes]
    if inner.base and not files.basemodulepath:
        notes.append(_NO_BASE)
    notes += unused_code(directory, manifest, inner, but=but)
    if not (directory / NAME).is_file():
        notes += unused_data(directory, directory, None)
    try:
        return notes + left_of_puppetfile(directory, manifest, inner.modulepath)
    except InvalidInputError as error:
        return [*notes, str(error)]


def left_of_puppetfile(
    directory: Path, manifest: Manifest, modulepath: Iterable[str] = ()
) -> list[str]:
    """Return the Puppetfile entries that the manifest lacks or pins otherwise, a line each."""
    file = directory / PUPPETFILE
    if not file.exists():
        return []
    with errors_at(PUPPETFILE, LocalpuppetError):
        puppetfile = parse(read_user_file(file).decode("utf-8", "replace"))
    paths = (manifest.moduledir or ".", *modulepath)
    rules = ImportRules(allow_file=True, use_tags=False, paths=paths, asking=False)
    imported = import_modules(puppetfile, rules=rules, old=manifest, repository=None)
    notes = [
        f"{PUPPETFILE}:{choice.entry.line}: {choice.name} is not in the manifest"
        + (f": {choice.left}" if choice.left else " (run 'localpuppet release import')")
        for choice in imported.choices
        if choice.name not in manifest.modules
    ]
    notes += [
        f"{PUPPETFILE}:{choice.entry.line}: {choice.name} is at {choice.pinned_by}, and at another"
        " version in the manifest (run 'localpuppet release import')"
        for choice in imported.choices
        if (locked := manifest.modules.get(choice.name)) and _is_moved(choice, locked, rules)
    ]
    return notes + [f"{PUPPETFILE}:{line}: {note}" for line, note in puppetfile.notes.items()]


def _is_moved(choice: EntryChoice, locked: Module, rules: ImportRules) -> bool:
    """Return whether a Puppetfile entry certainly names another version than the manifest.

    No repository is asked: the branch of an entry without a ref, and the tag at a commit, are
    unknown.
    """
    named = choice.module
    if named is None or named == locked:
        return False
    if not isinstance(named, GitModule) or not isinstance(locked, GitModule):
        return named.fields != locked.fields
    is_guessed = named.ref_kind == "branch" and must_ask(choice.entry, rules) is not None
    is_at_commit = locked.is_tag and not named.is_tag
    return named.url != locked.url or not (is_guessed or is_at_commit or named.ref == locked.ref)


def unused_code(
    directory: Path, manifest: Manifest, inner: ReleaseLayout, *, but: Container[str] = ()
) -> list[str]:
    """Return code of a release that no run uses, a line for each directory or kind."""
    moduledir = manifest.moduledir
    notes = []
    if moduledir and not manifest.modules and not (directory / moduledir).is_dir():
        notes.append(f"modulepath: there is no directory {moduledir}")
    cure = "it is not on the modulepath (name it in environment.conf)"
    notes += [
        f"{name}: its modules are not used: {cure if moduledir else _NO_MODULEDIR}"
        for name in _places_of_modules(directory, inner.modulepath, but)
    ]
    site = f"the site manifest is {inner.site_manifest or 'not in the release'}"
    loaded = _files(directory, _LOADED, but)
    of_modules = [name for name in _files(directory, _OF_MODULES, but) if name not in loaded]
    used = (*inner.modulepath, *inner.own_code)
    alone = "Puppet takes such files from modules alone (move them into one)"
    for names, places, why in (
        (_files(directory, _SITE, but), used, site if moduledir else _NO_MODULEDIR),
        (loaded, used, _NO_MODULEDIR),
        (of_modules, inner.modulepath, alone),
    ):
        unused = [name for name in names if not any(_is_in(name, place) for place in places)]
        if unused:
            notes.append(f"{shown_names(unused)}: not used: {why}")
    return notes


def _files(directory: Path, patterns: Iterable[str], but: Container[str]) -> list[str]:
    """Return the files of a release that match a pattern, and are not in a module at its top."""
    paths = (path for pattern in patterns for path in directory.glob(pattern) if path.is_file())
    names = (path.relative_to(directory).as_posix() for path in paths)
    return sorted(
        name
        for name in names
        if name not in but and not is_module(directory / name.partition("/")[0])
    )


def _is_in(name: str, place: str) -> bool:
    return name == place or name.startswith(f"{place}/")


def _places_of_modules(
    directory: Path, modulepath: Iterable[str], but: Container[str]
) -> list[str]:
    """Return module directories outside of the modulepath; for the top, its modules."""
    used = {parse_inner_path(name, where="modulepath") for name in modulepath}
    places: set[str] = set()
    pending = [""]
    while pending:
        place = pending.pop()
        for path in (directory / place).iterdir():
            name = f"{place}/{path.name}".lstrip("/")
            if path.name.startswith(".") or path.name in _NO_PLACES or name in but:
                continue
            if path.is_symlink() or not path.is_dir():
                continue
            if not is_module(path):
                pending.append(name)
            elif place not in used:
                places.add(place or name)
    return sorted(places)
