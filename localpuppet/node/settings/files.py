"""Reads the settings files of a root, each once a process."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localpuppet.base.formats.documents import Documents
from localpuppet.base.machine.files import is_file, read_user_file


def read_settings(file: Path, *, schema: str, documents: Documents) -> Mapping[str, Any]:
    """Return the contents of a settings file; empty if it does not exist.

    Args:
        file: The file.
        schema: Its schema.
        documents: Reads documents.

    Raises:
        InvalidInputError: The file is invalid.
    """
    if not is_file(file):
        return {}
    return documents.parse(read_user_file(file), schema=schema, where=str(file), may_be_empty=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """`localpuppet.yaml` of a root; each layer reads a section of it.

    Attributes:
        root: The root.
        state: The state directory.
        path: The file.
        raw: The whole document; it fits the schema. Empty if there is no such file.
        documents: Reads further documents.
    """

    root: Path
    state: Path
    path: Path
    raw: Mapping[str, Any]
    documents: Documents
