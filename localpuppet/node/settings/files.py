"""Reads the settings files of a root: each of them once a process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localpuppet.base.formats.documents import Documents
from localpuppet.base.machine.files import is_file, read_user_file


def read_settings(file: Path, *, schema: str, documents: Documents) -> Mapping[str, Any]:
    """Return what a settings file says; nothing where there is no such file.

    Args:
        file: The file.
        schema: The schema that it must fit.
        documents: Reads documents.

    Raises:
        InvalidInputError: The file is refused.
    """
    if not is_file(file):
        return {}
    return documents.parse(read_user_file(file), schema=schema, where=str(file), may_be_empty=True)
