"""A release on disk: from `app: foo/tags/r1` to a modulepath.

All files of a release are inside `modules/` or the store.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import ReleasePath, suggest
from localpuppet.base.machine.files import is_file, refuse_foreign
from localpuppet.base.value import Value
from localpuppet.node.releases.composing import HIERA, ModuleLinks, layout, release_links
from localpuppet.node.releases.manifest import (
    CREATE_MANIFEST,
    LOCK,
    MANIFEST,
    Manifest,
    ReleaseFiles,
)
from localpuppet.node.releases.release_records import StagedRecords, StagedRelease, Verifications
from localpuppet.node.releases.source import ReleaseSource

ENC = "enc.yaml"


class Release(Value):
    """A release that can be applied.

    Attributes:
        modulepath: Absolute directories, the app's own first; for a staged release the unchanging
            ones in its record. `names` are those of the same directories below `modules/`.
        enc: Its `enc.yaml`, as `ReleaseFiles.read_enc` returned it.
        mutable: Directories of the modulepath that are not tags.
        site_manifest: Its own site manifest, a file or directory; `None` for the root's.
        work_tree: The directory of an unreleased work tree; else empty.
        own_code: Its directories and files with code outside of modules, by their names.
        base: The node's own module directories, after the others: `$basemodulepath`.
        trees: Its trees: its own with an empty name, those of single modules and collections by the
            directory that prefixes their names.
    """

    name: str
    directory: Path
    modulepath: tuple[Path, ...]
    names: tuple[Path, ...]
    enc: Any
    hiera_config: Path | None
    mutable: tuple[str, ...]
    site_manifest: Path | None = None
    work_tree: str = ""
    own_code: Mapping[str, Path] = field(default_factory=dict)
    base: tuple[Path, ...] = ()
    repaired: str = ""
    trees: Mapping[str, Path] = field(default_factory=dict)

    @property
    def config_version(self) -> str:
        """Return the configuration version for Puppet: the release's name, as one shell word."""
        return "work-tree" if self.work_tree else self.name

    @property
    def is_immutable(self) -> bool:
        """Return whether all its modules are those of tags, which do not change."""
        return not (self.mutable or self.work_tree or self.base)

    @property
    def has_sealed_values(self) -> bool:
        """Whether it has values that only some nodes open."""
        return (self.directory / "sealed").is_dir()

    @property
    def environment_code(self) -> tuple[Path, ...]:
        """Directories from which Puppet loads code for every module, like its environment's."""
        return tuple(path for path in self.own_code.values() if path != self.site_manifest)

    @property
    def whole_modulepath(self) -> tuple[Path, ...]:
        """Every directory in which Puppet looks for modules, except localpuppet's own."""
        return (*self.modulepath, *self.base)

    @property
    def directories(self) -> dict[str, str]:
        """Paths of its trees as Puppet sees them → prefix of their names in the release."""
        others = {str(tree): f"{start}/" for start, tree in self.trees.items() if start}
        return {**others, str(self.directory): ""}


