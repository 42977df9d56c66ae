"""Parses, checks and writes `manifest.lock`.

A lock pins exactly what its manifest names.
"""

import json
from contextlib import suppress
from pathlib import Path

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, errors_at
from localpuppet.base.formats.documents import Documents
from localpuppet.node.releases.git.names import Tag
from localpuppet.node.releases.lock import VERSION, AnyPin, CommitPin, ForgePin, Lock, Pin
from localpuppet.node.releases.manifest import ForgeModule, GitModule, Manifest, Module
from localpuppet.node.releases.source import split

MANIFEST = "manifest.yaml"
LOCK = "manifest.lock"
CREATE_MANIFEST = "create it with the line 'moduledir: modules'"
EMPTY = Lock(modules={}, sources={})


def require_manifest(directory: Path) -> None:
    """Raise `InvalidInputError`, with the way to make one, if a directory has no manifest."""
    if not (directory / MANIFEST).exists():
        hint = CREATE_MANIFEST
        if (directory / "Puppetfile").exists():
            hint = "make it from the Puppetfile: 'localpuppet release import'"
        raise InvalidInputError(f"there is no {MANIFEST}", where=str(directory), hint=hint)


def parse_manifest(data: bytes, *, documents: Documents, where: str, allow_file: bool) -> Manifest:
    """Return the manifest in `data`.

    Raises:
        InvalidInputError: The manifest is invalid.
    """
    raw = documents.recall(data, schema="manifest")
    if raw is None:
        from localpuppet.base.formats import (
            canonical_yaml,  # its patterns cost 5 ms, where nothing is new
        )

        with suppress(LocalpuppetError, KeyError, TypeError, ValueError, AttributeError):
            text = data.decode("ascii")
            read = canonical_yaml.read(text) or {}
            manifest = Manifest.from_dict(read, allow_file=allow_file)
            if manifest.to_text({}) == canonical_yaml.without_comments(text):
                documents.accept(data, read, schema="manifest")
                return manifest
        raw = documents.parse(data, schema="manifest", where=where, may_be_empty=True)
    with errors_at(where, LocalpuppetError):
        return Manifest.from_dict(raw, allow_file=allow_file)


def parse_lock(data: bytes, *, documents: Documents, where: str, allow_file: bool) -> Lock:
    """Return the lock in `data`.

    Raises:
        InvalidInputError: The lock is invalid.
    """
    from localpuppet.base.formats import canonical_yaml

    with suppress(LocalpuppetError, KeyError, TypeError, ValueError, AttributeError):
        text = data.decode("ascii")
        lock = Lock.from_dict(canonical_yaml.read(text) or {}, allow_file=allow_file)
        if to_text(lock) == text:
            return lock
    raw = documents.parse(data, schema="lock", where=where)
    with errors_at(where, LocalpuppetError):
        return Lock.from_dict(raw, allow_file=allow_file)


def check_complete(manifest: Manifest, lock: Lock, *, where: str, work_trees: bool = False) -> None:
    """Reject a lock that does not fit its manifest.

    Args:
        manifest: The manifest.
        lock: Its lock.
        where: The lock's location, for messages.
        work_trees: Allow modules that are work trees of this machine, for a run of an unreleased
            work tree.

    Raises:
        InvalidInputError: A name is in only one of the two or has another tag, or a module is a
            work tree without `work_trees`.
    """
    for name in lock.paths:
        if not work_trees:
            raise InvalidInputError(
                "is a work tree of the machine that locked it",
                where=f"{where}: paths.{name}",
                hint="run 'localpuppet release lock' without --path",
            )
    wanted: dict[str, Module | Tag] = {
        **{f"modules.{name}": module for name, module in manifest.modules.items()},
        **{f"sources.{entry}": split(entry) for entry in manifest.modulepath},
    }
    locked = lock.pins
    for name in sorted({*wanted, *locked}):
        if name not in wanted or name not in locked or not fits(wanted[name], locked[name]):
            raise InvalidInputError(
                f"manifest and lock disagree: the manifest has {_wish(wanted.get(name))},"
                f" the lock has {locked[name].name if name in locked else 'nothing'}",
                where=f"{where}: {name}",
                hint="run 'localpuppet release lock' and commit its result",
            )
    for name, module in manifest.modules.items():
        pin = lock.modules[name]
        if (
            isinstance(module, GitModule)
            and not isinstance(pin, ForgePin)
            and pin.url != module.url
        ):
            raise InvalidInputError(
                "manifest and lock name different repositories", where=f"{where}: modules.{name}"
            )


def fits(wanted: Module | Tag, pin: AnyPin) -> bool:
    """Return whether a pin fits an entry of a manifest; repositories are not compared."""
    if isinstance(wanted, Tag):
        return isinstance(pin, Pin) and pin.tag == wanted
    if isinstance(wanted, ForgeModule):
        return (
            isinstance(pin, ForgePin)
            and pin.forge == wanted.slug
            and wanted.version.has(pin.version)
        )
    if isinstance(pin, Pin):
        return (wanted.kind, wanted.ref) == ("tag", pin.tag)
    if isinstance(pin, CommitPin):
        named = ("branch", pin.branch) if pin.branch else ("commit", pin.commit)
        return (wanted.kind, wanted.ref) == named
    return False


def _wish(wanted: Module | Tag | None) -> str:
    if wanted is None:
        return "nothing"
    if isinstance(wanted, ForgeModule):
        return f"{wanted.slug} {wanted.version.text}"
    if isinstance(wanted, GitModule) and wanted.kind != "tag":
        return f"the {wanted.kind} {wanted.ref}"
    return wanted.ref if isinstance(wanted, GitModule) else wanted


def to_text(lock: Lock) -> str:
    """Return the text of a lock: YAML, one field a line, in a fixed order."""
    lines = [
        "# Written by 'localpuppet release lock'; commit it beside manifest.yaml.",
        f"version: {VERSION}",
    ]
    for kind, pins in lock.to_dict().items():
        if not isinstance(pins, dict) or not pins:
            continue
        lines.append(f"{kind}:")
        for name, pin in pins.items():
            if isinstance(pin, str):
                lines.append(f"  {name}: {json.dumps(pin)}")
                continue
            lines.append(f"  {name}:")
            lines += [f"    {field}: {json.dumps(value)}" for field, value in pin.items()]
    return "\n".join(lines) + "\n"
