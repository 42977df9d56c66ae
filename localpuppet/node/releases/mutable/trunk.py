"""Brings the modules of `NAME/trunk`, a directory that the site maintains below `modules/`.

These are the modules of its lock, unless they are in the directory itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.releases.lock import Lock
from localpuppet.node.releases.lockfile import EMPTY, LOCK, MANIFEST
from localpuppet.node.releases.release import missing_modules
from localpuppet.node.releases.release_files import ReleaseFiles

if TYPE_CHECKING:
    from localpuppet.node.releases.mutable.modules import LockedModules


@dataclass(frozen=True, slots=True, kw_only=True)
class TrunkStaging:
    """Brings the modules of `trunk`.

    Attributes:
        modules: The directory of all modules.
        files: Reads manifests and locks.
        locked: Returns what brings locked trees; called only if a `trunk` needs some.
    """

    modules: Path
    files: ReleaseFiles
    locked: "Callable[[], LockedModules]"

    def stage(self, app: ReleasePath) -> Lock:
        """Bring the modules of `app` onto this node; return their lock.

        Args:
            app: `foo/trunk`. Skipped if missing, or if its modules are in the directory.

        Raises:
            InvalidInputError: Manifest or lock is invalid, or the lock is missing.
            IntegrityError: A tree differs from its pin.
            UnavailableError: A repository or the forge is unreachable.
            BusyError: Another process changes the store.
        """
        directory = self.modules / app
        if not (directory / MANIFEST).exists():
            return EMPTY
        manifest = self.files.manifest(directory, app, immutable=False)
        if not missing_modules(manifest, directory):
            return EMPTY
        lock = self.files.pinned(directory, manifest)
        title = f"staging modules of {app}"
        self.locked().bring(lock, lock.trees, title=title, file=directory / LOCK)
        return lock