def resolve(
    app: ReleasePath,
    *,
    modules: Path,
    store: Path,
    files: ReleaseFiles,
    sources: Mapping[str, ReleaseSource],
    immutable_only: bool,
) -> Release:
    """Return the release `app` below `modules`; `immutable_only` rejects all but tags.

    Staged tags of a source that requires signatures must be verified with its current signers
    file. The targets of a staged release's links are in `store`, the state directory.
    """
    if app.is_assigned:
        raise InvalidInputError(
            f"no release of {app.source} is assigned to this node",
            where=str(app),
            hint=f"assign a release: 'localpuppet assign NODE {app.source}/tags/TAG'",
        )
    inside = [modules, store / "objects", store / "releases"]
    name = _directory(app, inside, where=str(app), sources=sources)
    if (staged := _staged(app, name, store)) is not None:
        Verifications(store).refuse(staged, sources)
    directory = name if staged is None else store / "releases" / staged.composition
    if immutable_only and not app.is_tag:
        raise InvalidInputError(
            "can change, and 'immutable_only' is set", where=str(app), hint="name a tag of it"
        )
    manifest_file = directory / MANIFEST
    if not manifest_file.exists():
        inside_it = (directory / "tags").is_dir() or (directory / "trunk").is_dir()
        hint = f"name a release: {app}/tags/… or {app}/trunk" if inside_it else CREATE_MANIFEST
        raise InvalidInputError("there is no manifest.yaml", where=str(directory), hint=hint)
    try:
        locked = is_file(directory / LOCK)
        manifest = files.manifest(directory, app, immutable=immutable_only or locked)
        single, hiera = _single(manifest, directory, files, None if staged else store)
        place = ReleaseLocation(
            directory=directory,
            own=None if staged is None else store / "objects" / staged.pin.tree_sha256,
            name=name,
            inside=inside,
            single=single,
            hiera=hiera,
            collections=[
                (
                    modules / entry,
                    _directory(entry, inside, where=f"modulepath[{index}]", sources=sources)
                    if staged is None
                    else _collection(entry, staged, store, where=f"modulepath[{index}]"),
                )
                for index, entry in enumerate(manifest.modulepath)
            ],
        )
        return assemble(app, manifest, place, files=files)
    except LocalpuppetError as error:
        named = error.where.startswith(str(manifest_file))
        raise error if named else error.at(str(manifest_file)) from error


class ReleaseLocation(Value):
    """The location of a release's parts.

    Attributes:
        own: Its own tree if the directory consists of links, else `None`.
        single: Links to its single modules; `None` if they are in the release itself.
        hiera: The directory in which its `hiera.yaml` finds data.
    """

    directory: Path
    name: Path
    inside: Sequence[Path]
    single: Path | None
    hiera: Path
    collections: Sequence[tuple[Path, Path]]
    own: Path | None = None


def assemble(
    app: str, manifest: Manifest, place: ReleaseLocation, *, files: ReleaseFiles
) -> Release:
    """Return the release whose parts are at a location."""
    directory, inside = place.directory, place.inside
    where = layout(directory, manifest.moduledir, manifest.site_manifest)
    directories = [_inner(directory, part, inside) for part in where.modulepath]
    names = [place.name / part for part in where.modulepath]
    if place.single is not None and where.single is not None:
        directories.insert(where.single, place.single)
        names.insert(where.single, place.name / manifest.moduledir)
    for index, (name, collection) in enumerate(place.collections):
        if any(collection.samefile(other) for other in directories):
            raise InvalidInputError(
                f"{manifest.modulepath[index]} is a directory that is on the modulepath already"
                " (twice)",
                where=f"modulepath[{index}]",
            )
        directories.append(collection)
        names.append(name)
    hiera = place.hiera / HIERA
    base = tuple(files.basemodulepath) if where.base else ()
    for directory_of_node in base:
        refuse_foreign(directory_of_node)
    return Release(
        name=app,
        directory=directory,
        modulepath=tuple(directories),
        names=tuple(names),
        enc=files.read_enc(directory / ENC, files.documents),
        hiera_config=hiera if is_file(hiera) else None,
        mutable=tuple(
            entry
            for entry in (app, *manifest.modulepath)
            if not isinstance(entry, ReleasePath) or not entry.is_tag
        ),
        site_manifest=_inner(directory, where.site_manifest, inside)
        if where.site_manifest
        else None,
        own_code={
            str(place.name / part): _inner(directory, part, inside) for part in where.own_code
        },
        base=base,
        trees=_trees(manifest, place),
    )


def _trees(manifest: Manifest, place: ReleaseLocation) -> dict[str, Path]:
    """Return the trees of a release; see `Release.trees`."""
    inner = f"{manifest.moduledir}/" if manifest.moduledir else ""
    single = place.single or place.directory / manifest.moduledir
    collections = zip(manifest.modulepath, place.collections, strict=True)
    return {
        "": place.own or place.directory,
        **{f"{inner}{name}": single / name for name in manifest.modules},
        **{entry.source: directory for entry, (_, directory) in collections},
    }


