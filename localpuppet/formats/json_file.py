"""JSON files of our own, or of Puppet's: a good one, a damaged one, or none."""

from pathlib import Path
from typing import Any

from localpuppet.errors import StateError
from localpuppet.formats.strict_json import loads
from localpuppet.machine.files import state_problem


def read_json(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file of our own or of Puppet's.

    Raises:
        FileNotFoundError: There is no such file.
        StateError: It cannot be read, or is not a JSON mapping (damaged).
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
