"""Read JSON files that localpuppet or Puppet wrote."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from localpuppet.base.errors import StateError
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.machine.files import list_names, state_problem

T = TypeVar("T")


def read_json(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file that localpuppet or Puppet wrote.

    Raises:
        FileNotFoundError: The file does not exist.
        StateError: The file cannot be read, or is not a JSON mapping (damaged).
    """
    try:
        value = loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise state_problem(error, path) from error
    except ValueError as error:
        raise StateError("is damaged: not JSON", where=str(path)) from error
    if not isinstance(value, dict):
        raise StateError("is damaged: not a mapping", where=str(path))
    return value


def read_record(path: Path, parse: Callable[[dict[str, Any]], T], *, hint: str = "") -> T | None:
    """Return what `parse` makes of a JSON file; `None` if the file does not exist.

    Args:
        parse: Returns the record; raises `StateError` for a damaged one.

    Raises:
        StateError: The file cannot be read, or is damaged; the error names the file.
    """
    try:
        return parse(read_json(path))
    except FileNotFoundError:
        return None
    except StateError as error:
        where = error.where or str(path)
        raise StateError(error.what, where=where, hint=hint or error.hint) from error


def json_files(directory: Path) -> list[Path]:
    """Return the JSON files in a directory, sorted by name; none if there is no such directory."""
    return [directory / name for name in sorted(list_names(directory)) if name.endswith(".json")]