def _single(
    manifest: Manifest, directory: Path, files: ReleaseFiles, store: Path | None
) -> tuple[Path | None, Path]:
    """Return the links to single modules, and the directory of its `hiera.yaml`.

    There are no links if the modules are in the release; without a `store` they must be.
    """
    if not (missing := missing_modules(manifest, directory)):
        files.refuse_open_branches(manifest, directory)
        return None, directory
    if store is not None:
        links = ModuleLinks(store)
        trees = files.pinned(directory, manifest).trees
        wanted = release_links(directory, manifest.moduledir, trees)
        if links.has(wanted):
            return links.places(directory, wanted)
    raise InvalidInputError(
        "is not on this node", where=f"modules.{missing[0]}", hint="'localpuppet stage' fetches it"
    )


def missing_modules(manifest: Manifest, directory: Path) -> list[str]:
    """Return the single modules that are not in a release itself."""
    inner = directory / manifest.moduledir
    return [name for name in manifest.modules if not (inner / name).is_dir()]


def _inner(directory: Path, part: str, inside: Sequence[Path]) -> Path:
    """Return a directory or file inside a release that others cannot write."""
    path = directory / part if part else directory
    real = path.resolve()
    if not any(real.is_relative_to(allowed.resolve()) for allowed in inside):
        raise InvalidInputError(f"{part} points outside the release", where=str(directory))
    if part:
        refuse_foreign(path)
    return path


def _staged(app: ReleasePath, name: Path, store: Path) -> StagedRelease | None:
    """Return the record of a release whose name is a link that staging made, else `None`."""
    if not name.is_symlink() or name.readlink().parent != store / "releases":
        return None
    staged = StagedRecords(store).of(app)
    if staged is None or not (store / "releases" / staged.composition).is_dir():
        raise InvalidInputError(
            "is incomplete on this node: its record or its link directory is missing",
            where=str(app),
            hint="'localpuppet stage' repairs it",
        )
    return staged


def _collection(entry: ReleasePath, staged: StagedRelease, store: Path, *, where: str) -> Path:
    """Return the tree of a collection that a staged release has pinned."""
    tree = store / "objects" / staged.sources.get(entry, "")
    if entry not in staged.sources or not tree.is_dir():
        raise InvalidInputError(
            f"{entry} is not on this node as {staged.release} pins it",
            where=where,
            hint="'localpuppet stage' repairs it",
        )
    refuse_foreign(tree)
    return tree


def _directory(
    name: ReleasePath, inside: Sequence[Path], *, where: str, sources: Collection[str]
) -> Path:
    modules = inside[0]
    path = modules / name
    if not path.is_dir():
        problem, hint = "", "'localpuppet stage' fetches it"
        if name.source == name and name not in sources:
            hint = "name a release: SOURCE/tags/TAG, or the directory of a work tree"
            first, _, tag = name.rpartition("/")
            known = [source for source in sources if f"{first or source}/".startswith(f"{source}/")]
            if known:
                source = max(known, key=len) if first or len(known) == 1 else "SOURCE"
                hint = f"did you mean '{source}/tags/{tag}' or '{source}/branches/{tag}'?"
        elif name.source not in sources:
            problem = f", and no source {name.source!r} is configured"
            near = suggest(name.source, list(sources), most=1)
            declared = f"'sources: {{{name.source}: {{git: URL}}}}'"
            hint = near or f"declare it in localpuppet.yaml: {declared}"
        raise InvalidInputError(
            f"does not exist: there is no directory {path}{problem}", where=where, hint=hint
        )
    for way in (*reversed(Path(name).parents), Path(name)):  # who writes one can exchange the next
        refuse_foreign(modules / way)
    real = path.resolve()
    if name.is_tag and real.is_relative_to(modules.resolve()):
        # A tag that is a link to trunk is mutable, whatever it is called.
        points_at = ReleasePath(real.relative_to(modules.resolve()))
        if not points_at.is_tag:
            raise InvalidInputError(f"is a link to {points_at}, no tag", where=where)
    if not any(real.is_relative_to(allowed.resolve()) for allowed in inside):
        raise InvalidInputError(
            f"is a link that points outside {modules}", where=where, hint="keep modules inside"
        )
    return path
