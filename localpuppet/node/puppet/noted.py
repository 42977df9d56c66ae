"""Reads what localpuppet's Puppet modules noted of a catalog: kicks and components.

Each file has a line of JSON for each of them.
"""

from contextlib import suppress
from pathlib import Path

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.machine.files import disk_errors

# `FILE` of `PuppetX::Localpuppet::Kicks` and `…::Components`, in the public directory of the run.
KICKS = "kicks.jsonl"
COMPONENTS = "components.jsonl"
MAX_BYTES = 1024 * 1024
SCHEMA = 1


def read_noted(public: Path, name: str) -> list[Fields]:
    """Return the notes of a run's catalog; empty if the file is missing.

    Args:
        public: The public directory of the run.
        name: `KICKS` or `COMPONENTS`.

    Raises:
        InvalidInputError: The file is too large, or a line is not JSON, or it has another schema
            number.
    """
    what = name.partition(".")[0]
    file = public / name
    data = b""
    with disk_errors(file), suppress(FileNotFoundError), file.open("rb") as opened:
        data = opened.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InvalidInputError(f"has more than {MAX_BYTES} bytes", where=f"{what} of the catalog")
    notes = [Fields.parse(line, where=what, limit=MAX_BYTES) for line in data.splitlines()]
    for note in notes:
        note.schema(SCHEMA)
    return notes
