"""What comes before a run: a package installed, and the release on the node."""

from pathlib import Path

from localpuppet.cli.wiring import Parts
from localpuppet.model.names import ReleasePath


def prepare(parts: Parts, app: str, *, package: Path | None) -> None:
    """Make sure that a release is on the node and sound, as far as it can come from somewhere.

    Args:
        parts: The wiring.
        app: What the input names.
        package: A package to install first, and to stage from.

    Raises:
        LocalpuppetError: The package is refused, or the release cannot be staged.
    """
    from localpuppet.cli.fitting import Approval

    path, approve = ReleasePath.parse(app, where="app"), Approval(parts)
    if package is not None:
        parts.package_tools().install(package)
        with parts.git_progress(f"staging {path}") as repository:
            parts.importer(repository, approve).stage_installed(path)
    elif path.is_tag and _somewhere(parts, path):
        with parts.git_progress(f"staging {path}") as repository:
            parts.importer(repository, approve).stage(path)
    else:
        return
    if not approve.given:
        _read_once(parts, path)


def _read_once(parts: Parts, path: ReleasePath) -> None:
    """Have Puppet's parser read a release that it has not read yet."""
    from localpuppet.cli.fitting import read_staged
    from localpuppet.interface import Interfaces

    if Interfaces(parts.settings.state).kept(parts.release(path)) is None:
        read_staged(parts, path)


def _somewhere(parts: Parts, path: ReleasePath) -> bool:
    """Whether staging could find it; where it could not, the run itself says best what is wrong."""
    from localpuppet.packages import find, find_pack

    settings = parts.settings
    if path.source in settings.sources or find(settings.packages, path) is not None:
        return True
    return find_pack(settings.packages, path) is not None
