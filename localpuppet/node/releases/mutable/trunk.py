"""The modules of `NAME/trunk`, which is a directory that somebody keeps below `modules/`.

Owns: which of them must be brought: those of its lock, unless they are in the directory itself.
Refuses to know: how `trunk` itself came there.
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
    """Brings the modules of what is not a tag.

    Attributes:
        modules: The directory of all modules.
        files: Reads manifests and locks.
        locked: Returns what brings what locks pin; most trunks have their modules in themselves.
    """

    modules: Path
    files: ReleaseFiles
    locked: "Callable[[], LockedModules]"

    def stage(self, app: ReleasePath) -> Lock:
        """Have the modules of `app` on this node; return the lock that says what they are.

        Args:
            app: `foo/trunk`. One that is not here, or has its modules in itself, is left alone.

        Raises:
            InvalidInputError: Manifest or lock is refused, or there is no lock.
            IntegrityError: What the lock pins is not what it was.
            UnavailableError: A repository or the forge cannot be had.
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
