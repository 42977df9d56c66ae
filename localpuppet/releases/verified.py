"""What was verified once: that a tag of a source has a signature that its signers file accepts.

Owns: `verified.json` in the state directory. Invariants: an entry says which tree git wrote for
which commit behind which tag object, and by which signers file that tag was accepted. So a tree
that somebody else brought into the store is never taken for the tag's, and a changed signers file
makes every tag of its source to be verified again. Whoever writes holds the store's lock.
"""

import hashlib
from pathlib import Path
from typing import Any

from localpuppet.errors import StateError
from localpuppet.formats.json_file import read_json
from localpuppet.formats.names import ReleasePath
from localpuppet.machine.files import half_written, make_private, state_problem, write_json
from localpuppet.releases.lock import Pin
from localpuppet.releases.source import Source

SCHEMA = 1


class Verified:
    """Verifications that this node has done.

    Args:
        state: The state directory.
    """

    def __init__(self, state: Path) -> None:
        self._file = state / "verified.json"

    def accepts(self, source: Source, pin: Pin) -> bool:
        """Return whether a pin was verified, or has not to be.

        Raises:
            StateError: The signers file cannot be read, or what was noted is damaged.
        """
        if source.signers is None:
            return True
        return self._read().get(_key(source, pin)) == _value(source, pin)

    def accepts_tree(self, source: Source, app: ReleasePath, tree_sha256: str) -> bool:
        """Return the same for a release of which only the tree is known.

        Raises:
            StateError: As `accepts`.
        """
        if source.signers is None:
            return True
        rules = rules_digest(source)
        return any(
            key.startswith(f"{app} ")
            and (value.get("tree_sha256"), value.get("rules")) == (tree_sha256, rules)
            for key, value in self._read().items()
        )

    def note(self, source: Source, pin: Pin, *, rules: str) -> None:
        """Write down that a pin was verified: its tag, its signature, and its tree by git.

        Args:
            source: The source.
            pin: What was verified.
            rules: `rules_digest` of the source, taken before the verification began.

        Raises:
            StateError: The disk refused, or the signers file cannot be read.
        """
        if source.signers is None:
            return
        entries = self._read()
        value = {**_value(source, pin), "rules": rules}
        if entries.get(_key(source, pin)) != value:
            entries[_key(source, pin)] = value
            make_private(self._file.parent)
            write_json(self._file, {"schema": SCHEMA, "verified": entries})

    def rubbish(self) -> list[Path]:
        """Return what a process that died left half written. Call it with the store's lock only."""
        return half_written(self._file)

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            raw = read_json(self._file)
        except FileNotFoundError:
            return {}
        entries = raw.get("verified")
        if raw.get("schema") != SCHEMA or not isinstance(entries, dict):
            raise StateError(
                "is damaged",
                where=str(self._file),
                hint="remove it: 'localpuppet stage' verifies again",
            )
        return {key: value for key, value in entries.items() if isinstance(value, dict)}


def rules_digest(source: Source) -> str:
    """Return the digest of what a source's tags are held to; another one voids what was verified.

    Raises:
        StateError: The signers file cannot be read.
    """
    if source.signers is None:
        return ""
    try:
        rules = hashlib.sha256(source.signers.read_bytes())
    except OSError as error:
        raise state_problem(error, source.signers) from error
    if source.unnamed_tags:
        rules.update(b"\0unnamed tags")
    return rules.hexdigest()


def _key(source: Source, pin: Pin) -> str:
    return f"{source.name}/tags/{pin.tag} {pin.tag_object}"


def _value(source: Source, pin: Pin) -> dict[str, str]:
    return {
        "commit": pin.commit,
        "tree_sha256": pin.tree_sha256,
        "rules": rules_digest(source),
    }
