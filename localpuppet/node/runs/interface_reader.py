"""Reads the interfaces of releases with Puppet's parser, keeps them, and checks documents by them.

- `interfaces/COMPOSITION.json` in the state directory depends only on the bytes of a staged
  release, so it never becomes stale.
- Mutable code is parsed again each time, but never on the way to a run.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from localpuppet.base.errors import (
    InvalidInputError,
    LocalpuppetError,
    PuppetMissingError,
    StateError,
    errors_at,
)
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import last_words
from localpuppet.base.machine.files import make_private, remove, remove_half_written, write_json
from localpuppet.base.machine.ports import Processes, Progress
from localpuppet.node.enc.document import NodeDocument
from localpuppet.node.puppet.installation import Installation
from localpuppet.node.releases.author.hiera_data import RefusedData
from localpuppet.node.releases.release import Release
from localpuppet.node.releases.release_records import StagedRelease
from localpuppet.node.releases.store import Store
from localpuppet.node.runs.interface import Interface, check

# Puppet's start and, for 200 modules on a slow machine, some thousand files.
DEADLINE = 300.0
MAX_ANSWER = 64 * 1024 * 1024
# Files of data for one process: its arguments stay far below the kernel's limit.
_AT_ONCE = 1000
# Last components of the classes of localpuppet's Puppet modules, which every run finds.
OWN_CLASSES = ("agent", "etcd", "trigger")
_CLASS = re.compile(r"\bclass\s+([a-z0-9_:]+)")
_Answer = TypeVar("_Answer")
# Returns the site manifest, and where Puppet's own global Hiera configuration may be.
Elsewhere = Callable[[], tuple[Path, Sequence[Path]]]
_NO_DATA = {"---", "version: 5", "hierarchy: []"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parser:
    """Puppet's parser, in Puppet's own interpreter.

    `script` is `base/share/interface.rb`, beside `hiera_data.rb`; every run has `own_modules`.
    """

    ruby: Path
    script: Path
    own_modules: Path
    env: Mapping[str, str]
    version: str
    processes: Processes
    load_path: tuple[str, ...] = ()

    def ask(
        self, directories: Sequence[Path], *, names: Sequence[str], own_code: Mapping[str, Path]
    ) -> Interface:
        """Return the interface of the modules in `directories`.

        Args:
            own_code: Directories and files with code outside of modules, by their names in
                messages. The code must parse, and adds nothing to the interface.

        Raises:
            PuppetMissingError: Puppet's library does not load, or reached the timeout.
        """
        code = [self.own_modules, *directories, "--", *own_code.values()]
        interface = self._answer(self.script, code, Interface.from_dict)
        if interface.puppet not in self.version:
            raise PuppetMissingError(
                f"the Puppet of this Ruby is {interface.puppet}, and runs use {self.version}",
                where=str(self.ruby),
                hint="set puppet.command to a command that passes RUBYOPT on to Ruby",
            )
        return replace(interface, modulepath=(*names, *own_code))

    def refused_data(self, files: Sequence[Path]) -> list[RefusedData]:
        """Return what Puppet's interpreter refuses in files of Hiera data, as YAML.

        Raises:
            PuppetMissingError: The interpreter does not work, or reached the timeout.
        """
        script, refused = self.script.with_name("hiera_data.rb"), []
        for start in range(0, len(files), _AT_ONCE):
            part = [file.absolute() for file in files[start : start + _AT_ONCE]]
            for item in self._answer(script, part, list):
                file = files[start + item.pop("index")]
                refused.append(RefusedData(file=file, **item))
        return refused

    def _answer(
        self, script: Path, arguments: Sequence[object], read: Callable[[Any], _Answer]
    ) -> _Answer:
        output = self.processes.capture(
            [
                str(self.ruby),
                *(f"-I{each}" for each in self.load_path),
                *map(str, [script, *arguments]),
            ],
            env=self.env,
            timeout=DEADLINE,
            limit=MAX_ANSWER,
        )
        where = f"{self.ruby} {script.name}"
        if output is None:
            raise PuppetMissingError(f"did not end within {DEADLINE:g} s", where=where)
        try:
            if output.ended.code != 0:
                raise ValueError(f"exit code {output.ended.code}, signal {output.ended.signal}")
            # A library may print lines on standard output before the answer.
            return read(loads(output.stdout.rstrip().rpartition(b"\n")[2]))
        except (ValueError, AttributeError, StateError) as error:
            error_text = last_words(output.stderr, most=200) or str(error)
            raise PuppetMissingError(
                f"Puppet's parser does not work: {error_text}",
                where=where,
                hint="does 'require \"puppet\"' work in it?",
            ) from error


def _read(file: Path, modulepath: Sequence[str]) -> Interface | None:
    """Return the interface in a file; `None` if it is missing or unreadable."""
    try:
        return replace(Interface.from_dict(read_json(file)), modulepath=tuple(modulepath))
    except (FileNotFoundError, StateError):
        return None


def names(release: Release) -> list[str]:
    """Return the names of a release's code directories in messages."""
    return [*map(str, release.names), *release.own_code]


def check_document(
    document: NodeDocument,
    interface: Interface,
    release: Release,
    *,
    elsewhere: Elsewhere,
    extra: Sequence[str],
) -> None:
    """Check the node document of a run against the interface of its release.

    Args:
        elsewhere: What else may define classes or hold data.

    Raises:
        InvalidInputError: Puppet cannot parse the release, or the document does not fit it.
    """
    interface.refuse_problems()
    site_manifest, hiera_files = elsewhere()
    check(
        document,
        interface,
        data_elsewhere=release.hiera_config is not None
        or any("hiera" in word or "codedir" in word for word in extra)
        or any(map(_may_hold_data, hiera_files)),
        other_classes={*_defined_in(release.site_manifest or site_manifest), *OWN_CLASSES},
        other_modules=modules_in(release.base),
    )


