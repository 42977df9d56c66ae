"""The files that a run's Puppet left: facts, classes, kicks and components.

Each file has a line of JSON for each of them.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.files import disk_errors
from localpuppet.node.puppet.command import CLASSES, CLIENT_DATA

# What Facter says of a machine is some ten to a hundred KiB; the largest that others would take.
MAX_FACTS = 2 * 1024 * 1024


def read_facts(public: Path) -> Mapping[str, Json]:
    """Return the facts of a run, structured, by name.

    Args:
        public: The public directory of the run.

    Raises:
        StateError: Puppet stored no facts.
        InvalidInputError: The facts exceed `MAX_FACTS` bytes, or are malformed.
    """
    files = sorted((public / CLIENT_DATA / "facts").glob("*.json"))
    if not files:
        raise StateError("Puppet wrote no facts for this run", where=str(public))
    file = files[0]
    with disk_errors(file):
        data = file.read_bytes()
    return parse_facts(data, where=str(file))


def parse_facts(data: bytes, *, where: str) -> dict[str, Json]:
    """Return the facts in a document of Puppet: `{"values": {NAME: VALUE}}`.

    Args:
        data: JSON.
        where: The document, for messages.

    Raises:
        InvalidInputError: The document exceeds `MAX_FACTS`, or has no facts.
    """
    return Fields.parse(data, where=where, limit=MAX_FACTS).mapping("values")


def read_classes(public: Path) -> list[str]:
    """Return the classes in the catalog of a run.

    Args:
        public: The public directory of the run.

    Raises:
        StateError: Puppet left no classes.
    """
    file = public / CLASSES
    with disk_errors(file):
        return file.read_text("utf-8", "replace").split()


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
