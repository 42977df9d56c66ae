"""Requests to compile a catalog, their results, the engine's port, and a release's layout.

- A name is a path relative to the release, as `Release.directories` makes it: `manifests/site.pp`,
  `modules/apache/manifests/init.pp`. The site manifest of a root starts with `SITE_PREFIX`,
  files of `Release.base` start with `/`. The release itself is `.`; no name ends with a slash.
- Localpuppet's own modules (`OWN_PREFIX`) are in messages, but no reads: the key of each cached
  catalog has their version.
- `@layout` means the modulepath, Hiera and the site manifest (`LAYOUT`).
- A node's name, environment and classes count for each of its catalogs, so no read names them.
- What Puppet caches from one node to the next is part of the reads of each node that uses it.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value

if TYPE_CHECKING:  # the inventory starts without them
    from localpuppet.node.puppet.catalog import CanonicalCatalog
    from localpuppet.node.releases.release import Release

OWN_PREFIX = "@localpuppet/"
SITE_PREFIX = "@site/"

_PLACE = re.compile(r" \((?:file: [^()]*|line: \d+(?:, column: \d+)?)\)(?: on node \S+)?\Z")
# Means every top-scope variable.
ALL = "*"
# A path into facts or trusted facts: `("os", "family")`; empty for all of them.
FactPath = tuple[str, ...]


class CapturedQuery(Value):
    """An answer of the agent to the catalog of a node's last good run.

    Attributes:
        function: A query function, without `localpuppet::`; `collect` for a collector; `leader`.
        arguments: The arguments of the call: of `collect` the type and the filter, of `leader` the
            lease and its TTL.
        answer: What the function returned: of `collect` the list `resources` of the agent's answer,
            of `leader` the name of the holder, or null.
    """

    function: str
    arguments: tuple[Json, ...]
    answer: Json


class CompileRequest(Value):
    """A catalog to compile; without trusted facts, Puppet makes them of the name."""

    node: str
    facts: Mapping[str, Json]
    trusted: Mapping[str, Json] = field(default_factory=dict)
    parameters: Mapping[str, Json] = field(default_factory=dict)
    classes: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    environment: str = "production"
    queries: tuple[CapturedQuery, ...] = ()


class CompileFailure(Value):
    """Why a catalog did not compile, in one line with file names relative to the release."""

    message: str
    file: str | None = None
    line: int | None = None

    @property
    def plain_message(self) -> str:
        """Return the message without the place, if `file` has it."""
        return self.message if self.file is None else _PLACE.sub("", self.message)

    def is_like(self, other: "CompileFailure") -> bool:
        """Return whether another failure is the same error, perhaps in another line."""
        return (self.plain_message, self.file) == (other.plain_message, other.file)


class RawReads(Value):
    """What a compile read, without the contents; all lists are sorted and unique.

    Attributes:
        absent: Paths that did not exist.
        present: Paths that existed, whose kind counts (file, directory), but not the content.
        listed: Directories whose names of entries count. `**/x` after a directory (`data/**`)
            means the names of everything below it.
        keys: Data file → its root keys that Hiera looked up, whether the file has them or not.
        parameters: Top-scope variables that were looked up, except `facts` and `trusted`: legacy
            facts, parameters of the node document, undefined ones. `ALL` means every one of them.
    """

    files: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    present: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    facts: tuple[FactPath, ...] = ()
    trusted: tuple[FactPath, ...] = ()
    parameters: tuple[str, ...] = ()
    queries: tuple[CapturedQuery, ...] = ()
    impure: tuple[str, ...] = ()


class CompileResult(Value):
    """The result of one request: a catalog or a failure, and what the compile read.

    A failure without reads (`impure` says why) is one of the machine, such as a time limit. `size`
    is about how many bytes of memory it needs.
    """

    node: str
    catalog: "CanonicalCatalog | None" = None
    failure: CompileFailure | None = None
    reads: RawReads
    size: int = 0


class CompileEngine(Protocol):
    def compile(
        self, release: "Release", requests: Iterable[CompileRequest]
    ) -> Iterator[CompileResult]:
        """Yield exactly one result for each request, in any order.

        A node's failure ends nothing else.

        Raises:
            PuppetMissingError: Puppet is not installed.
            StateError: The compiler cannot be started, or cannot be isolated.
        """


# Means the layout, among the files of a release.
LAYOUT = "@layout"
# What no release may have at its top: reads of it would count as those of something else.
RESERVED = (OWN_PREFIX.rstrip("/"), SITE_PREFIX.rstrip("/"), LAYOUT)


def release_roots(
    release: "Release", *, own_modules: Path, site_manifest: Path, environments: Path | None = None
) -> dict[str, str]:
    """Return the directories and files of a release → their names.

    `environments` is a directory of environments with links to its code.
    """
    roots = {str(release.directory): "", str(own_modules): OWN_PREFIX.rstrip("/")}
    if release.hiera_config is not None:
        roots[str(release.hiera_config.parent)] = ""
    roots.update({str(path): str(path) for path in release.base})
    roots.update({str(path): start for start, path in release.trees.items()})
    for directory in release.modulepath:
        # The links to single modules are outside of the release.
        inner = [
            start for start, path in release.trees.items() if start and path.parent == directory
        ]
        if (
            str(directory) not in roots
            and inner
            and not directory.is_relative_to(release.directory)
        ):
            roots[str(directory)] = inner[0].rpartition("/")[0]
    if release.site_manifest is None:
        roots[str(site_manifest)] = f"{SITE_PREFIX}{site_manifest.name}"
    if environments is not None:
        names = dict(roots)
        for environment in environments.iterdir():
            for path in release.environment_code:
                roots[str(environment / path.name)] = _name(path, names)
    return roots


def layout_digest(release: "Release", *, own_modules: Path, site_manifest: Path) -> str:
    """Return the digest of the names on the modulepath, and of Hiera and the site manifest."""
    roots = release_roots(release, own_modules=own_modules, site_manifest=site_manifest)
    parts = [
        *("modulepath", *(_name(path, roots) for path in release.whole_modulepath)),
        *("code", *(_name(path, roots) for path in release.environment_code)),
        *("hiera", _name(release.hiera_config, roots) if release.hiera_config else ""),
        *("manifest", _name(release.site_manifest or site_manifest, roots)),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _name(path: Path, roots: Mapping[str, str]) -> str:
    """Return the name of a path of a release; the path itself if it is not in the release."""
    for root, name in sorted(roots.items(), key=lambda root: -len(root[0])):
        if path.is_relative_to(root):
            rest = str(path.relative_to(root))
            return "/".join(part for part in (name, rest) if part not in ("", ".")) or "."
    return str(path)
