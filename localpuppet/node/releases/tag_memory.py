"""What every tag was that was ever staged here, also after the release was collected.

Owns: `tags.json` in the state directory: the pin of each release, and the time that a tag object
gives itself. Invariants: a pin is only replaced when somebody accepts that its tag moved; a time
belongs to a tag object, whose bytes (and signature, where there is one) cover that time. Whoever
writes holds the store's lock.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.machine.files import half_written, make_private, write_json
from localpuppet.node.releases.lock import Pin

SCHEMA = 1


class TagMemory:
    """Tags that this node has seen.

    Args:
        state: The state directory.
    """

    def __init__(self, state: Path) -> None:
        self._file = state / "tags.json"

    def pin(self, app: ReleasePath) -> Pin | None:
        """Return what the tag of a release was; `None` when it was never staged here.

        Raises:
            StateError: The memory is damaged.
        """
        return self._pin(self._read(), app)

    def tagged_at(self, app: ReleasePath) -> int | None:
        """Return when the tag of a release says that it was made, in seconds since 1970.

        `None` says that git never brought it here, or that the tag has no time.

        Raises:
            StateError: The memory is damaged.
        """
        raw = self._read()
        pin = self._pin(raw, app)
        time = None if pin is None else raw["times"].get(pin.tag_object)
        return time if isinstance(time, int) else None

    def note_pin(self, app: ReleasePath, pin: Pin) -> None:
        """Remember what a release is.

        Raises:
            StateError: The disk refused, or the memory is damaged.
        """
        raw = self._read()
        if raw["pins"].get(app) != asdict(pin):
            self._write(raw, pins={**raw["pins"], app: asdict(pin)})

    def note_time(self, tag_object: str, time: int | None) -> None:
        """Remember when a tag object says that it was made, in seconds since 1970.

        Raises:
            StateError: The disk refused, or the memory is damaged.
        """
        raw = self._read()
        if time is not None and raw["times"].get(tag_object) != time:
            self._write(raw, times={**raw["times"], tag_object: time})

    def rubbish(self) -> list[Path]:
        """Return what a process that died left half written. Call it with the store's lock only."""
        return half_written(self._file)

    def _pin(self, raw: Mapping[str, Any], app: ReleasePath) -> Pin | None:
        found = raw["pins"].get(app)
        if found is None:
            return None
        try:
            return Pin.from_dict(found, where=app, allow_file=True)
        except (KeyError, TypeError, InvalidInputError) as error:
            raise self._damaged() from error

    def _write(self, raw: Mapping[str, Any], **changed: Mapping[str, Any]) -> None:
        make_private(self._file.parent)
        write_json(self._file, {**raw, **changed})

    def _read(self) -> dict[str, Any]:
        try:
            raw = read_json(self._file)
        except FileNotFoundError:
            return {"schema": SCHEMA, "pins": {}, "times": {}}
        parts = (raw.get("pins"), raw.get("times"))
        if raw.get("schema") != SCHEMA or not all(isinstance(part, dict) for part in parts):
            raise self._damaged()
        return raw

    def _damaged(self) -> StateError:
        return StateError(
            "is damaged",
            where=str(self._file),
            hint="move it away; moved tags of collected releases are not noticed then",
        )
