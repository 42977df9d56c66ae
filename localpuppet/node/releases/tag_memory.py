"""Remembers every tag that was staged on this node, even after `gc` removed the release.

- `tags.json` in the state directory has the pin of each release, and the time in each tag object.
- A pin is replaced only if the user accepts that the tag moved.
- A time belongs to a tag object, whose bytes (and signature, if any) cover it.
- Writers hold the store's lock.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.machine.files import half_written, make_private, write_json
from localpuppet.node.releases.git.git_modules import Pin

SCHEMA = 1


class TagMemory:
    """Tags that this node has seen."""

    def __init__(self, state: Path) -> None:
        self._file = state / "tags.json"

    def pin(self, app: ReleasePath) -> Pin | None:
        """Return the pin of a release; `None` if it was never staged."""
        return self._pin(self._read(), app)

    def tagged_at(self, app: ReleasePath) -> int | None:
        """Return the time in the tag of a release, in seconds since 1970.

        `None` if git never fetched the tag, or the tag has no time.
        """
        raw = self._read()
        pin = self._pin(raw, app)
        time = None if pin is None else raw["times"].get(pin.tag_object)
        return time if isinstance(time, int) else None

    def times(self) -> Mapping[str, int]:
        """Return the time in each known tag object, in seconds since 1970."""
        return {key: time for key, time in self._read()["times"].items() if isinstance(time, int)}

    def note_pin(self, app: ReleasePath, pin: Pin) -> None:
        """Remember the pin of a release."""
        raw = self._read()
        if raw["pins"].get(app) != asdict(pin):
            self._write(raw, pins={**raw["pins"], app: asdict(pin)})

    def note_time(self, tag_object: str, time: int | None) -> None:
        """Remember the time in a tag object, in seconds since 1970."""
        raw = self._read()
        if time is not None and raw["times"].get(tag_object) != time:
            self._write(raw, times={**raw["times"], tag_object: time})

    def rubbish(self) -> list[Path]:
        """Return incomplete files of a dead process. The caller holds the store's lock."""
        return half_written(self._file)

    def _pin(self, raw: Mapping[str, Any], app: ReleasePath) -> Pin | None:
        record = raw["pins"].get(app)
        if record is None:
            return None
        try:
            return Pin.from_dict(record, where=app, allow_file=True)
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
