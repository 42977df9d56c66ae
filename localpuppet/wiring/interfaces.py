"""Releases' interfaces on the command line: reading them, and holding documents against them.

What `stage`, `check`, `release check` and a run share. See `localpuppet.interface` for the rules.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from localpuppet import share
from localpuppet.enc.document import NodeDocument
from localpuppet.errors import LocalpuppetError, PuppetMissingError, StateError
from localpuppet.formats.names import ReleasePath
from localpuppet.releases.interface import Interface
from localpuppet.releases.interfaces import Interfaces, Parser, _check
from localpuppet.releases.release import Release
from localpuppet.releases.staged import Staged
from localpuppet.wiring.node import Parts


def parser(parts: Parts) -> Parser:
    """Return Puppet's parser.

    Raises:
        PuppetMissingError: There is no Puppet, or no interpreter for it.
    """
    from localpuppet.puppet.installation import find_ruby

    installation = parts.installed()
    ruby = find_ruby(Path(installation.command), parts.environment["PATH"])
    if ruby is None:
        raise PuppetMissingError(
            "its Ruby was not found beside it, in its first line or in PATH",
            where=installation.command,
        )
    return Parser(
        ruby=ruby,
        script=share.path("interface.rb"),
        env=parts.environment,
        version=installation.version,
        processes=parts.processes,
    )


def interface(parts: Parts, release: Release, *, keep: bool) -> Interface:
    """Return the interface of a release; asks Puppet's parser where nothing is kept.

    Args:
        parts: The wiring.
        release: The release.
        keep: Keep what was asked of a staged release.

    Raises:
        PuppetMissingError: Puppet's parser is not there or does not work.
        StateError: The disk refused.
    """
    from localpuppet.cli import render

    observer = render.observer(quiet=not sys.stdout.isatty(), title=f"reading {release.app}")
    observer.begin()
    try:
        return Interfaces(parts.settings.state).read(release, parser(parts), keep=keep)
    finally:
        observer.close()


class Approval:
    """Has Puppet's parser read a release before it gets its name: for `Staging`.

    Where Puppet is not installed yet, as where images are made, nothing is read.

    Args:
        parts: The wiring.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.given = False  # a release that was here already is not asked about

    def __call__(self, staged: Staged, modulepath: Mapping[str, Path]) -> None:
        """Keep what the parser says.

        Raises:
            InvalidInputError: It cannot parse the release.
            PuppetMissingError: It does not work.
            StateError: The disk refused.
        """
        parts = self._parts
        try:
            parts.installation(ask=True)
        except PuppetMissingError:
            return
        Interfaces(parts.settings.state).read_composed(staged, modulepath, parser(parts))
        self.given = True


def read_staged(parts: Parts, app: ReleasePath) -> str:
    """Keep the interface of a release that is staged; return why that was not done, if so.

    Images are made where Puppet is not installed yet: that is no error.

    Raises:
        InvalidInputError: Puppet cannot parse the release.
        BusyError: Another process changes the store.
        PuppetMissingError: Puppet is there, and its parser does not work.
        StateError: The disk refused.
    """
    try:
        parts.installation(ask=True)
    except PuppetMissingError as error:
        return f"not parsed: {error}"
    lock = parts.store.exclusively()
    try:
        found = interface(parts, parts.release(app), keep=True)
    finally:
        lock.release()
    found.refuse_problems()
    return ""


def check_now(parts: Parts, source: str, release: Release, document: NodeDocument) -> str:
    """Hold a document against its release, whatever it is; return why that was not done, if so.

    Whoever may read the release may check it: that its interface cannot be kept is no error.

    Raises:
        InvalidInputError: It does not fit, or Puppet cannot parse the release.
        PuppetMissingError: Puppet is there, and its parser does not work.
    """
    try:
        parts.installation(ask=True)
    except (PuppetMissingError, StateError) as error:
        return f"classes and parameters were not checked: {error}"
    found = interface(parts, release, keep=False)
    found.refuse_problems()
    try:
        _check(parts, document, release, (), found)
    except LocalpuppetError as error:
        raise error.at(source) from error
    return ""
