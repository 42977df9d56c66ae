"""What a catalog kicks, as our Puppet modules noted it.

Owns: where they note it, and in which form: a line of JSON for each kick. Refuses to know: what a
kick means.
"""

from pathlib import Path

from localpuppet.errors import InvalidInputError
from localpuppet.formats.fields import Fields
from localpuppet.machine.files import state_problem

# `PuppetX::Localpuppet::Kicks::FILE`, in the public directory of the run.
FILE = "kicks.jsonl"
MAX_BYTES = 1024 * 1024


def read_kicks(public: Path) -> list[Fields]:
    """Return the kicks of a run's catalog; none where nothing was noted.

    Args:
        public: The public directory of the run.

    Raises:
        StateError: They cannot be read.
        InvalidInputError: They are too many, or a line is not JSON.
    """
    file = public / FILE
    try:
        with file.open("rb") as notes:
            data = notes.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise state_problem(error, file) from error
    if len(data) > MAX_BYTES:
        raise InvalidInputError(f"has more than {MAX_BYTES} bytes", where="kicks of the catalog")
    return [Fields.parse(line, where="kick", limit=MAX_BYTES) for line in data.splitlines()]
