"""Read JSON files that localpuppet or Puppet wrote."""

from pathlib import Path
from typing import Any

from localpuppet.base.errors import StateError
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.machine.files import list_names, state_problem


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


def json_files(directory: Path) -> list[Path]:
    """Return the JSON files in a directory, sorted by name; none if there is no such directory."""
    return [directory / name for name in sorted(list_names(directory)) if name.endswith(".json")]
