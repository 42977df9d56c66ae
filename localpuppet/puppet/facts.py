"""The facts of a run, as Puppet left them, and the classes in its catalog.

Owns: where Puppet keeps them and their form. Refuses to know: what they are good for.
"""

from collections.abc import Mapping
from pathlib import Path

from localpuppet.errors import StateError
from localpuppet.formats.json_file import read_json
from localpuppet.formats.values import Json
from localpuppet.machine.files import state_problem
from localpuppet.puppet.command import CLASSES, CLIENT_DATA


def read_facts(public: Path) -> Mapping[str, Json]:
    """Return the facts of a run, structured, by name.

    Args:
        public: The public directory of the run.

    Raises:
        StateError: Puppet left none, or something else.
    """
    files = sorted((public / CLIENT_DATA / "facts").glob("*.json"))
    if not files:
        raise StateError("Puppet left no facts of this run", where=str(public))
    values = read_json(files[0]).get("values")
    if not isinstance(values, dict):
        raise StateError("holds no facts", where=str(files[0]))
    return values


def read_classes(public: Path) -> list[str]:
    """Return the classes in the catalog of a run.

    Args:
        public: The public directory of the run.

    Raises:
        StateError: Puppet left none.
    """
    file = public / CLASSES
    try:
        return file.read_text("utf-8", "replace").split()
    except OSError as error:
        raise state_problem(error, file) from error
