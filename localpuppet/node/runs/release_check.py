"""Checks whether a release can be tagged: closed, locked, and parsed by Puppet.

The checks read a directory as it is and change nothing in it. They also follow the manifests of
dependencies.
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, errors_at
from localpuppet.base.value import Value
from localpuppet.node.enc.input import read_enc
from localpuppet.node.releases.author.hiera_data import NAME as HIERA
from localpuppet.node.releases.author.hiera_data import check_data, refuse_unloadable, yaml_files
from localpuppet.node.releases.author.tagging import OwnModules, own_modules, unused_parts
from localpuppet.node.releases.composing import layout
from localpuppet.node.releases.fetch import Supply, wanted_of
from localpuppet.node.releases.git.git_modules import GitModule, Pin
from localpuppet.node.releases.git.git_names import GitUrl, Tag
from localpuppet.node.releases.git.work_tree import Ignored
from localpuppet.node.releases.limits import Budget
from localpuppet.node.releases.manifest import LOCK, MANIFEST, Lock, Manifest, check_complete
from localpuppet.node.releases.module_metadata import unmet
from localpuppet.node.releases.release import ENC
from localpuppet.node.releases.source import tag_of
from localpuppet.node.runs.interface import Interface, check_classes
from localpuppet.node.runs.interface_reader import Parser, modules_in
from localpuppet.node.sealed.sealed_findings import SealedFindings

if TYPE_CHECKING:
    from localpuppet.node.releases.git.mirrors import Git


class CheckedRelease(Value):
    """A release that passed the checks.

    Attributes:
        chains: Every dependency, direct or not, as `release → dist/tags/r7 → …`.
        warnings: What Puppet or r10k would use in a control repository, modules that git ignores,
            unused data, dependencies that are missing or out of range, another OpenVox or Puppet.
        unseen: Files that Puppet reads but git ignores, so that the tag would lack them.
    """

    lock: Lock
    chains: tuple[str, ...]
    interface: Interface
    layers: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    data_files: int = 0


class _Dependency(Value):
    """A repository at a tag, with the path of dependencies that leads to it."""

    chain: tuple[str, ...]
    url: GitUrl
    tag: Tag


class ReleaseChecker(Value):
    """Checks releases; locked trees are in the store afterwards.

    `ignored` returns what git ignores in a directory, so that a tag lacks it. `refuse_unstageable`
    rejects a working copy that no node would stage, and counts its size.
    """

    repository: "Git"
    supply: Supply
    state: Path
    parser: Parser
    ignored: Callable[[Path], Ignored]
    refuse_unstageable: Callable[[Path, Budget], None]
    bus: bool
    sealed: Callable[[Path], SealedFindings]

    def check(self, directory: Path) -> CheckedRelease:
        """Check the release in a directory.

        Raises:
            InvalidInputError: Manifest and lock are missing or disagree, a name is not a tag or
                does not exist, Puppet cannot parse a file, or `enc.yaml` does not fit.
            IntegrityError: A tag moved, bytes or signatures are wrong, or the working copy has a
                forbidden member.
        """
        manifest = self.supply.files.manifest(directory)
        lock = self._lock(directory, manifest)
        with self.supply.store.locks.take_for_changes():
            budget = self.supply.store.budget()
            self.refuse_unstageable(directory, budget)
            self._bring(lock, directory / LOCK, budget)
        sealed = self.sealed(directory)
        sealed.refuse()
        chains = self._walk(lock, directory.resolve().name)
        with errors_at(str(directory / MANIFEST), LocalpuppetError):
            inner = layout(directory, manifest.moduledir, manifest.site_manifest)
        ignored = self.ignored(directory)
        _refuse_clash(directory, lock, manifest.moduledir, ignored)
        own = own_modules(directory, inner.modulepath, ignored, code=inner.own_code)
        interface = self._interface(directory, lock, own)
        interface.refuse_problems()
        inside = f"{manifest.moduledir}/" if manifest.moduledir else ""
        locked = self._locked(lock)
        single = {f"{inside}{name}": locked[name] for name in lock.modules}
        data = check_data(directory, own.modules, single)
        unloadable = self._unloadable(data.yaml, locked)
        return CheckedRelease(
            lock=lock,
            chains=chains,
            interface=interface,
            layers=self._check_enc(directory / ENC, interface),
            data_files=data.files,
            unseen=own.unseen,
            # What Hiera misses beside the code may be named twice.
            warnings=tuple(
                dict.fromkeys(
                    (
                        *unused_parts(directory, manifest, files=self.supply.files, but=ignored),
                        *interface.unmet(
                            bus=self.bus,
                            locked=lock.modules,
                            modules=modules_in(
                                self.supply.files.basemodulepath if inner.base else ()
                            ),
                        ),
                        *own.warnings(),
                        *data.warnings,
                        *unloadable,
                        *sealed.warnings,
                        *sealed.changed,
                        *self._unmet(lock, own, interface),
                    )
                )
            ),
        )

    def _lock(self, directory: Path, manifest: Manifest) -> Lock:
        lock = self.supply.files.lock(directory)
        if lock is None:
            raise InvalidInputError(
                f"there is no {LOCK}",
                where=str(directory),
                hint=f"run 'localpuppet release lock {directory}' and commit its result",
            )
        check_complete(manifest, lock, where=str(directory / LOCK))
        return lock

    def _bring(self, lock: Lock, file: Path, budget: Budget) -> None:
        """Fetch every tag again, compare it with the lock, and bring its tree into the store."""
        hint = "run 'localpuppet release lock'; find out who edited the lock"
        self.supply.tags(self.repository).bring(
            wanted_of(lock, self.supply.sources, file=str(file), hint=hint),
            ask_all=True,
            budget=budget,
        )
        self.supply.modules(self.repository).bring(
            lock.pins, file=str(file), ask_all=True, budget=budget
        )

    def _walk(self, lock: Lock, name: str) -> tuple[str, ...]:
        """Read the manifests of all dependencies, direct or not; return the path to each."""
        level = [
            _Dependency(chain=(name, key.partition(".")[2]), url=pin.url, tag=pin.tag)
            for key, pin in lock.pins.items()
            if isinstance(pin, Pin)
        ]
        seen: set[tuple[str, str]] = set()
        chains: list[str] = []
        while level:
            # Those of the lock were just asked for; one that was fetched is not fetched again.
            self.repository.fetch([(item.url, item.tag) for item in level], refresh=False)
            below: list[_Dependency] = []
            for item in level:
                if (item.url, item.tag) not in seen:
                    seen.add((item.url, item.tag))
                    chains.append(" → ".join(item.chain))
                    below += self._below(item)
            level = below
        return tuple(chains)

    def _below(self, item: _Dependency) -> list[_Dependency]:
        commit = self.repository.tag(item.url, item.tag).commit
        data = self.repository.files(item.url, commit, [MANIFEST]).get(MANIFEST)
        if data is None:
            return []
        chain = " → ".join(item.chain)
        manifest = self.supply.files.parse_manifest(data, f"{chain}: {MANIFEST}")
        dependencies = [
            _Dependency(chain=(*item.chain, name), url=module.url, tag=Tag(module.ref))
            for name, module in manifest.modules.items()
            if isinstance(module, GitModule) and module.is_tag
        ]
        for entry in manifest.modulepath:
            source = self.supply.sources.get(entry.source)
            if not entry.is_tag:
                raise InvalidInputError(
                    f"{chain} → {entry} is not a tag: the release would change after it is tagged",
                    where=f"{chain}: {MANIFEST}",
                    hint="tag it, and tag a release of its dependent that names the tag",
                )
            if source is None:
                raise InvalidInputError(
                    f"cannot check {entry}: {entry.source!r} is not a source",
                    where=f"{chain}: {MANIFEST}",
                    hint="declare it in localpuppet.yaml: 'sources: {NAME: {git: URL}}'",
                )
            dependencies.append(
                _Dependency(chain=(*item.chain, entry), url=source.url, tag=tag_of(entry))
            )
        return dependencies

    def _unmet(self, lock: Lock, own: OwnModules, interface: Interface) -> tuple[str, ...]:
        """Return the unmet dependencies and requirements in the modules' `metadata.json`."""
        modules = {**self._locked(lock), **{path.name: path for path in own.modules}}
        return unmet(modules, implementation=interface.implementation, version=interface.puppet)

    def _locked(self, lock: Lock) -> dict[str, Path]:
        """Return the locked modules, by name, with their trees in the store."""
        path = self.supply.store.path
        modules = {name: path(pin.tree_sha256) for name, pin in lock.modules.items()}
        for pin in lock.sources.values():
            for module in sorted(path(pin.tree_sha256).iterdir()):
                if module.is_dir():
                    modules.setdefault(module.name, module)
        return modules

    def _unloadable(self, read: Mapping[Path, str], locked: Mapping[str, Path]) -> list[str]:
        """Refuse data of the release that Puppet cannot load; return a line for other modules'."""
        names = {**read}
        unreadable = []
        for name, module in locked.items():
            try:
                files = yaml_files(module)
            except InvalidInputError as error:
                unreadable.append(f"{name}/{HIERA}: {error.what}")
            else:
                names |= {file: f"{name}/{inner}" for inner, file in files.items()}
        refused = self.parser.refused_data(list(names))
        own = [file for file, name in names.items() if name == str(file)]
        return unreadable + refuse_unloadable(refused, names, own=own)

    def _interface(self, directory: Path, lock: Lock, own: OwnModules) -> Interface:
        """Read the interface of the modulepath that nodes will have; compose no release."""
        with tempfile.TemporaryDirectory(dir=self.state, prefix=".check-") as temporary:
            links = Path(temporary)
            single = {
                name: self.supply.store.path(pin.tree_sha256) for name, pin in lock.modules.items()
            }
            parts = [
                _linked(links / str(number), {path.name: path.resolve() for path in paths})
                for number, paths in enumerate(own.kept.values())
            ]
            collections = {
                str(name): self.supply.store.path(pin.tree_sha256)
                for name, pin in lock.sources.items()
            }
            return self.parser.ask(
                [*parts, _linked(links / "modules", single), *collections.values()],
                names=[
                    *(str(directory / part) for part in own.kept),
                    "modules",
                    *collections,
                ],
                own_code={
                    str(directory / part): directory.resolve() / part for part in (*own.code, HIERA)
                },
            )

    def _check_enc(self, file: Path, interface: Interface) -> tuple[str, ...]:
        """Check `enc.yaml` against the interface, as far as possible without an input."""
        enc = read_enc(file, self.supply.files.documents)
        with errors_at(str(file), LocalpuppetError):
            check_classes(enc.data.classes, interface)
            for name, layer in enc.layers.items():
                with errors_at(f"layers.{name}", LocalpuppetError):
                    check_classes(layer.classes, interface)
        return tuple(enc.layers)


def _refuse_clash(directory: Path, lock: Lock, moduledir: str, ignored: Ignored) -> None:
    for name in lock.modules:
        path = f"{moduledir}/{name}" if moduledir else name
        if path not in ignored and (directory / path).exists():
            raise InvalidInputError(
                f"the release has a directory {path!r}, and its manifest a module of that name",
                where=str(directory / MANIFEST),
                hint="keep one of them; let git ignore what r10k installs",
            )


def _linked(directory: Path, modules: Mapping[str, Path]) -> Path:
    directory.mkdir()
    for name, path in modules.items():
        (directory / name).symlink_to(path)
    return directory
