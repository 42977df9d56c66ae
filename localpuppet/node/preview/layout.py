"""The names of a release's files, and its layout, which each catalog depends on."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from localpuppet.node.preview.ports import OWN_PREFIX, SITE_PREFIX
from localpuppet.node.releases.release import Release

# Means the layout, among the files of a release.
LAYOUT = "@layout"


def release_roots(
    release: Release, *, own_modules: Path, site_manifest: Path, environments: Path | None = None
) -> dict[str, str]:
    """Return the directories and files of a release → their names; see `ports`.

    Args:
        release: The release.
        own_modules: The directory of localpuppet's own modules.
        site_manifest: The site manifest for a release that has none.
        environments: The directory of environments with links to its code, if there is one.
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


def layout_digest(release: Release, *, own_modules: Path, site_manifest: Path) -> str:
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