def modules_in(directories: Iterable[Path]) -> set[str]:
    """Return the names of the modules in the node's own directories; those that exist count."""
    return {path.name for directory in directories for path in directory.glob("*")}


def _may_hold_data(file: Path) -> bool:
    """Whether a global `hiera.yaml` has a hierarchy; Debian's packaged file has none."""
    try:
        lines = [line.rstrip() for line in file.read_text("utf-8", "replace").splitlines()]
    except FileNotFoundError:
        return False
    except OSError:
        return True
    significant = {line for line in lines if line and not line.lstrip().startswith("#")}
    return not (significant <= _NO_DATA and "hierarchy: []" in significant)


def _defined_in(site_manifest: Path) -> set[str]:
    """Return the last components of the names of classes that a site manifest may define.

    An overestimate: comments count, and nesting is ignored.
    """
    files = site_manifest.rglob("*.pp") if site_manifest.is_dir() else [site_manifest]
    try:
        texts = [file.read_text("utf-8", "replace") for file in files]
    except OSError as error:
        raise InvalidInputError(
            f"the site manifest cannot be read: {error.strerror}", where=str(site_manifest)
        ) from error
    return {name.rpartition("::")[2] for text in texts for name in _CLASS.findall(text)}


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceReader:
    """Reads the interfaces of releases with Puppet's parser, and keeps those of staged ones.

    `elsewhere` is what else may define classes or hold data.
    """

    store: Store
    installed: Callable[[], Installation]
    parser: Callable[[Installation], Parser]
    elsewhere: Elsewhere
    observe: Callable[[str], Progress]

    def kept(self, release: Release) -> Interface | None:
        """Return the interface that was kept when a release was staged.

        `None` if the release is not staged, or no readable interface was kept.
        """
        if release.directory.parent != self.store.directory / "releases":
            return None
        return _read(self._file(release.directory.name), names(release))

    def forget(self, composition: str) -> None:
        """Remove the interface of a composition that was removed."""
        remove(self._file(composition))

    def _file(self, composition: str) -> Path:
        return self.store.directory / "interfaces" / f"{composition}.json"

    def _write(self, composition: str, interface: Interface) -> None:
        file = self._file(composition)
        make_private(file.parent)
        remove_half_written(file.parent)
        write_json(file, interface.to_dict())

    def read_composed(
        self, staged: StagedRelease, modulepath: Mapping[str, Path], own_code: Mapping[str, Path]
    ) -> None:
        """Keep the interface of a release that is not yet named on this node.

        If Puppet is not installed yet (for example while building an image), nothing is read.

        Args:
            modulepath: Directories by their later names on the node.
            own_code: See `Parser.ask`.

        Raises:
            InvalidInputError: Puppet cannot parse the release; no interface is kept.
        """
        try:
            installation = self.installed()
        except PuppetMissingError:
            return
        kept = _read(self._file(staged.composition), [*modulepath, *own_code])
        if kept is not None and kept.puppet == installation.version:
            kept.refuse_problems()
            return
        interface = self.parser(installation).ask(
            list(modulepath.values()), names=list(modulepath), own_code=own_code
        )
        interface.refuse_problems()
        self._write(staged.composition, interface)

    def read_staged(self, release: Release) -> str:
        """Keep the interface of a staged release; return the reason if that was not done.

        Raises:
            InvalidInputError: Puppet cannot parse the release; its interface is kept.
        """
        try:
            installation = self.installed()
        except PuppetMissingError as error:
            return f"not parsed: {error}"
        interface = self.kept(release)
        if interface is None or interface.puppet != installation.version:
            with self.store.locks.take_for_changes():
                interface = self._read(release, installation)
                if release.directory.parent == self.store.directory / "releases":
                    self._write(release.directory.name, interface)
        interface.refuse_problems()
        return ""

    def check_now(self, release: Release, document: NodeDocument, *, where: str) -> str:
        """Check a document against its release, read now; return the reason if that was not done.

        Nothing is kept, so read access to the release is enough.

        Raises:
            InvalidInputError: The document does not fit, or Puppet cannot parse the release.
        """
        try:
            installation = self.installed()
        except (PuppetMissingError, StateError) as error:
            return f"classes and parameters were not checked: {error}"
        interface = self._read(release, installation)
        interface.refuse_problems()
        with errors_at(where, LocalpuppetError):
            check_document(document, interface, release, elsewhere=self.elsewhere, extra=())
        return ""

    def check_kept(self, document: NodeDocument, release: Release, extra: Sequence[str]) -> None:
        """Check a document against the interface kept at staging, before Puppet starts.

        Without a kept interface Puppet finds the errors.
        """
        kept = self.kept(release)
        if kept is not None:
            check_document(document, kept, release, elsewhere=self.elsewhere, extra=extra)

    def interface_of(self, release: Release) -> Interface:
        """Return a release's interface: the kept one, or one that Puppet's parser reads now."""
        return self.kept(release) or self._read(release, self.installed())

    def _read(self, release: Release, installation: Installation) -> Interface:
        """Return the kept interface if this Puppet made it, or ask Puppet."""
        kept = self.kept(release)
        if kept is not None and kept.puppet == installation.version:
            return kept
        progress = self.observe(f"reading {release.name}")
        progress.begin()
        try:
            return self.parser(installation).ask(
                release.modulepath, names=list(map(str, release.names)), own_code=release.own_code
            )
        finally:
            progress.close()
